"""Norms, gated products and rotations of any architecture, one kernel each where proven equal.

The library's modules stay, and so does the way their weights come and go: a kernel reads `weight` when
it runs, and linears are called as modules. Only the forward of an instance is replaced, never a class
or a function of the library. Compiling the layer instead would cost seconds of every run's start and
drop roundings; a library of kernels would name the architectures that it knows.

A replacement is made where the module's own code gives the kernel's result (`fused_proofs`). What
doesn't, and every call unlike those proven, runs as the library has it.
"""

import inspect
from collections.abc import Callable, Iterable
from types import FunctionType, MethodType
from typing import Any, cast

import torch
from torch import nn

from scoremode.engines.torch.fused_proofs import (
    ACTIVATIONS,
    NotFused,
    prove_gated,
    prove_norm,
    prove_rotation,
)
from scoremode.engines.torch.skeleton import Skeleton
from scoremode.launching import is_missing

__all__ = ["Fused", "fuse", "fuse_modules"]

_FUSED = "triton"
_OTHERWISE = "eager (a call unlike those proven)"
_ROTATION = "apply_rotary_pos_emb"

# Makes an instance's forward, given what notes how a call was computed.
_Make = Callable[[nn.Module, Callable[[str], None]], Callable[..., Any]]


class Fused:
    """What computes the parts of a model that have kernels."""

    def __init__(self) -> None:
        self._outcomes: dict[str, dict[str, None]] = {}

    def note(self, name: str, outcome: str) -> None:
        self._outcomes.setdefault(name, {})[outcome] = None

    def describe(self) -> dict[str, str]:
        """By class or function: `triton`, `eager (why)`, or both where instances or calls differ."""
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
            name, prove = finder.prover(module)
            if prove is None:
                continue
            try:
                if missing is not None:
                    raise NotFused(missing)
                if "forward" in vars(module):
                    raise NotFused("its forward was replaced")
                module.forward = prove(module)(
                    module, lambda outcome, n=name: fused.note(n, outcome)
                )
            except NotFused as reason:
                fused.note(name, f"eager ({reason})")
    return fused


class _Finder:
    """Knows what may be fused, and remembers what was proven of modules that look alike."""

    def __init__(self, fused: Fused, device: torch.device, dtype: torch.dtype):
        self._fused, self._device, self._dtype = fused, device, dtype
        self._known: dict[tuple[Any, ...], _Make | NotFused] = {}
        self._rotations: dict[Callable[..., Any], _Rotation] = {}

    def prover(self, module: nn.Module) -> tuple[str, Callable[[nn.Module], _Make] | None]:
        """The name under which `module` is described and what proves it; None for one of no kind."""
        name, parts = type(module).__name__, set(module._modules)
        if "RMSNorm" in name and not parts:
            return name, lambda m: self._remembered(m, self._norm)
        if {"gate_proj", "up_proj", "down_proj"} <= parts or {"gate_up_proj", "down_proj"} <= parts:
            return name, lambda m: self._remembered(m, self._gated)
        if _ROTATION in inspect.unwrap(type(module).forward).__code__.co_names:
            return _ROTATION, self._rotated
        return name, None

    def _remembered(self, module: nn.Module, prove: Callable[[nn.Module], _Make]) -> _Make:
        key = _alike(module)
        if key not in self._known:
            try:
                self._known[key] = prove(module)
            except NotFused as reason:
                self._known[key] = reason
        known = self._known[key]
        if isinstance(known, NotFused):
            raise known
        return known

    def _norm(self, module: nn.Module) -> _Make:
        from scoremode.engines.torch.fused_kernels import NormForm, rms_norm

        form, eps = prove_norm(module, self._dtype, self._device)
        number, dtype = NormForm[form], self._dtype

        def make(module: nn.Module, note: Callable[[str], None]) -> Callable[..., Any]:
            eager = module.forward
            note(_FUSED)

            def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                if args or kwargs or not _is_usual(x, dtype):
                    note(_OTHERWISE)
                    return eager(x, *args, **kwargs)
                return rms_norm(x, cast(torch.Tensor, module.weight), eps, number)[0]

            return forward

        return make

    def _gated(self, module: nn.Module) -> _Make:
        from scoremode.engines.torch.fused_kernels import Activation, gate

        name = prove_gated(module, self._dtype, self._device)
        number, act, dtype = Activation[name], ACTIVATIONS[name], self._dtype
        merged = "gate_up_proj" in module._modules

        def make(module: Any, note: Callable[[str], None]) -> Callable[..., Any]:
            eager = module.forward
            note(_FUSED)

            def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                if args or kwargs:
                    note(_OTHERWISE)
                    return eager(x, *args, **kwargs)
                if merged:
                    gated, up = module.gate_up_proj(x).chunk(2, -1)
                else:
                    gated, up = module.gate_proj(x), module.up_proj(x)
                if _is_usual(gated, dtype) and _is_usual(up, dtype):
                    # A linear's output is nobody else's: it takes the product.
                    product = gate(gated, up, number, gated if gated.is_contiguous() else None)
                else:
                    note(_OTHERWISE)
                    product = act(gated) * up
                del gated, up
                return module.down_proj(product)

            return forward

        return make

    def _rotated(self, module: nn.Module) -> _Make:
        own = type(module).forward
        if not isinstance(own, FunctionType) or inspect.unwrap(own) is not own:
            raise NotFused("the forward that calls it is wrapped")
        eager = own.__globals__.get(_ROTATION)
        if not callable(eager):
            raise NotFused("is no function of the module")
        if eager not in self._rotations:
            self._rotations[eager] = _Rotation(eager, self._fused, self._dtype, self._device)
        forward = _rebound(own, _ROTATION, self._rotations[eager])
        return lambda module, note: MethodType(forward, module)


class _Rotation:
    """In the place of the library's function in one forward; proven at the first call of each kind,
    when the dtype of its tables is seen."""

    def __init__(
        self, eager: Callable[..., Any], fused: Fused, dtype: torch.dtype, device: torch.device
    ):
        self._eager, self._fused = eager, fused
        self._dtype, self._device = dtype, device
        # By dtype of the tables and width of a head; None where the kernel is not the same.
        self._rounded: dict[tuple[torch.dtype, int], bool | None] = {}

    def __call__(self, q: Any, k: Any, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not self._fits(q, k, cos, sin):
            self._fused.note(_ROTATION, _OTHERWISE)
            return self._eager(q, k, cos, sin, *args, **kwargs)
        kind = cos.dtype, q.shape[-1]
        if kind not in self._rounded:
            self._prove(kind)
        rounded = self._rounded[kind]
        if rounded is None:
            return self._eager(q, k, cos, sin)
        from scoremode.engines.torch.fused_kernels import rotate

        return rotate(q, k, cos, sin, rounded=rounded)

    def _prove(self, kind: tuple[torch.dtype, int]) -> None:
        tables, width = kind
        try:
            proven = prove_rotation(self._eager, self._dtype, tables, width, self._device)
            self._rounded[kind] = proven
            self._fused.note(_ROTATION, _FUSED)
        except NotFused as reason:
            self._rounded[kind] = None
            self._fused.note(_ROTATION, f"eager ({reason})")

    def _fits(self, q: Any, k: Any, cos: Any, sin: Any) -> bool:
        """Whether they are like those proven: q and k [B, ·, T, d], tables [B or 1, T, d]."""
        if not all(isinstance(x, torch.Tensor) for x in (q, k, cos, sin)):
            return False
        return (
            q.dim() == k.dim() == 4
            and _is_usual(q, self._dtype)
            and _is_usual(k, self._dtype)
            and (q.shape[0], *q.shape[2:]) == (k.shape[0], *k.shape[2:])
            and q.shape[-1] % 2 == 0
            and cos.dim() == 3
            and cos.shape[0] in (1, q.shape[0])
            and cos.shape[1:] == q.shape[2:]
            and (cos.shape, cos.dtype, cos.stride(-1)) == (sin.shape, sin.dtype, 1)
            and sin.stride(-1) == 1
        )


def _is_usual(x: torch.Tensor, dtype: torch.dtype) -> bool:
    return x.dtype == dtype and x.dim() > 1 and x.stride(-1) == 1 and x.numel() > 0


def _alike(module: nn.Module) -> tuple[Any, ...]:
    """What two modules share that compute alike: class, settings, parts, shapes and dtypes of weights.

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


# Every nn.Module has these of its own.
_SHARED = {name for name, value in vars(nn.Module()).items() if isinstance(value, (dict, set))}


def _rebound(forward: FunctionType, name: str, value: Any) -> FunctionType:
    """The same code with another value for one of its global names."""
    other = FunctionType(
        forward.__code__,
        {**forward.__globals__, name: value},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    other.__kwdefaults__ = forward.__kwdefaults__
    return other
