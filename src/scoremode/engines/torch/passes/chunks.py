"""Parts of layers that treat every token by itself, run over a chunk of a long window at a time.

Of a decoder layer only the attention's product needs a whole window's keys and values. Norms, gated
products, experts and linears with quantized inputs take each token alone, and what they hold meanwhile
(14,336 gates and as many ups a token of an 8B model, a norm in float32) outgrows all else at 128k
tokens. A part is run in chunks where a few tokens show that it may be: by a change of some that no
other's result follows, and by the same results of a half alone. What doesn't show it runs as it is, and
its own parts are tried.

A matmul may sum in another order for another number of rows, so the chunk belongs to the schedule, and
windows that need none run without this file.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from scoremode.engines.torch.model.attention import (
    APART,
    attends_without_masks,
    has_narrow_values,
    replace_attention,
    slides,
)
from scoremode.engines.torch.model.layer_recorder import Placeholder
from scoremode.engines.torch.model.skeleton import FORWARD_ERRORS, Skeleton
from scoremode.engines.torch.weights.map import WeightMap

# Tokens that are looked at: more than any convolution in front of a layer's parts spans.
_TOKENS = 64
# Part of a token's result that rounding moves where other tokens go to the same experts.
_ROUNDING = 0.02


class Chunks:
    """The parts of a skeleton's layers, and of what is around them, in chunks of `tokens`.

    `whole`: modules whose result depends on all tokens of a window.
    """

    def __init__(self, skeleton: Skeleton, whole: frozenset[nn.Module]):
        self._skeleton, self._whole = skeleton, whole
        self.tokens: int | None = None
        self._is_wrapped = self._attends_apart = False
        # By module: whether it treats each token by itself, once that was looked at.
        self._apart: dict[nn.Module, bool] = {}
        self._is_looking = False

    def use(self, tokens: int | None) -> None:
        """Has all that comes run in chunks of so many tokens, None for whole windows."""
        if tokens == self.tokens:
            return
        skeleton = self._skeleton
        if tokens is not None and not self._is_wrapped:
            self._is_wrapped = True
            roots = [skeleton.model, *skeleton.layers]
            for module in _parts(roots, {skeleton.head, skeleton.embedding}):
                module.forward = self._chunked(module, module.forward)
        config, wanted = skeleton.config, tokens is not None
        is_apart = slides(config) or has_narrow_values(config, skeleton.device)
        if is_apart and attends_without_masks(skeleton.model, skeleton.attention):
            self._attends_apart = wanted
            replace_attention(skeleton.model, None if wanted else skeleton.attention)
        self.tokens = tokens

    def describe(self) -> list[str]:
        """The classes that ran in chunks, and how attention did where not as in whole windows."""
        names = {type(module).__name__ for module, apart in self._apart.items() if apart}
        return sorted(names) + ([APART] if self._attends_apart else [])

    def _chunked(self, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            x = args[0] if len(args) == 1 and not kwargs else None
            if self.tokens is None or self._is_looking or not isinstance(x, torch.Tensor):
                return forward(*args, **kwargs)
            # A part that is given anything but states doesn't take each token alone.
            if not x.is_floating_point() or x.dim() < 2:
                return forward(*args, **kwargs)
            # 0 of [T, D], 1 of [B, T, …], 2 of [B, H, T, d].
            axis = 2 if x.dim() == 4 and x.shape[2] > x.shape[1] else min(x.dim() - 2, 1)
            if x.shape[axis] <= self.tokens or not self._holds_apart(module, forward, x, axis):
                return forward(*args, **kwargs)
            return in_chunks(forward, x, axis, self.tokens)

        return run

    def _holds_apart(
        self, module: nn.Module, forward: Callable[..., Any], x: torch.Tensor, axis: int
    ) -> bool:
        if module not in self._apart:
            assert self.tokens is not None
            few = _some(x, axis, 0, min(_TOKENS, self.tokens))
            self._is_looking = True
            try:
                self._apart[module] = module not in self._whole and is_tokenwise(forward, few, axis)
            except torch.OutOfMemoryError:
                raise
            except FORWARD_ERRORS:
                # What was made for all tokens of a window, such as Inkling 2's scales, takes no fewer.
                self._apart[module] = False
            finally:
                self._is_looking = False
        return self._apart[module]


def whole_modules(skeleton: Skeleton, weights: WeightMap) -> frozenset[nn.Module]:
    """The modules with a linear that quantizes its input by a scale or by columns of a whole window."""
    bindings = [b for layer in weights.layers for b in layer]
    bindings += [b for layer in weights.experts for experts in layer for b in experts.bindings()]
    spanning = {b.module for b in bindings if b.matmul is not None and b.matmul.inputs.spans_window}
    roots = [skeleton.model, *skeleton.layers]
    modules = (m for root in roots for m in root.modules())
    return frozenset(m for m in modules if spanning and not spanning.isdisjoint(m.modules()))


def in_chunks(
    forward: Callable[..., Any], x: torch.Tensor, axis: int, tokens: int
) -> torch.Tensor | tuple[Any, ...]:
    """`forward` of `x`, whose tokens are along `axis`, so many at a time: a tensor, or a tuple of
    tensors and None."""
    length = x.shape[axis]
    whole: list[torch.Tensor | None] = []
    is_tuple = False
    for begin in range(0, length, tokens):
        count = min(tokens, length - begin)
        result = forward(_some(x, axis, begin, count))
        is_tuple = isinstance(result, tuple)
        parts: tuple[Any, ...] = result if is_tuple else (result,)
        del result
        if begin == 0:
            whole = [None if part is None else _room(part, axis, count, length) for part in parts]
        for out, part in zip(whole, parts, strict=True):
            if out is not None:
                at = _axis_of(part, axis, count)
                assert at is not None, f"{count} tokens became {list(part.shape)}"
                out.narrow(at, begin, count).copy_(part)
    if is_tuple:
        return tuple(whole)
    (out,) = whole
    assert out is not None
    return out


def is_tokenwise(forward: Callable[..., Any], x: torch.Tensor, axis: int) -> bool:
    """Tells whether `forward` makes of each token of `x`, along `axis`, what it makes of it alone.

    With one half of the tokens changed, the other half's results must stay; and those of the second
    half by itself must be the same, so that none counts the places before it.
    """
    count = x.shape[axis]
    halves = [(0, count // 2), (count // 2, count - count // 2)]
    # Zeros come out as zeros, whoever they are with: Llama 4 hands every expert a row of each token,
    # and of the tokens that others take it is zeros.
    waves = torch.arange(x.numel(), device=x.device).cos().view(x.shape).to(x.dtype)
    x = torch.where(x == 0, waves, x)
    results = _tensors(forward(x))
    if results is None or any(_axis_of(r, axis, count) is None for r in results):
        return False
    for (begin, size), (other, other_size) in (halves, halves[::-1]):
        changed = x.clone()
        # Larger by far: a scale of all tokens would show.
        changed.narrow(axis, begin, size).mul_(-32).add_(1)
        again = _tensors(forward(changed))
        if again is None or len(again) != len(results):
            return False
        for one, two in zip(results, again, strict=True):
            ours, theirs = (_rows(r, axis, count, other, other_size) for r in (one, two))
            if not bool((_moved(ours, theirs) <= _ROUNDING).all()):
                return False
    begin, size = halves[1]
    alone = _tensors(forward(_some(x, axis, begin, size)))
    if alone is None or len(alone) != len(results):
        return False
    for one, two in zip(results, alone, strict=True):
        if _axis_of(two, axis, size) is None:
            return False
        ours, theirs = _rows(one, axis, count, begin, size), _rows(two, axis, size, 0, size)
        # Most of them: of a few rows a router may round to another expert.
        if ours.shape != theirs.shape or not float(_moved(ours, theirs).median()) <= _ROUNDING:
            return False
    return True


def _parts(roots: Iterable[nn.Module], others: set[nn.Module]) -> Iterator[nn.Module]:
    """Modules under `roots`, but for the roots, the `others`, and what is not worth a chunk."""
    roots = list(roots)
    known = {*roots, *others}
    for module in (m for root in roots for m in root.modules()):
        # What a plain linear holds is its output alone.
        is_plain = isinstance(module, nn.Linear) and "forward" not in vars(module)
        is_plain = is_plain and type(module).forward is nn.Linear.forward
        if module in known or is_plain or isinstance(module, (nn.ModuleList, Placeholder)):
            continue
        known.add(module)
        yield module


def _some(x: torch.Tensor, axis: int, begin: int, count: int) -> torch.Tensor:
    """Some tokens, in memory as all of them are: of several windows experts want rows in one piece."""
    part = x.narrow(axis, begin, count)
    return part.contiguous() if x.is_contiguous() else part


def _axis_of(result: torch.Tensor, axis: int, count: int) -> int | None:
    """The axis of the `count` tokens in a result of states with them along `axis`; a router's [T, E] of
    one window has them first. None where they aren't found."""
    at = 0 if result.dim() == 2 else axis
    return at if result.dim() > at and result.shape[at] == count else None


def _room(part: torch.Tensor, axis: int, count: int, length: int) -> torch.Tensor:
    """Memory for the results of all `length` tokens, by those of the first `count`; axes lie in it in
    the same order, which the kernels after it are chosen by."""
    at = _axis_of(part, axis, count)
    assert at is not None, f"{count} tokens became {list(part.shape)}"
    shape = (*part.shape[:at], length, *part.shape[at + 1 :])
    order = sorted(range(part.dim()), key=lambda d: -part.stride(d))
    return torch.empty_permuted(shape, order, dtype=part.dtype, device=part.device)


def _tensors(result: Any) -> list[torch.Tensor] | None:
    """The tensors of a result; None for one of anything else."""
    parts = result if isinstance(result, tuple) else (result,)
    found = [part for part in parts if part is not None]
    return found if found and all(isinstance(part, torch.Tensor) for part in found) else None


def _rows(result: torch.Tensor, axis: int, count: int, begin: int, size: int) -> torch.Tensor:
    """float32 [size, n]: the results of some of `count` tokens."""
    at = _axis_of(result, axis, count)
    assert at is not None
    return result.narrow(at, begin, size).movedim(at, 0).flatten(1).float()


def _moved(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """The distance of each row of two, as a part of its length; more than any limit where one is not a
    number."""
    apart = (ours - theirs).norm(dim=-1) / ours.norm(dim=-1).clamp_min(1e-30)
    return apart.nan_to_num(nan=torch.inf)
