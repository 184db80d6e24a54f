"""The CUDA pass over a block of logits: each logit is read once, nothing as wide is written.

One program takes one row through tiles of the vocabulary in order, with the running maximum in
float32 and the sums in float64 over float32 tile sums. No program shares a row and nothing is
accumulated atomically, so the bits do not depend on timing. `RowSums.consume` is the plain-torch
twin, and the test holds both to the same float64 truth.
"""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl

__all__ = ["reduce_rows"]

_TILE = 4096
_WARPS = 8


def reduce_rows(
    z: torch.Tensor, target: torch.Tensor, *, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """Maximum, sum, weighted sum, argmax and target's logit of each row of `z`.

    - `z` float [R, E], rows contiguous.
    - `target` int64 [R]: columns of `z`; one outside of it gives NaN.
    - returns `max` float32 [R], `Σ exp(z - max)` float64 [R], `Σ (z - max)·exp(z - max)` float64 [R]
      or None without `entropy`, `argmax` int64 [R] (the first of equal entries), `z[target]`
      float32 [R].
    """
    rows, entries = z.shape
    assert z.stride(1) == 1, "rows must be contiguous"
    peak = z.new_empty(rows, dtype=torch.float32)
    total = z.new_empty(rows, dtype=torch.float64)
    dot = z.new_empty(rows, dtype=torch.float64)
    top1 = z.new_empty(rows, dtype=torch.int64)
    hit = z.new_empty(rows, dtype=torch.float32)
    if rows:
        _reduce_rows[(rows,)](
            z, target, peak, total, dot, top1, hit, entries, z.stride(0),
            with_dot=entropy, tile=_TILE, num_warps=_WARPS,
        )  # fmt: skip
    return peak, total, dot if entropy else None, top1, hit


@triton.jit
def _reduce_rows(
    z, target, peak, total, dot, top1, hit, entries, stride,
    with_dot: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    line = z + row * stride
    largest = tl.full((), float("-inf"), tl.float32)
    where = tl.full((), 0, tl.int64)
    power_sum = tl.full((), 0.0, tl.float64)
    dot_sum = tl.full((), 0.0, tl.float64)
    for low in range(0, entries, tile):
        columns = low + tl.arange(0, tile)
        x = tl.load(line + columns, mask=columns < entries, other=float("-inf")).to(tl.float32)
        # tl.max passes NaN by; the exponential below takes it into the sum, where it stays.
        tile_peak, tile_where = tl.max(x, 0, return_indices=True)
        where = tl.where(tile_peak > largest, low + tile_where, where)
        new = tl.maximum(largest, tile_peak)
        # As long as every logit is -inf there is nothing to subtract.
        pivot = tl.where(new == float("-inf"), 0.0, new)
        shift = (largest - pivot).to(tl.float64)
        scale = tl.exp(shift)
        offset = x - pivot
        power = tl.exp(offset)
        if with_dot:
            # -inf times 0 is a probability of zero, which adds nothing.
            product = tl.where(offset == float("-inf"), 0.0, offset * power)
            moved = dot_sum + power_sum * tl.where(shift == float("-inf"), 0.0, shift)
            dot_sum = scale * moved + tl.sum(product, 0).to(tl.float64)
        power_sum = power_sum * scale + tl.sum(power, 0).to(tl.float64)
        largest = new
    tl.store(peak + row, largest)
    tl.store(total + row, power_sum)
    tl.store(dot + row, dot_sum)
    tl.store(top1 + row, where)
    goal = tl.load(target + row)
    inside = (goal >= 0) & (goal < entries)
    value = tl.load(line + tl.where(inside, goal, 0)).to(tl.float32)
    tl.store(hit + row, tl.where(inside, value, float("nan")))
