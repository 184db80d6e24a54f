"""The head: from hidden states to log-probabilities, tile by tile, with no logits kept.

Same result as

    z = softcap(scale * (hidden.float() @ weight.float().T + bias))[:, :vocabulary]
    logprob = z.log_softmax(-1).gather(-1, target)

but a tile of `z`, a few hundred rows by a few thousand entries, is all that ever exists. Tiles are
taken in vocabulary order and combined in that order (`rows.py`), so the result is the same on every
run and hardly moves with the tile's size. Products of bf16 inputs are summed in float32: on a CPU with
bf16 instructions by lending them to a float32 matmul, which is exact for such inputs; on CUDA by asking
the matmul for a float32 result.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch

from scoremode.head.divergence import ExtraSums, PairScores, PairSums
from scoremode.head.rows import HeadScores, RowSums, has_kernels

_CPU_TILE = (512, 4096)  # rows x entries: 8 MiB of float32 logits, well inside a shared cache
_CUDA_TILE = (4096, 16384)
# Entries from one row of logits on CUDA to the next are a multiple of this: 64 bytes, so that matmul
# and kernels read and write whole vectors also where the vocabulary, and so the last tile, is odd.
_CUDA_STEP = 16
# The logits of two models that are held at a time: bytes on a CPU, where a block of rows may need more,
# and one part in so many of a GPU's memory.
_HELD_CPU = 512 << 20
_HELD_SHARE = 8


def lends_bf16(dtype: torch.dtype, device: torch.device) -> bool:
    """Tells whether a float32 matmul of inputs that came as `dtype` may use bf16 instructions there."""
    return dtype == torch.bfloat16 and device.type == "cpu" and cpu_has_instructions(dtype)


@functools.cache
def cpu_has_instructions(dtype: torch.dtype) -> bool:
    """Tells whether this machine's CPU multiplies matrices of `dtype` natively."""
    if dtype == torch.float32:
        return True
    wanted = {
        torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16"),
        torch.float16: ("avx512_fp16", "amx_fp16"),
    }[dtype]
    return any(torch.cpu.get_capabilities().get(flag, False) for flag in wanted)


@contextmanager
def bf16_matmul(wanted: bool) -> Iterator[None]:
    """Lets oneDNN compute float32 matmuls with bf16 inputs inside the block, and only there.

    The setting is global to the process, and left on it would round every float32 matmul.
    """
    if not wanted:
        yield
        return
    backend = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]
    before = backend.fp32_precision
    backend.fp32_precision = "bf16"
    try:
        yield
    finally:
        backend.fp32_precision = before


@dataclass(frozen=True, eq=False)
class Head:
    """The projection from a final hidden state to logits.

    - `weight` float [V, D]: as stored or decoded; only `weight[:vocabulary]` is used.
    - `bias` float [V] or None.
    - `scale`: factor on the product; `softcap`: `c · tanh(z / c)` after it.
    - `vocabulary`: the softmax runs over the first so many entries.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    scale: float
    softcap: float | None
    vocabulary: int

    def logits(self, product: torch.Tensor, begin: int) -> torch.Tensor:
        """`product` [N, tile] of entries `begin …`, made into logits in place."""
        if self.bias is not None:
            product.add_(self.bias[begin : begin + product.shape[1]].float())
        if self.scale != 1.0:
            product.mul_(self.scale)
        if self.softcap is not None:
            product.div_(self.softcap).tanh_().mul_(self.softcap)
        return product

    def to_json(self) -> dict[str, Any]:
        """The record's `head` section."""
        return {
            "vocabulary": self.vocabulary,
            "width": len(self.weight),
            "scale": self.scale,
            "softcap": self.softcap,
            "logits": "float32",
        }


@dataclass(frozen=True, eq=False)
class RoundedHead(Head):
    """A head whose logits are rounded to `dtype`, the product first and what is made of it after every
    step, as an engine has them that computes logits in the model's dtype."""

    dtype: torch.dtype

    def logits(self, product: torch.Tensor, begin: int) -> torch.Tensor:
        return product.copy_(super().logits(product.to(self.dtype), begin))


class Logits(Protocol):
    """A model's logits of N rows, a tile at a time."""

    def load(self, begin: int, end: int) -> None:
        """Makes ready for the vocabulary entries `begin … end`."""
        ...

    def __call__(self, block: slice, out: torch.Tensor | None = None) -> torch.Tensor:
        """float32 [R, end - begin] of those rows, the caller's to destroy: in `out` where it is given,
        else in memory that lasts until the next call."""
        ...


def tile_of(device: torch.device) -> tuple[int, int]:
    """Rows × vocabulary entries of logits that exist at a time."""
    return _CUDA_TILE if device.type == "cuda" else _CPU_TILE


def score_rows(
    head: Head,
    hidden: torch.Tensor,
    target: torch.Tensor,
    *,
    tile: tuple[int, int] | None = None,
) -> HeadScores:
    """Log-probability of `target` int64 [N] after `hidden` float [N, D].

    - `tile`: rows × vocabulary entries of logits that exist at a time.

    The result stays on the device of `hidden`, and nothing here waits for it. What is not finite is
    treated as `RowSums` says.

    The blocks of rows depend on N alone, but a matmul library may take another kernel for another
    number of rows: the same bits come of the same rows in the same call.
    """
    tile = tile or tile_of(hidden.device)
    return score_logits(HeadLogits(head, hidden, tile), target, head.vocabulary, tile)


def score_logits(
    logits: Logits, target: torch.Tensor, vocabulary: int, tile: tuple[int, int]
) -> HeadScores:
    """Log-probability of `target` int64 [N] by its row's logits, as `score_rows` has it."""
    sums = RowSums(len(target), target.device)
    # The logits are ours to destroy, which in plain torch saves a copy of them.
    take = sums.absorb if has_kernels(target.device) else sums.consume
    for begin, blocks in tiles(range(len(target)), vocabulary, tile, logits):
        for block in blocks:
            take(block, logits(block), target[block], begin)
    return sums.finish()


def score_pairs(
    target: torch.Tensor,
    vocabulary: int,
    *,
    model: Logits,
    base: Logits,
    extra: type[ExtraSums] | None = None,
    tile: tuple[int, int] | None = None,
) -> PairScores:
    """Both models' scores of `target` int64 [N] and what lies between them, over `vocabulary` entries.

    - `extra`: sums that the base's reference brings, made of the same tiles.

    The model's own scores are those of `score_rows` with the same tile, to the bit.

    The logits of a few blocks of rows are held until their total variation is known, and where
    `held_logits` says that they would take too much of a GPU, they are made a second time.
    """
    tile = tile or tile_of(target.device)
    sums = PairSums(len(target), target.device)
    theirs = None if extra is None else extra(len(target), target.device)
    at_once, holds = _held_rows(len(target), vocabulary, tile, target.device)
    memory = _Held(2, at_once, vocabulary, tile, target.device) if holds else None
    for first in range(0, len(target), at_once):
        rows = range(first, min(first + at_once, len(target)))
        _take_in(sums, theirs, rows, vocabulary, tile, base, model, target, memory)
    return sums.finish() if theirs is None else theirs.finish(sums.finish())


def _take_in(
    sums: PairSums,
    theirs: ExtraSums | None,
    rows: range,
    vocabulary: int,
    tile: tuple[int, int],
    base: Logits,
    model: Logits,
    target: torch.Tensor,
    memory: "_Held | None",
) -> None:
    """Takes in all entries of some rows, and then their total variation: without `memory` from logits
    that are made a second time."""
    taken = []
    for begin, blocks in tiles(rows, vocabulary, tile, base, model):
        for block in blocks:
            places = (None, None) if memory is None else memory.places(block, begin)
            pair = base(block, places[0]), model(block, places[1])
            if theirs is not None:
                theirs.consume(block, *pair)
            about = sums.consume(block, *pair, target[block], begin)
            if memory is not None:
                taken.append((block, *pair, about))
    for held in taken:
        sums.vary(*held)
    if memory is None:
        for _, blocks in tiles(rows, vocabulary, tile, base, model):
            for block in blocks:
                sums.vary(block, base(block), model(block))


def draft_variation(
    target: torch.Tensor,
    vocabulary: int,
    temperature: float,
    *,
    model: Logits,
    base: Logits,
    tile: tuple[int, int] | None = None,
) -> torch.Tensor:
    """The total variation of both models at a temperature, float64 [N]: 1 minus the expected acceptance
    of drafts that the model samples there, with the base as target. `target` moves none of it."""
    pair = [_Tempered(logits, temperature) for logits in (base, model)]
    scores = score_pairs(target, vocabulary, base=pair[0], model=pair[1], tile=tile)
    assert scores.tv is not None
    return scores.tv


class _Tempered:
    """The logits of a softmax at a temperature."""

    def __init__(self, logits: Logits, temperature: float):
        self._logits, self._temperature = logits, temperature
        self.load = logits.load

    def __call__(self, block: slice, out: torch.Tensor | None = None) -> torch.Tensor:
        return self._logits(block, out).div_(self._temperature)


def held_logits(vocabulary: int, device: torch.device) -> int:
    """Bytes of both models' logits that `score_pairs` holds of a GPU's memory."""
    rows, holds = _held_rows(tile_of(device)[0], vocabulary, tile_of(device), device)
    return 2 * 4 * rows * vocabulary if holds else 0


def _held_rows(
    rows: int, vocabulary: int, tile: tuple[int, int], device: torch.device
) -> tuple[int, bool]:
    """How many of `rows` have their logits held at a time, in whole blocks, and whether they are held.

    Both follow from fixed quantities. The bits of a score depend on neither.
    """
    each = 2 * 4 * vocabulary
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        return tile[0], min(rows, tile[0]) * each <= memory // _HELD_SHARE
    # A head's tile of weights is widened once for all of these rows.
    return max(1, _HELD_CPU // (each * tile[0])) * tile[0], True


class _Held:
    """Memory for the logits of so many rows of `models`, tile by tile, to be used again."""

    def __init__(
        self, models: int, rows: int, vocabulary: int, tile: tuple[int, int], device: torch.device
    ):
        self._models, self._rows, self._tile, self._vocabulary = models, rows, tile, vocabulary
        self._blocks: dict[tuple[int, int], list[torch.Tensor]] = {}
        self._device = device

    def places(self, block: slice, begin: int) -> list[torch.Tensor]:
        """float32 [R, E] for each model: a block's rows, and the entries of the tile at `begin`."""
        rows, entries = block.stop - block.start, min(self._tile[1], self._vocabulary - begin)
        key = block.start % self._rows, begin
        stride = stride_of(entries, self._device)
        if key not in self._blocks:
            # The first block of rows is never smaller than a later one.
            size = rows * stride
            self._blocks[key] = [
                torch.empty(size, dtype=torch.float32, device=self._device)
                for _ in range(self._models)
            ]
        return [
            memory[: rows * stride].view(rows, stride)[:, :entries] for memory in self._blocks[key]
        ]


def stride_of(entries: int, device: torch.device) -> int:
    """Entries from one row of a tile of logits to the next."""
    step = _CUDA_STEP if device.type == "cuda" else 1
    return -(-entries // step) * step


def divergences(
    target: torch.Tensor,
    vocabulary: int,
    *,
    base: Logits,
    models: Sequence[Logits],
    tile: tuple[int, int] | None = None,
) -> list[PairScores]:
    """Each of several models' scores beside the base's, as `score_pairs` has them to the bit.

    The base's logits are made once for all of them, where `held_logits` leaves room to hold them.
    """
    tile = tile or tile_of(target.device)
    sums = [PairSums(len(target), target.device) for _ in models]
    at_once, holds = _held_rows(len(target), vocabulary, tile, target.device)
    memory = kept = None
    if holds:
        memory = _Held(2, at_once, vocabulary, tile, target.device)
        kept = _Held(1, at_once, vocabulary, tile, target.device)
    for first in range(0, len(target), at_once):
        rows = range(first, min(first + at_once, len(target)))
        wanted = base if kept is None else _Kept(base, rows, vocabulary, tile, kept)
        for model, each in zip(models, sums, strict=True):
            _take_in(each, None, rows, vocabulary, tile, wanted, model, target, memory)
    return [each.finish() for each in sums]


class _Kept:
    """A model's logits of some rows, made once and then copied."""

    def __init__(
        self, logits: Logits, rows: range, vocabulary: int, tile: tuple[int, int], memory: _Held
    ):
        self._memory, self._begin = memory, 0
        for begin, blocks in tiles(rows, vocabulary, tile, logits):
            for block in blocks:
                logits(block, *memory.places(block, begin))

    def load(self, begin: int, end: int) -> None:
        self._begin = begin

    def __call__(self, block: slice, out: torch.Tensor | None = None) -> torch.Tensor:
        (tile,) = self._memory.places(block, self._begin)
        return tile.clone() if out is None else out.copy_(tile)


def tiles(
    rows: range, vocabulary: int, tile: tuple[int, int], *logits: Logits
) -> Iterator[tuple[int, list[slice]]]:
    """Each tile's first entry, with `logits` loaded for it, and the blocks of rows to take."""
    blocks = [slice(low, min(low + tile[0], rows.stop)) for low in rows[:: tile[0]]]
    for begin in range(0, vocabulary, tile[1]):
        for source in logits:
            source.load(begin, min(begin + tile[1], vocabulary))
        yield begin, blocks


class HeadLogits:
    """`head` of `hidden` [N, D], in tiles of at most so many rows × entries, in reused memory."""

    def __init__(self, head: Head, hidden: torch.Tensor, tile: tuple[int, int]):
        rows, entries = tile
        self._head, self._hidden = head, hidden
        self._native = hidden.is_cuda and hidden.dtype != torch.float32
        self._lends_bf16 = lends_bf16(hidden.dtype, hidden.device)
        rows, entries = min(rows, len(hidden)), min(entries, len(head.weight))
        width = hidden.shape[1]
        dtype = hidden.dtype if self._native else torch.float32
        # On CUDA a weight that is ready to be multiplied is so where it lies.
        self._weight = None
        if not (hidden.is_cuda and head.weight.is_cuda and head.weight.dtype == dtype):
            self._weight = hidden.new_empty((entries, width), dtype=dtype)
        self._rows = None
        if hidden.dtype != dtype:
            self._rows = hidden.new_empty((rows, width), dtype=dtype)
        self._product = hidden.new_empty(
            rows * stride_of(entries, hidden.device), dtype=torch.float32
        )
        self._tile, self._begin = head.weight[:0], 0

    def beside(self, hidden: torch.Tensor) -> Self:
        """The same head's logits of other states of this shape, in the same memory: what either
        returned is lost with the other's next call."""
        other = copy(self)
        other._hidden = hidden
        return other

    def load(self, begin: int, end: int) -> None:
        self._begin = begin
        part = self._head.weight[begin:end]
        if self._weight is None:
            self._tile = part
            return
        self._tile = self._weight[: end - begin]
        # Rounded to the compute dtype first, as the model's own weight would be.
        self._tile.copy_(part.to(self._hidden.dtype))

    def __call__(self, block: slice, out: torch.Tensor | None = None) -> torch.Tensor:
        return self._head.logits(self._multiply(self._hidden[block], out), self._begin)

    def _multiply(self, hidden: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        rows, entries = len(hidden), len(self._tile)
        if out is None:
            stride = stride_of(entries, hidden.device)
            out = self._product[: rows * stride].view(rows, stride)[:, :entries]
        if self._native:
            return torch.mm(hidden, self._tile.T, out_dtype=torch.float32, out=out)
        if self._rows is not None:
            hidden = self._rows[:rows].copy_(hidden)
        with bf16_matmul(self._lends_bf16):
            return torch.mm(hidden, self._tile.T, out=out)
