"""Turns a linear's weight into a format's tensors: plain round-to-nearest, no calibration of weights.

Scales span each group's largest magnitude as compressed-tensors' own do (`calculate_qparams`), and a
test compares what is stored, byte for byte.
"""

from collections.abc import Mapping

import torch

from scoremode.schemes.decoding.codes import mx_exponents, round_float
from scoremode.schemes.decoding.unpack import E2M1

Tensors = Mapping[str, torch.Tensor]
# Outputs in a word of AWQ's, from its lowest bits on.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def packed(weight: torch.Tensor, bits: int, group_size: int | None) -> Tensors:
    """Symmetric integers in int32 words: pack-quantized, values running on over words."""
    q, scale = _integers(weight, bits, group_size)
    return {
        "weight_packed": _pack(q.to(torch.int64) + (1 << (bits - 1)), bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor(weight.shape),
    }


def int8_by_channel(weight: torch.Tensor) -> Tensors:
    """int-quantized, a scale a row."""
    q, scale = _integers(weight, 8, None)
    return {"weight": q.to(torch.int8), "weight_scale": scale}


def float8_by_channel(weight: torch.Tensor) -> Tensors:
    """float-quantized e4m3, a scale a row."""
    scale = _nonzero((weight.float().abs().amax(1, keepdim=True) / 448).to(weight.dtype))
    q = round_float(weight.float() / scale.float(), 8).to(torch.float8_e4m3fn)
    return {"weight": q, "weight_scale": scale}


def float8_by_block(weight: torch.Tensor, size: int) -> Tensors:
    """e4m3 of transformers' fp8, a float32 scale for each `size` × `size` weights, all blocks whole."""
    blocks = weight.float().unflatten(1, (-1, size)).unflatten(0, (-1, size))
    scale = _nonzero(blocks.abs().amax((1, 3)) / 448)
    q = round_float(blocks / scale[:, None, :, None], 8).flatten(2).flatten(0, 1)
    return {"weight": q.to(torch.float8_e4m3fn), "weight_scale_inv": scale}


def qweight_by_output(weight: torch.Tensor, group_size: int) -> Tensors:
    """AWQ's `gemm` of 4 bits: words of eight outputs, zero points, float16 scales."""
    q, zero, scale = asymmetric(weight, group_size)

    def words(codes: torch.Tensor) -> torch.Tensor:
        return _pack(codes.long().unflatten(1, (-1, 8))[:, :, _AWQ_ORDER].flatten(1), 4)

    return {
        "qweight": words(q.flatten(1).T),
        "qzeros": words(zero.squeeze(2).T),
        "scales": scale.squeeze(2).T.contiguous().half(),
    }


def qweight_by_column(codes: torch.Tensor, scales: torch.Tensor) -> Tensors:
    """GPTQ's first format of 4 bits: words of eight inputs, from unsigned `codes` [O, I] about 8, whose
    zero points are stored less one; `scales` [groups, O]."""
    groups, rows = scales.shape
    size = codes.shape[1] // groups
    return {
        "qweight": _pack(codes, 4).T.contiguous(),
        "qzeros": _pack(torch.full((groups, rows), 7), 4),
        "scales": scales.half(),
        "g_idx": (torch.arange(codes.shape[1]) // size).int(),
    }


def asymmetric(
    weight: torch.Tensor, group_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """float32 codes 0 … 15 [O, groups, size], zero points and scales [O, groups, 1]; scales are what
    float16 holds."""
    grouped = weight.float().unflatten(1, (-1, group_size))
    low = grouped.amin(2, keepdim=True).clamp_max(0)
    high = grouped.amax(2, keepdim=True).clamp_min(0)
    scale = _nonzero(((high - low) / 15).half()).float()
    zero = (-low / scale).round().clamp(0, 15)
    return (grouped / scale + zero).round().clamp(0, 15), zero, scale


def symmetric_scale(weight: torch.Tensor) -> torch.Tensor:
    """float16 [O]: the scale of a row's 4-bit integers, which -8 … 7 span."""
    return _nonzero((weight.abs().amax(1) / 7.5).half())


def mxfp4(weight: torch.Tensor) -> Tensors:
    """e2m1 in groups of 32 under a power of two."""
    grouped = weight.float().unflatten(1, (-1, 32))
    exponent = mx_exponents(grouped.abs().amax(2), 4)
    scale = torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent - 127).unsqueeze(2)
    codes = _e2m1_codes(round_float(grouped / scale, 4).flatten(1))
    return {"weight_packed": _pairs(codes), "weight_scale": exponent.to(torch.uint8)}


def nvfp4(weight: torch.Tensor, whole: torch.Tensor | None = None) -> Tensors:
    """e2m1 in groups of 16 under a float8 scale, under one global scale that divides: `whole`, or the
    weight's own."""
    grouped = weight.float().unflatten(1, (-1, 16))
    whole = global_scale(weight) if whole is None else whole
    scale = (grouped.abs().amax(2) / 6 * whole).clamp_max(448).to(torch.float8_e4m3fn)
    scale = _nonzero(scale.float(), 0.125).to(torch.float8_e4m3fn)
    q = round_float(grouped / (scale.float() / whole).unsqueeze(2), 4)
    return {
        "weight_packed": _pairs(_e2m1_codes(q.flatten(1))),
        "weight_scale": scale,
        "weight_global_scale": whole,
    }


def global_scale(values: torch.Tensor) -> torch.Tensor:
    """float32 [1]: what takes the largest magnitude to the largest product of both small floats."""
    return (448 * 6 / values.float().abs().max()).reshape(1)


def _integers(
    weight: torch.Tensor, bits: int, group_size: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values float32 [O, I] in -2^(b-1) … 2^(b-1) - 1, whose whole range the scale spans."""
    grouped = weight.float().unflatten(1, (-1, group_size or weight.shape[1]))
    scale = _nonzero((grouped.abs().amax(2) / ((2**bits - 1) / 2)).to(weight.dtype))
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    q = (grouped / scale.float().unsqueeze(2)).round().clamp(low, high)
    return q.flatten(1), scale


def _nonzero(scale: torch.Tensor, instead: float | None = None) -> torch.Tensor:
    """Weights that are all zero have any scale but zero."""
    return scale.masked_fill(scale == 0, instead or torch.finfo(scale.dtype).eps)


def _pack(values: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 [O, ceil(I · bits / 32)] of unsigned values [O, I], lowest bits first."""
    if 32 % bits:
        # Values run on over words: bit by bit.
        values, bits = ((values.unsqueeze(2) >> torch.arange(bits)) & 1).flatten(1), 1
    per_word = 32 // bits
    padding = -values.shape[1] % per_word
    words = torch.nn.functional.pad(values, (0, padding)).unflatten(1, (-1, per_word))
    words = (words << (torch.arange(per_word) * bits)).sum(2)
    # As two's complement: the top bit of a word is its sign.
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _e2m1_codes(values: torch.Tensor) -> torch.Tensor:
    """uint8 codes of e2m1 values, sign in bit 3."""
    codes = torch.searchsorted(E2M1[:8], values.abs().contiguous())
    return (codes | values.signbit().long() << 3).to(torch.uint8)


def _pairs(codes: torch.Tensor) -> torch.Tensor:
    """Two codes a byte, the first in the low nibble."""
    return codes[:, 0::2] | codes[:, 1::2] << 4
