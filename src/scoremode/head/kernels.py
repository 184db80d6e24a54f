"""One CUDA pass over a block of logits: each logit is read once, nothing as wide is written.

One program takes one row. Its threads share out the entries of a tile, and each keeps a maximum and
float32 sums of its own, so that nothing is exchanged before the tile's end; there they are added up in
float64 and the row's running state goes on from them, in the same launch. No program shares a row and
nothing is accumulated atomically, so the bits depend neither on timing nor on which rows come together.
`RowSums.consume` is the plain-torch twin, and the tests hold both to the same float64 truth.

What one thread keeps is a lane here. Of a chunk of entries each lane has `DEPTH`, in groups of `pack`
neighbours: 4, one load of 16 bytes, where the rows are aligned to that, and else 1.
"""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false

from typing import Any

import torch
import triton
import triton.language as tl

WARPS = 4
LANES = tl.constexpr(32 * WARPS)
DEPTH = tl.constexpr(16)
CHUNK = tl.constexpr(LANES.value * DEPTH.value)


def absorb_rows(z: torch.Tensor, target: torch.Tensor, begin: int, state: Any) -> None:
    """Takes logits `z` of the entries `begin …` into the sums of their rows.

    - `z` float [R, E], rows contiguous, left as it is.
    - `target` int64 [R]: ids over the whole vocabulary.
    - `state`: `max`, `sum`, `dot` (or None), `top1`, `target` of those R rows, as `RowSums` has them.
    """
    assert z.stride(1) == 1 or z.shape[1] == 1, "rows must be contiguous"
    peak, total, dot, top1, hit = state
    assert all(part.is_contiguous() for part in state if part is not None)
    if z.numel():
        _absorb_rows[(len(z),)](
            z, z.stride(0), z.shape[1], target.contiguous(), begin,
            peak, total, total if dot is None else dot, top1, hit,
            with_dot=dot is not None, pack=pack_of(z), num_warps=WARPS,
        )  # fmt: skip


def pack_of(*logits: torch.Tensor) -> int:
    """Entries of a group of neighbours, for rows that lie as those of all of `logits` do."""
    # That a stride is a multiple of 16 is what Triton takes notice of.
    is_aligned = all(z.data_ptr() % 16 == 0 and z.stride(0) % 16 == 0 for z in logits)
    return 4 if is_aligned else 1


@triton.jit(do_not_specialize=["begin"])
def _absorb_rows(
    z, stride, entries, target, begin, peak, total, dot, top1, hit,
    with_dot: tl.constexpr, pack: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    line = z + row * stride
    lanes = nothing()
    whole = entries // CHUNK * CHUNK
    for low in range(0, whole, CHUNK):
        lanes, _, _ = take(load(line, low, entries, pack, False), low, lanes, with_dot)
    if whole < entries:
        lanes, _, _ = take(load(line, whole, entries, pack, True), whole, lanes, with_dot)
    fold(
        row, line, entries, target, begin, peak, total, dot, top1, hit, lanes, with_dot, pack
    )  # fmt: skip


@triton.jit
def spread(value):
    """`value` float32 in every lane."""
    return tl.full((LANES,), value, tl.float32)


@triton.jit
def nothing():
    """Lanes before the first chunk: maximum, sum, weighted sum, and the chunk of the maximum."""
    return spread(float("-inf")), spread(0.0), spread(0.0), tl.full((LANES,), 0, tl.int32)


@triton.jit
def places_of(pack: tl.constexpr):
    """The place of each entry of a chunk, [LANES, DEPTH / pack, pack].

    In this order of axes Triton gives each thread one lane, and all of it.
    """
    lane = tl.arange(0, LANES)[:, None, None] * pack
    group = tl.arange(0, DEPTH // pack)[None, :, None] * (LANES * pack)
    return lane + group + tl.arange(0, pack)[None, None, :]


@triton.jit
def load(line, low, entries, pack: tl.constexpr, is_last: tl.constexpr):
    """float32 [LANES, DEPTH / pack, pack] from `low` on, -inf beyond the last entry."""
    columns = low + places_of(pack)
    if is_last:
        x = tl.load(line + columns, mask=columns < entries, other=float("-inf"))
    else:
        x = tl.load(line + columns)
    return x.to(tl.float32)


@triton.jit
def lanes_sum(x):
    return tl.sum(tl.sum(x, 2), 1)


@triton.jit
def take(x, low, lanes, with_dot: tl.constexpr):
    """A chunk into the lanes; also the factor of what they had, and exp(x - peak)."""
    peaks, totals, dots, found = lanes
    tops = tl.max(tl.max(x, 2), 1)
    # Never true of a NaN, which gets into the sum by its exponential and stays there.
    is_better = tops > peaks
    found = tl.where(is_better, low, found)
    new = tl.where(is_better, tops, peaks)
    # As long as every logit is -inf there is nothing to subtract.
    pivots = tl.where(new == float("-inf"), 0.0, new)
    shifts = peaks - pivots
    scales = tl.exp(shifts)
    offsets = x - pivots[:, None, None]
    powers = tl.exp(offsets)
    if with_dot:
        # -inf times 0 is a probability of zero, which adds nothing.
        products = tl.where(offsets == float("-inf"), 0.0, offsets * powers)
        shifted = dots + totals * tl.where(shifts == float("-inf"), 0.0, shifts)
        dots = tl.fma(scales, shifted, lanes_sum(products))
    # Said to be one rounding: it must be the same in every kernel that this is a part of.
    totals = tl.fma(totals, scales, lanes_sum(powers))
    return (new, totals, dots, found), scales, powers


@triton.jit
def moved(sums, factors):
    """`sums` about another maximum. An infinite one without any probability left adds nothing."""
    result = sums * factors
    return tl.where(factors == 0.0, 0.0, result)


@triton.jit
def locate(line, low, entries, value, pack: tl.constexpr):
    """The first place of `value` in the chunk from `low` on."""
    x = load(line, low, entries, pack, True)
    places = tl.where(x == value, low + places_of(pack), 0x7FFFFFFF)
    return tl.min(tl.min(tl.min(places, 2), 1), 0)


@triton.jit
def fold(
    row, line, entries, target, begin, peak, total, dot, top1, hit,
    lanes, with_dot: tl.constexpr, pack: tl.constexpr,
):  # fmt: skip
    """The lanes into the row's state; the factors float64 of each lane and of what was there."""
    peaks, totals, dots, found = lanes
    # Every thread reads what one of them writes below: all reads come before the first exchange.
    old, before, before_dot = tl.load(peak + row), tl.load(total + row), tl.load(dot + row)
    best = tl.max(peaks, 0)
    if best > old:
        # Each lane knows the chunk in which it met its maximum first, and the first of all lanes that
        # met the row's has its first entry in it.
        chunk = tl.min(tl.where(peaks == best, found, 0x7FFFFFFF), 0)
        tl.store(top1 + row, begin + locate(line, chunk, entries, best, pack).to(tl.int64))
    new = tl.where(best > old, best, old)
    pivot = tl.where(new == float("-inf"), 0.0, new)
    shifts = peaks - pivot
    factors = tl.exp(shifts).to(tl.float64)
    shift = old.to(tl.float64) - pivot.to(tl.float64)
    scale = tl.exp(shift)
    if with_dot:
        about = totals * tl.where(shifts == float("-inf"), 0.0, shifts)
        here = tl.sum((dots + about).to(tl.float64) * factors, 0)
        there = before_dot + before * tl.where(shift == float("-inf"), 0.0, shift)
        tl.store(dot + row, there * scale + here)
    # As in `take`, each product rounded before it is added to another.
    here = tl.sum(tl.fma(totals.to(tl.float64), factors, 0.0), 0)
    tl.store(total + row, tl.fma(before, scale, here))
    tl.store(peak + row, new)
    goal = tl.load(target + row) - begin
    if (goal >= 0) & (goal < entries):
        tl.store(hit + row, tl.load(line + goal).to(tl.float32))
    return factors, scale
