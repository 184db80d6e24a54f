"""Triton kernels for the elementwise parts of a decoder layer, with the roundings of the eager ops.

Run as the library writes them, a norm, a gated product and a rotation are some twenty passes over
memory. Here each is one pass that reads its inputs once and writes its result once. An intermediate
that the eager ops round to the compute dtype is rounded here too, products and sums are never
contracted to one operation where eager has two, and the exponential is CUDA's own. So only the order of
a norm's float32 sum differs from eager. `proofs.py` has the same formulas in plain torch; of the sum
of what a token gets from its experts, `weights/experts.py`.

No program shares an output with another and nothing is tuned at run time: the bits are the same on
every run.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false


# Numbers of the formulas in `proofs.py`.
NormForm = {"rounded": 0, "float": 1, "plus one": 2}
Activation = {"silu": 0, "gelu tanh": 1, "gelu": 2, "swish, up plus one": 3}

# As nvcc compiles eager's kernels: no flushing of subnormals. Contractions are written where it makes
# them.
_EXACT = {"enable_fp_fusion": False, "enable_reflect_ftz": False}
# Elements of a program: 16 a thread, two loads of 16 bytes in a short dtype.
_NORM_TILE = 4096
_GATE_TILE = 2048
_HEADS = 16
_SUM_TILE = 1024


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    form: int,
    residual: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of `x` + `residual` over the last axis, and that sum (`x` itself without `residual`).

    - `x` [..., D] and `residual` of the same shape, bfloat16 or float16, entries of a row adjacent.
    - `weight` [D], any float dtype.
    - `form`: one of `NormForm`.
    - returns two tensors of the shape and dtype of `x`, strides in the order of its own.
    """
    # Rows in the order in which they lie in memory, so that no input is copied.
    order = [*sorted(range(x.dim() - 1), key=lambda d: -x.stride(d)), x.dim() - 1]
    ordered = x.permute(order)
    rows, width = ordered.flatten(0, -2), x.shape[-1]
    out = x.new_empty(ordered.shape)
    others, sums = rows, out
    if residual is not None:
        others, sums = residual.permute(order).flatten(0, -2), torch.empty_like(out)
    tile = triton.next_power_of_2(width)
    tile_rows = max(1, _NORM_TILE // tile)
    if len(rows):
        _rms_norm[(triton.cdiv(len(rows), tile_rows),)](
            rows, others, weight, out, sums, len(rows), width,
            rows.stride(0), others.stride(0), 1 / width, eps,
            form=form, adds=residual is not None, tile_rows=tile_rows, tile=tile,
            num_warps=min(16, max(4, tile_rows * tile // 512)), **_EXACT,
        )  # fmt: skip
    inverse = [order.index(d) for d in range(x.dim())]
    return out.permute(inverse), x if residual is None else sums.permute(inverse)


@triton.jit(do_not_specialize=["rows"])
def _rms_norm(
    x, residual, weight, out, total, rows, width,
    x_stride, residual_stride, share, eps,
    form: tl.constexpr, adds: tl.constexpr, tile_rows: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)[:, None]
    column = tl.arange(0, tile)[None, :]
    inside = (row < rows) & (column < width)
    short = tl.load(x + row * x_stride + column, mask=inside, other=0.0)
    if adds:
        other = tl.load(residual + row * residual_stride + column, mask=inside, other=0.0)
        short = (other.to(tl.float32) + short.to(tl.float32)).to(short.dtype)
        tl.store(total + row * width + column, short, mask=inside)
    exact = short.to(tl.float32)
    # Eager's mean on CUDA is the sum times the reciprocal too.
    mean = tl.sum(exact * exact, 1) * share
    unit = exact * tl.rsqrt(mean + eps)[:, None]
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    if form == 0:
        unit = unit.to(short.dtype).to(tl.float32)
    if form == 2:
        w = 1.0 + w
    tl.store(out + row * width + column, (w * unit).to(short.dtype), mask=inside)


def gate(
    gated: torch.Tensor,
    up: torch.Tensor,
    activation: int,
    out: torch.Tensor | None = None,
    *,
    limit: float | None = None,
    alpha: float = 1.0,
) -> torch.Tensor:
    """activation(gated) · up, each rounded to their dtype; into `out`, which may be `gated`.

    - `gated`, `up` [..., I], bfloat16 or float16.
    - `activation`: one of `Activation`; the last one's is gated · sigmoid(alpha · gated), and 1 is
      added to `up`.
    - `limit`: what `gated` is at most, and `up` between it and its negative, before all else.
    """
    out = gated.new_empty(gated.shape) if out is None else out
    rows, ups, outs = gated.flatten(0, -2), up.flatten(0, -2), out.view(-1, out.shape[-1])
    width = gated.shape[-1]
    if len(rows):
        _gate[(len(rows), triton.cdiv(width, _GATE_TILE))](
            rows, ups, outs, width, *rows.stride(), *ups.stride(), outs.stride(0),
            limit or 0.0, alpha,
            activation=activation, clamped=limit is not None, on_gpu=gated.is_cuda,
            tile=_GATE_TILE, num_warps=4, **_EXACT,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["limit", "alpha"])
def _gate(
    gated, up, out, width, gated_stride, gated_step, up_stride, up_step, out_stride, limit, alpha,
    activation: tl.constexpr, clamped: tl.constexpr, on_gpu: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = column < width
    short = tl.load(gated + row * gated_stride + column * gated_step, mask=inside, other=0.0)
    factor = tl.load(up + row * up_stride + column * up_step, mask=inside, other=0.0)
    x, factor = short.to(tl.float32), factor.to(tl.float32)
    if clamped:
        # NaN is not greater, and stays.
        x = tl.where(x > limit, limit, x)
        factor = tl.where(factor > limit, limit, factor)
        factor = tl.where(factor < -limit, -limit, factor)
    if activation == 0:
        acted = tl.div_rn(x, 1.0 + _exp(-x, on_gpu))
    elif activation == 1:
        # √(2/π) and the contraction that nvcc makes of eager's sum.
        inner = 0.7978845608028654 * tl.fma(0.044715, x * x * x, x)
        acted = 0.5 * x * (1.0 + _tanh(inner, on_gpu))
    elif activation == 2:
        acted = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        steeper = (x * alpha).to(short.dtype).to(tl.float32)
        share = tl.div_rn(1.0, 1.0 + _exp(-steeper, on_gpu))
        acted = x * share.to(short.dtype).to(tl.float32)
        factor = (factor + 1.0).to(short.dtype).to(tl.float32)
    acted = acted.to(short.dtype).to(tl.float32)
    tl.store(out + row * out_stride + column, (acted * factor).to(short.dtype), mask=inside)


@triton.jit
def _exp(x, on_gpu: tl.constexpr):
    # tl.exp is an approximation on a GPU; the interpreter knows no other.
    return libdevice.exp(x) if on_gpu else tl.exp(x)


@triton.jit
def _tanh(x, on_gpu: tl.constexpr):
    return libdevice.tanh(x) if on_gpu else 2.0 * tl.sigmoid(2.0 * x) - 1.0


def rotate(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, rounded: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys turned by their positions, halves of a head paired; in new memory.

    - `q` [B, H, T, d], `k` [B, H', T, d], bfloat16 or float16, entries of a head adjacent.
    - `cos`, `sin` [B or 1, T, d], bfloat16, float16 or float32.
    - `rounded`: both products are rounded to the dtype of `q`, not only their sum.
    - returns tensors like `q` and `k`, strides in the order of theirs.
    """
    batch, _, length, width = q.shape
    cos, sin = cos.expand(batch, -1, -1), sin.expand(batch, -1, -1)
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    if q.numel():
        _rotate[(batch * length,)](
            q, k, cos, sin, q_out, k_out, length, q.shape[1], k.shape[1],
            *q.stride()[:3], *k.stride()[:3], *q_out.stride()[:3], *k_out.stride()[:3],
            *cos.stride()[:2], *sin.stride()[:2],
            half=width // 2, rounded=rounded, heads=_HEADS,
            tile=triton.next_power_of_2(width // 2), num_warps=4, **_EXACT,
        )  # fmt: skip
    return q_out, k_out


@triton.jit(do_not_specialize=["length", "q_heads", "k_heads"])
def _rotate(
    q, k, cos, sin, q_out, k_out, length, q_heads, k_heads,
    q_b, q_h, q_t, k_b, k_h, k_t, qo_b, qo_h, qo_t, ko_b, ko_h, ko_t, cos_b, cos_t, sin_b, sin_t,
    half: tl.constexpr, rounded: tl.constexpr, heads: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    b = (tl.program_id(0) // length).to(tl.int64)
    t = (tl.program_id(0) % length).to(tl.int64)
    column = tl.arange(0, tile)[None, :]
    cos += b * cos_b + t * cos_t + column
    sin += b * sin_b + t * sin_t + column
    inside = column < half
    c1 = tl.load(cos, mask=inside, other=0.0).to(tl.float32)
    c2 = tl.load(cos + half, mask=inside, other=0.0).to(tl.float32)
    s1 = tl.load(sin, mask=inside, other=0.0).to(tl.float32)
    s2 = tl.load(sin + half, mask=inside, other=0.0).to(tl.float32)
    q += b * q_b + t * q_t
    k += b * k_b + t * k_t
    q_out += b * qo_b + t * qo_t
    k_out += b * ko_b + t * ko_t
    for head in range(0, q_heads, heads):
        _turn(q, q_out, q_h, qo_h, head, q_heads, c1, c2, s1, s2, half, rounded, heads, tile)
    for head in range(0, k_heads, heads):
        _turn(k, k_out, k_h, ko_h, head, k_heads, c1, c2, s1, s2, half, rounded, heads, tile)


@triton.jit
def _turn(
    x, out, x_h, out_h, first, count, c1, c2, s1, s2,
    half: tl.constexpr, rounded: tl.constexpr, heads: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    # In 64 bits: a head's stride may be all positions of a long window.
    head = first + tl.arange(0, heads)[:, None].to(tl.int64)
    column = tl.arange(0, tile)[None, :]
    inside = (head < count) & (column < half)
    x += head * x_h + column
    out += head * out_h + column
    low = tl.load(x, mask=inside, other=0.0)
    high = tl.load(x + half, mask=inside, other=0.0)
    a, b = low.to(tl.float32), high.to(tl.float32)
    ac, bs, bc, a_s = a * c1, -b * s1, b * c2, a * s2
    if rounded:
        ac, bs = ac.to(low.dtype).to(tl.float32), bs.to(low.dtype).to(tl.float32)
        bc, a_s = bc.to(low.dtype).to(tl.float32), a_s.to(low.dtype).to(tl.float32)
    tl.store(out, (ac + bs).to(low.dtype), mask=inside)
    tl.store(out + half, (bc + a_s).to(low.dtype), mask=inside)


def weighted_sums(
    out: torch.Tensor, outputs: torch.Tensor, places: torch.Tensor, weights: torch.Tensor
) -> None:
    """Fills `out` [N, D] with each token's weighted outputs, added up in float32 and rounded once.

    - `outputs` [N·K, D]: of all experts, bfloat16 or float16 like `out`, contiguous.
    - `places` int64 [N, K]: the rows of a token's choices, in the order in which they are added.
    - `weights` [N, K]: float32, or of the dtype of `outputs`; each product is rounded to it.
    """
    width = out.shape[-1]
    if len(out):
        _weighted_sums[(len(out), triton.cdiv(width, _SUM_TILE))](
            out, outputs, places.contiguous(), weights.contiguous(), width,
            choices=places.shape[1], tile=_SUM_TILE, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip


@triton.jit
def _weighted_sums(out, outputs, places, weights, width, choices: tl.constexpr, tile: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = column < width
    total = tl.zeros((tile,), tl.float32)
    for k in tl.static_range(choices):
        row = tl.load(places + token * choices + k) * width
        weight = tl.load(weights + token * choices + k)
        value = tl.load(outputs + row + column, mask=inside, other=0.0).to(tl.float32)
        total += (value * weight.to(tl.float32)).to(weight.dtype).to(tl.float32)
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=inside)
