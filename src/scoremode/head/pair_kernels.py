"""One CUDA pass over two models' logits: their own sums, and those of `divergence.py`.

As in `kernels.py`, whose arithmetic each model's own sums share to the bit: a program a row, sums in
lanes. Every logit is read once, but for the first chunk of a row, whose mean difference is the pivot.
"""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from scoremode.head.kernels import (
    CHUNK,
    WARPS,
    fold,
    lanes_sum,
    load,
    moved,
    nothing,
    pack_of,
    spread,
    take,
)


def absorb_pairs(
    base: torch.Tensor,
    model: torch.Tensor,
    target: torch.Tensor,
    begin: int,
    is_first: bool,
    base_state: Any,
    model_state: Any,
    pair_state: Any,
) -> None:
    """Takes both models' logits of the entries `begin …` into the sums of their rows.

    - `base`, `model` float [R, E], rows contiguous, left as they are.
    - `target` int64 [R]: ids over the whole vocabulary.
    - `is_first`: these are the rows' first entries, from which the pivot is made.
    - `base_state`, `model_state`: as `absorb_rows` has them, the base's without `dot`.
    - `pair_state`: `pivot`, `base_delta`, `model_delta`, `growth` of those R rows, as `PairSums` has
      them.
    """
    assert base.shape == model.shape
    for z in (base, model):
        assert z.stride(1) == 1 or z.shape[1] == 1, "rows must be contiguous"
    (peak, total, _, top1, hit), (model_peak, model_total, dot, model_top1, model_hit) = (
        base_state, model_state,
    )  # fmt: skip
    states = (*base_state, *model_state, *pair_state)
    assert all(part.is_contiguous() for part in states if part is not None)
    if base.numel():
        _absorb_pairs[(len(base),)](
            base, base.stride(0), model, model.stride(0), base.shape[1],
            target.contiguous(), begin, int(is_first),
            peak, total, top1, hit,
            model_peak, model_total, model_total if dot is None else dot, model_top1, model_hit,
            *pair_state, with_dot=dot is not None, pack=pack_of(base, model), num_warps=WARPS,
        )  # fmt: skip


def add_apart(
    base: torch.Tensor, model: torch.Tensor, sums: Sequence[torch.Tensor], tv: torch.Tensor
) -> None:
    """Adds ½ Σ |p - q| over a tile's entries to the total variation of its rows.

    - `base`, `model` float [R, E], rows contiguous: logits, left as they are.
    - `sums`: `max` and `sum` of the base and of the model over the whole vocabulary, [R] each.
    - `tv` float64 [R].
    """
    assert base.shape == model.shape
    for z in (base, model):
        assert z.stride(1) == 1 or z.shape[1] == 1, "rows must be contiguous"
    assert all(part.is_contiguous() for part in (*sums, tv))
    if base.numel():
        _add_apart[(len(base),)](
            base, base.stride(0), model, model.stride(0), base.shape[1],
            *sums, tv, pack=pack_of(base, model), num_warps=WARPS,
        )  # fmt: skip


@triton.jit
def _add_apart(
    base, base_stride, model, model_stride, entries,
    peak, total, model_peak, model_total, tv,
    pack: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    base_line, model_line = base + row * base_stride, model + row * model_stride
    p_peak, p_factor = _normalizer(peak + row, total + row)
    q_peak, q_factor = _normalizer(model_peak + row, model_total + row)
    sums = spread(0.0)
    whole = entries // CHUNK * CHUNK
    for low in range(0, whole, CHUNK):
        x = load(base_line, low, entries, pack, False)
        y = load(model_line, low, entries, pack, False)
        sums += _apart(x, y, p_peak, p_factor, q_peak, q_factor)
    if whole < entries:
        x = load(base_line, whole, entries, pack, True)
        y = load(model_line, whole, entries, pack, True)
        sums += _apart(x, y, p_peak, p_factor, q_peak, q_factor)
    here = tl.sum(sums.to(tl.float64) * 0.5, 0)
    tl.store(tv + row, tl.load(tv + row) + here)


@triton.jit
def _apart(x, y, p_peak, p_factor, q_peak, q_factor):
    # Each product is rounded before the other is taken off, so that equal logits leave exactly 0.
    p = tl.fma(tl.exp(x - p_peak), p_factor, 0.0)
    q = tl.fma(tl.exp(y - q_peak), q_factor, 0.0)
    return lanes_sum(tl.abs(p - q))


@triton.jit
def _normalizer(peak, total):
    """What is taken off a row's logits, and the factor of their exponentials, float32."""
    top = tl.load(peak)
    return tl.where(top == float("-inf"), 0.0, top), (1.0 / tl.load(total)).to(tl.float32)


@triton.jit(do_not_specialize=["begin", "is_first"])
def _absorb_pairs(
    base, base_stride, model, model_stride, entries, target, begin, is_first,
    peak, total, top1, hit,
    model_peak, model_total, model_dot, model_top1, model_hit,
    pivot, base_delta, model_delta, growth,
    with_dot: tl.constexpr, pack: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    base_line, model_line = base + row * base_stride, model + row * model_stride
    if is_first != 0:
        centre = -_mean(base_line, model_line, entries, pack)
        tl.store(pivot + row, centre.to(tl.float64))
    else:
        centre = tl.load(pivot + row).to(tl.float32)
    p_lanes, q_lanes = nothing(), nothing()
    sums = spread(0.0), spread(0.0), spread(0.0)
    whole = entries // CHUNK * CHUNK
    for low in range(0, whole, CHUNK):
        x = load(base_line, low, entries, pack, False)
        y = load(model_line, low, entries, pack, False)
        p_lanes, q_lanes, sums = _take_both(x, y, low, centre, p_lanes, q_lanes, sums, with_dot)
    if whole < entries:
        x = load(base_line, whole, entries, pack, True)
        y = load(model_line, whole, entries, pack, True)
        p_lanes, q_lanes, sums = _take_both(x, y, whole, centre, p_lanes, q_lanes, sums, with_dot)
    p_deltas, q_deltas, growths = sums
    p_factors, p_scale = fold(
        row, base_line, entries, target, begin, peak, total, total, top1, hit,
        p_lanes, False, pack,
    )  # fmt: skip
    q_factors, q_scale = fold(
        row, model_line, entries, target, begin,
        model_peak, model_total, model_dot, model_top1, model_hit,
        q_lanes, with_dot, pack,
    )  # fmt: skip
    here = tl.sum(moved(p_deltas.to(tl.float64), p_factors), 0)
    tl.store(base_delta + row, moved(tl.load(base_delta + row), p_scale) + here)
    here = tl.sum(moved(q_deltas.to(tl.float64), q_factors), 0)
    tl.store(model_delta + row, moved(tl.load(model_delta + row), q_scale) + here)
    here = tl.sum(growths.to(tl.float64) * p_factors, 0)
    tl.store(growth + row, tl.load(growth + row) * p_scale + here)


@triton.jit
def _take_both(x, y, low, centre, p_lanes, q_lanes, sums, with_dot: tl.constexpr):
    """A chunk into the lanes: of each model's own, and of Σ p·Δ, Σ q·Δ and Σ p·expm1(-Δ)."""
    p_lanes, p_scales, p = take(x, low, p_lanes, False)
    q_lanes, q_scales, q = take(y, low, q_lanes, with_dot)
    p_deltas, q_deltas, growths = sums
    minus_delta = (y - x) + centre
    # -inf of both is an entry that neither has any probability for; a NaN logit is in its own
    # model's sums already.
    minus_delta = tl.where(minus_delta != minus_delta, 0.0, minus_delta)
    p_products, q_products = p * minus_delta, q * minus_delta
    # 0 · ∞ is an entry without probability.
    p_products = tl.where(p_products != p_products, 0.0, p_products)
    q_products = tl.where(q_products != q_products, 0.0, q_products)
    p_deltas = moved(p_deltas, p_scales) - lanes_sum(p_products)
    q_deltas = moved(q_deltas, q_scales) - lanes_sum(q_products)
    # Not so here: where the base alone rules an entry out the growth is not to be had from p, and
    # what is not finite has finish() go the other way.
    growths = growths * p_scales + lanes_sum(p * expm1(minus_delta))
    return p_lanes, q_lanes, (p_deltas, q_deltas, growths)


@triton.jit
def expm1(x):
    """e^x - 1 float32, to 4e-7 of itself.

    Below 1/2 by the polynomial of least relative error that begins with x (3e-9, of degree 7), since
    the subtraction would cost digits there. An overflow is infinite.
    """
    series = tl.fma(x, 0.000199931834, 0.00139974465)
    series = tl.fma(x, series, 0.00833307207)
    series = tl.fma(x, series, 0.0416653156)
    series = tl.fma(x, series, 0.166666687)
    series = tl.fma(x, series, 0.50000006)
    near = tl.fma(x * x, series, x)
    return tl.where(tl.abs(x) < 0.5, near, tl.exp(x) - 1.0)


@triton.jit
def _mean(base_line, model_line, entries, pack: tl.constexpr):
    """The mean of the finite differences of the first chunk that has any; 0 where none has."""
    count, total = tl.full((), 0.0, tl.float32), tl.full((), 0.0, tl.float32)
    low = tl.full((), 0, tl.int32)
    while (count == 0.0) & (low < entries):
        apart = load(model_line, low, entries, pack, True) - load(
            base_line, low, entries, pack, True
        )
        is_finite = tl.abs(apart) < float("inf")
        total = tl.sum(lanes_sum(tl.where(is_finite, apart, 0.0)), 0)
        count = tl.sum(lanes_sum(tl.where(is_finite, 1.0, 0.0)), 0)
        low += CHUNK
    return tl.div_rn(total, tl.maximum(count, 1.0))
