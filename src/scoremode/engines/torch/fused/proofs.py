"""Proofs by running the library's own code: which formula it computes, and whether a kernel is equal.

A class's name says nothing certain about its arithmetic. So a module's own forward is run on chosen
inputs, its result compared with each known formula in plain torch, and the kernel of the nearest one
must give the same bits. What fits no formula keeps its own forward, with the reason.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional

from scoremode.engines.torch.model.skeleton import FORWARD_ERRORS
from scoremode.errors import words_of
from scoremode.lib.fallback import NotBuilt, building

Tensor = torch.Tensor
K = TypeVar("K")

# Share of entries that may differ in their last bits. Of a norm's: two float32 sums of the same squares
# in another order round to another short number about once in 10,000 entries, which the weight may
# carry two places on.
_NORM_SHARE, _NORM_PLACES = 0.005, 2
# Of an activation's: none on a GPU; the interpreter's exponential is numpy's, not torch's.
_GATE_SHARE = {"cuda": 0.0, "cpu": 0.005}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu tanh": lambda gate: functional.gelu(gate, approximate="tanh"),
    "gelu": functional.gelu,
}


class NotFused(Exception):
    """The reason why something keeps its own forward."""


def _unit(x: Tensor, eps: float) -> Tensor:
    exact = x.float()
    return exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + eps)


# x [..., D], weight [D], eps → the norm.
NORMS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "rounded": lambda x, w, eps: w * _unit(x, eps).to(x.dtype),
    "float": lambda x, w, eps: (w.float() * _unit(x, eps)).to(x.dtype),
    "plus one": lambda x, w, eps: (_unit(x, eps) * (1.0 + w.float())).to(x.dtype),
}


@dataclass(frozen=True)
class Gate:
    """The formula by which experts make one value of a gate and an up.

    - `activation`: one of ACTIVATIONS, or `swish, up plus one`, gpt-oss' with its `alpha`.
    - `limit`: what the gate is at most, and the up between it and its negative.
    """

    activation: str
    limit: float | None = None
    alpha: float = 1.0

    def __call__(self, gated: Tensor, up: Tensor) -> Tensor:
        """The library's own operations."""
        if self.limit is not None:
            gated, up = gated.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        if self.activation in ACTIVATIONS:
            return ACTIVATIONS[self.activation](gated) * up
        return (up + 1) * (gated * torch.sigmoid(gated * self.alpha))


def differing(ours: Tensor, theirs: Any, places: int = 1) -> float:
    """The share of entries that differ by up to `places` in the last bit; infinity if any by more.

    Two short float tensors; NaN equals NaN. Infinity for other shapes or dtypes too.
    """
    if not isinstance(theirs, Tensor) or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    steps = (_place(ours) - _place(theirs)).abs()
    steps = torch.where(ours.isnan() & theirs.isnan(), 0, steps)
    if int(steps.max()) > places:
        return float("inf")
    return float((steps > 0).double().mean())


def _place(x: Tensor) -> Tensor:
    """int32: where a 16-bit float stands among all of them in order; both zeros at 0."""
    bits = x.contiguous().view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def prove_norm(module: nn.Module, dtype: torch.dtype, device: torch.device) -> tuple[str, float]:
    """The formula of NORMS and the eps that `module` computes with. Raises NotFused."""
    from scoremode.engines.torch.fused.kernels import NormForm, rms_norm

    weight = module._parameters.get("weight")
    if weight is None or weight.dim() != 1 or len(module._parameters) > 1:
        raise NotFused("not one weight of one axis")
    found = [v for v in vars(module).values() if type(v) is float]
    if len(found) != 1:
        raise NotFused(f"{len(found)} numbers that may be its eps")
    (eps,), width = found, len(weight)
    rows = 64
    # Rows so small that only eps counts, and so large that it doesn't.
    scale = torch.linspace(-16, 6, rows).exp2()[:, None]
    x = (random(rows, width) * scale).to(device, dtype)[None]
    w = random(width).to(device, weight.dtype)
    with running_its_code():
        theirs = shell(module, parameters={"weight": nn.Parameter(w, False)})(x)
        formulas = {n: f(x, w, eps) for n, f in NORMS.items()}
        form = _nearest(formulas, theirs, _NORM_SHARE, _NORM_PLACES)
        ours, _ = rms_norm(x, w, eps, NormForm[form])
    if differing(ours, theirs, _NORM_PLACES) > _NORM_SHARE:
        raise NotFused("differs from the kernel")
    return form, eps


def prove_gated(module: nn.Module, dtype: torch.dtype, device: torch.device) -> str:
    """The activation of ACTIVATIONS in down(activation(gate(x)) · up(x)), proven for every gate.

    The linears are `gate_proj` and `up_proj`, or `gate_up_proj` with the gates first, and `down_proj`.
    Raises NotFused.
    """
    from scoremode.engines.torch.fused.kernels import Activation, gate

    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    gated = patterns.to(device).view(dtype).view(1, 32, -1)
    up = random(*gated.shape).to(device, dtype)
    first = {"gate_proj": gated, "up_proj": up}
    if "gate_up_proj" in module._modules:
        first = {"gate_up_proj": torch.cat([gated, up], -1)}
    given = {name: Given(out) for name, out in first.items()}
    others = {name: m for name, m in module._modules.items() if name not in {*first, "down_proj"}}
    if any(m is not None and next(m.parameters(), None) is not None for m in others.values()):
        raise NotFused("has other weights")
    x = torch.zeros(1, 32, 8, dtype=dtype, device=device)
    with running_its_code():
        # The last linear's stand-in turns its input round, so that it can't be left out.
        theirs = shell(module, modules={**others, **given, "down_proj": _Turned()})(x)
        if any(len(g.inputs) != 1 or g.inputs[0] is not x for g in given.values()):
            raise NotFused("its linears are given something else")
        if not isinstance(theirs, Tensor) or theirs.shape != up.shape:
            raise NotFused("returns something else")
        theirs = theirs.flip(-1)
        name = _nearest({n: act(gated) * up for n, act in ACTIVATIONS.items()}, theirs, 0.0)
        ours = gate(gated, up, Activation[name])
    if differing(ours, theirs) > _GATE_SHARE[device.type]:
        raise NotFused("differs from the kernel")
    return name


def prove_gate(module: Any, dtype: torch.dtype, device: torch.device) -> Gate:
    """The Gate of a fused experts module, proven for every gate and for every up. Raises NotFused."""
    from scoremode.engines.torch.fused.kernels import Activation, gate

    numbers = dict.fromkeys(v for v in vars(module).values() if type(v) is float)
    candidates = [Gate(name, limit) for limit in (None, *numbers) for name in ACTIVATIONS]
    candidates += [Gate("swish, up plus one", *pair) for pair in permutations(numbers, 2)]
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).to(device).view(dtype).view(32, -1)
    # Wide enough for limits to count.
    drawn = (random(*every.shape) * 8).to(device, dtype)
    gated, up = torch.cat([every, drawn]), torch.cat([drawn, every])
    with running_its_code():
        if not isinstance(getattr(module, "is_concatenated", None), bool):
            raise NotFused("doesn't say how gates and ups lie")
        parts = (gated, up)
        whole = (
            torch.cat(parts, -1) if module.is_concatenated else torch.stack(parts, -1).flatten(-2)
        )
        theirs = module._apply_gate(whole)
        found = _nearest({form: form(gated, up) for form in candidates}, theirs, 0.0)
        ours = gate(gated, up, Activation[found.activation], limit=found.limit, alpha=found.alpha)
    if differing(ours, theirs) > _GATE_SHARE[device.type]:
        raise NotFused("differs from the kernel")
    return found


def prove_rotation(
    function: Callable[..., Any],
    dtype: torch.dtype,
    tables: torch.dtype,
    width: int,
    device: torch.device,
    *,
    halves: bool = False,
) -> bool:
    """Tells whether `function(q, k, cos, sin)` rounds its products to `dtype` before it adds them.

    - `tables`: dtype of cos and sin; `width`: of a head, all of which is turned.
    - `halves`: cos and sin have one entry for both halves of a head.

    Raises NotFused for one that does anything else than turn the halves of a head against each other.
    """
    from scoremode.engines.torch.fused.kernels import rotate

    q = random(2, 5, 3, width).to(device, dtype).transpose(1, 2)
    k = random(2, 5, 2, width).to(device, dtype).transpose(1, 2)
    # Not mirrored: which half of a table meets which half of a head shows.
    cos, sin = (random(2, 1, 5, width) * 0.7).to(device, tables)
    given = (cos, sin)
    if halves:
        given = tuple(table[..., : width // 2] for table in given)
        cos, sin = (torch.cat([table, table], -1) for table in given)
    with running_its_code():
        theirs = function(q, k, *given)
        if not isinstance(theirs, tuple) or len(theirs) != 2:
            raise NotFused("returns something else")
        for rounded in (True, False):
            exact = [_rotated(x if rounded else x.float(), cos, sin).to(dtype) for x in (q, k)]
            if _equal(exact, theirs):
                is_rounded = rounded and tables == dtype
                if _equal(rotate(q, k, cos, sin, rounded=is_rounded), theirs):
                    return is_rounded
    raise NotFused("differs from the kernel")


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-high, low], -1) * sin[:, None]


def _equal(ours: Iterable[Tensor], theirs: Iterable[Any]) -> bool:
    return not any(map(differing, ours, theirs))


def _nearest(candidates: dict[K, Tensor], theirs: Any, share: float, places: int = 1) -> K:
    shares = {name: differing(ours, theirs, places) for name, ours in candidates.items()}
    name = min(shares, key=lambda n: shares[n])
    if shares[name] > share:
        raise NotFused("computes something else")
    return name


def shell(
    module: nn.Module,
    *,
    parameters: Mapping[str, nn.Parameter] | None = None,
    modules: Mapping[str, nn.Module | None] | None = None,
) -> Callable[..., Any]:
    """The module's own forward on other weights or parts; the module stays as it is."""
    shell = copy.copy(module)
    for name, value in (("_parameters", parameters), ("_modules", modules)):
        if value is not None:
            vars(shell)[name] = dict(value)
    return shell.forward


def random(*shape: int) -> Tensor:
    """Normal numbers, the same every time; the process's own generator is left alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


class Given(nn.Module):
    """A stand-in for a part: notes its inputs, returns what it was given."""

    def __init__(self, out: Tensor):
        super().__init__()
        self.out = out
        self.inputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.inputs.append(x)
        return self.out.clone()


class _Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flip(-1)


@contextmanager
def running_its_code() -> Iterator[None]:
    """Takes any error of the library's code, or of Triton's compiler, as a reason not to fuse."""
    try:
        with torch.no_grad(), building():
            yield
    except torch.OutOfMemoryError:
        raise
    except NotBuilt as error:
        raise NotFused(str(error)[:100]) from error
    except FORWARD_ERRORS as error:
        raise NotFused(words_of(error, 100)) from error
