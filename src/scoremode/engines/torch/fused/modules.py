"""Norms, gated products and rotations of any architecture, one kernel each where proven equal.

The library's modules stay, and so does the way their weights come and go: a kernel reads `weight` when
it runs, and linears are called as modules. Only the forward of an instance is replaced, never a class
or a function of the library. Compiling the layer instead would cost seconds of every run's start and
drop roundings; a library of kernels would name the architectures that it knows.

A replacement is made where the module's own code gives the kernel's result (`proofs.py`). What
doesn't, and every call unlike those proven, runs as the library has it.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from scoremode.engines.torch.fused.forwards import (
    PARTS,
    Note,
    Rotation,
    gate_of_experts,
    gated_forward,
    layer_forward,
    norm_forward,
    prove_layer,
    rebound,
)
from scoremode.engines.torch.fused.proofs import NotFused, prove_gate, prove_gated, prove_norm
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.weights.expert_weights import has_gate, is_experts
from scoremode.engines.torch.weights.experts import GATE
from scoremode.lib.fallback import is_missing

_ROTATION = "apply_rotary_pos_emb"
# Every nn.Module has these of its own.
_SHARED = {name for name, value in vars(nn.Module()).items() if isinstance(value, (dict, set))}


class Fused:
    """A record of what computes the parts of a model that have kernels."""

    def __init__(self) -> None:
        self._outcomes: dict[str, dict[str, None]] = {}

    def note(self, name: str, outcome: str) -> None:
        self._outcomes.setdefault(name, {})[outcome] = None

    def describe(self) -> dict[str, str]:
        """Outcomes by class or function: `triton`, `eager (why)`, or both where instances or calls
        differ."""
        return {name: " and ".join(seen) for name, seen in sorted(self._outcomes.items())}


def fuse(skeleton: Skeleton, device: torch.device, dtype: torch.dtype) -> Fused:
    """Gives the skeleton's layers, and what is around them, kernels on a CUDA device.

    Nothing happens on a CPU, or in float32, where the order of a norm's sum would show.
    """
    if device.type != "cuda" or dtype == torch.float32:
        return Fused()
    return fuse_modules([skeleton.model, *skeleton.layers], device, dtype)


def fuse_modules(roots: Iterable[nn.Module], device: torch.device, dtype: torch.dtype) -> Fused:
    """`fuse` for all modules under `roots`, on any device that Triton's kernels run on."""
    fused = Fused()
    missing = is_missing()
    finder = _Finder(fused, device, dtype)
    for root in roots:
        for module in root.modules():
            name, make = finder.kind(module)
            if make is None:
                continue
            try:
                if missing is not None:
                    raise NotFused(missing)
                place = GATE if is_experts(module) else "forward"
                if place in vars(module):
                    raise NotFused(f"its {place} was replaced")
                setattr(module, place, make(module))
            except NotFused as reason:
                fused.note(name, f"eager ({reason})")
    return fused


class _Finder:
    """Knows what may be fused, and remembers what was proven of modules that look alike."""

    def __init__(self, fused: Fused, device: torch.device, dtype: torch.dtype):
        self._fused, self._device, self._dtype = fused, device, dtype
        self._known: dict[tuple[Any, ...], Any] = {}
        self._rotations: dict[Callable[..., Any], Rotation] = {}

    def kind(
        self, module: nn.Module
    ) -> tuple[str, Callable[[nn.Module], Callable[..., Any]] | None]:
        """The name under which `module` is described, and what makes its forward or raises NotFused;
        None for a module of no kind."""
        name, parts = type(module).__name__, set(module._modules)
        if is_experts(module) and has_gate(module):
            return name, self._experts
        if "RMSNorm" in name and not parts:
            return name, self._norm
        if {"gate_proj", "up_proj", "down_proj"} <= parts or {"gate_up_proj", "down_proj"} <= parts:
            return name, self._gated
        if parts == set(PARTS):
            return name, self._layer
        if _ROTATION in inspect.unwrap(type(module).forward).__code__.co_names:
            return _ROTATION, self._rotated
        return name, None

    def _proven(self, prove: Callable[..., Any], module: nn.Module) -> Any:
        """Returns what `prove` says of the module, or said of one like it."""
        key = _alike(module)
        if key not in self._known:
            try:
                self._known[key] = prove(module, self._dtype, self._device)
            except NotFused as reason:
                self._known[key] = reason
        known = self._known[key]
        if isinstance(known, NotFused):
            raise known
        return known

    def _norm(self, module: nn.Module) -> Callable[..., Any]:
        form, eps = self._proven(prove_norm, module)
        return norm_forward(module, form, eps, self._dtype, self._note_of(module))

    def _gated(self, module: nn.Module) -> Callable[..., Any]:
        activation = self._proven(prove_gated, module)
        return gated_forward(module, activation, self._dtype, self._note_of(module))

    def _experts(self, module: nn.Module) -> Callable[..., Any]:
        form = self._proven(prove_gate, module)
        return gate_of_experts(form, self._dtype, self._note_of(module))

    def _layer(self, module: nn.Module) -> Callable[..., Any]:
        norm = module.get_submodule("post_attention_layernorm")
        if "RMSNorm" not in type(norm).__name__ or "forward" in vars(norm):
            raise NotFused("its second norm has no kernel")
        form, eps = self._proven(prove_norm, norm)
        handed = self._proven(prove_layer, module)
        return layer_forward(module, handed, form, eps, self._dtype, self._note_of(module))

    def _rotated(self, module: nn.Module) -> Callable[..., Any]:
        own = type(module).forward
        if not isinstance(own, FunctionType):
            raise NotFused("the forward that calls it is no function")
        eager = inspect.unwrap(own).__globals__.get(_ROTATION)
        if not callable(eager):
            raise NotFused("is no function of the module")
        if eager not in self._rotations:
            note = partial(self._fused.note, _ROTATION)
            self._rotations[eager] = Rotation(eager, self._dtype, self._device, note)
        return MethodType(rebound(own, _ROTATION, self._rotations[eager]), module)

    def _note_of(self, module: nn.Module) -> Note:
        return partial(self._fused.note, type(module).__name__)


def _alike(module: nn.Module) -> tuple[Any, ...]:
    """The key shared by modules that compute alike: class, settings, parts, shapes and dtypes of
    weights.

    A setting of any other type than the plain ones makes a module alike to none but itself.
    """
    settings = []
    for name, value in vars(module).items():
        if type(value) in (bool, int, float, str, type(None)):
            settings.append((name, value))
        elif name not in _SHARED:
            settings.append((name, id(value)))
    weights = [(n, p.shape, p.dtype) for n, p in module._parameters.items() if p is not None]
    parts = [(n, type(m)) for n, m in module._modules.items()]
    return type(module), tuple(settings), tuple(weights), tuple(parts)
