"""Operands of a product, and the sums of it in plain torch: scales, bias, one rounding.

A scale is applied in float32 to the sum that it belongs to: the weight's, then the input's. Sums of
parts under scales of their own are added up in order.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from scoremode.head.project import bf16_matmul, cpu_has_instructions
from scoremode.lib.fallback import attempt
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Quantized

# Rows of sums that stay in a core's cache while groups are added up.
_CPU_ROWS = 256

# x [N, I] and weight [O, I] to float32 [N, O], in the memory given or its own.
Matmul = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Operands:
    """Both sides of a product, and what its sums become.

    - `x` [N, I] and `weight` [O, I]: codes and their scales.
    - `scratch`: memory for the sums of parts.
    - `bias` [O], added to the sums under their scales; `dtype`, which the result is rounded to once.
    """

    x: Quantized
    weight: Quantized
    scratch: Scratch
    bias: torch.Tensor | None = None
    dtype: torch.dtype = torch.float32


def by_parts(
    operands: Operands, step: int, groups: tuple[int | None, int | None], matmul: Matmul
) -> torch.Tensor:
    """float32 [N, O]: the sums over each `step` columns under their scales, added up in order.

    `groups`: columns of one scale of `x` and of `weight`, None for all.
    """
    x, weight = operands.x, operands.weight
    (count, columns), outputs, device = x.codes.shape, len(weight.codes), x.codes.device
    x_group, weight_group = (group or columns for group in groups)
    rows = count if x.codes.is_cuda else _CPU_ROWS
    result = torch.empty(count, outputs, dtype=torch.float32, device=device)
    for low in range(0, count, rows):
        block = slice(low, min(low + rows, count))
        x_scale = x.scale if len(x.scale) == 1 else x.scale[block]
        sums = operands.scratch.get("sums", tuple(result[block].shape), torch.float32, device)
        for begin in range(0, columns, step):
            part = slice(begin, begin + step)
            matmul(x.codes[block, part], weight.codes[:, part], sums)
            gx, gw = begin // x_group, begin // weight_group
            _scaled(sums, x_scale[:, gx : gx + 1], weight.scale[:, gw : gw + 1])
            if begin:
                result[block].add_(sums)
            else:
                result[block].copy_(sums)
    return result


def finished(sums: torch.Tensor, operands: Operands) -> torch.Tensor:
    """Applies to `sums` float32 or int32 [N, O] the scales, [N or 1, 1] and [O or 1, 1], and the bias.

    Rounds once. Float32 sums are used up.
    """
    x_scale, weight_scale = operands.x.scale, operands.weight.scale
    if sums.is_cuda:
        out = sums if sums.dtype == operands.dtype else torch.empty_like(sums, dtype=operands.dtype)

        def run() -> None:
            from scoremode.engines.torch.matmul.kernels import finish_sums

            finish_sums(sums, x_scale, weight_scale, operands.bias, out)

        if attempt("product epilogue", sums.device, run):
            return out
    return rounded(_scaled(sums.float(), x_scale, weight_scale), operands)


def add_minimums(y: torch.Tensor, operands: Operands) -> torch.Tensor:
    """Adds to `y` float32 [N, O], in place, each minimum of the weight times the sum of what the input
    has in its group."""
    sums, minimum = operands.x.sums, operands.weight.minimum
    assert sums is not None and minimum is not None
    return y.addmm_(sums, minimum.T)


def rounded(y: torch.Tensor, operands: Operands) -> torch.Tensor:
    """Adds the bias to `y` float32 [N, O], which is used up, and rounds once."""
    if operands.bias is not None:
        y += operands.bias.float()
    return y.to(operands.dtype)


def _scaled(sums: torch.Tensor, x_scale: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    """Multiplies `sums` [N, O] by scales [N or 1, 1] and [O or 1, 1] in place."""
    return sums.mul_(weight_scale.view(1, -1)).mul_(x_scale)


def float_mm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    if x.dtype != torch.float32:
        return torch.mm(x, weight.T, out_dtype=torch.float32, out=out)
    # Exact for codes, which bfloat16 holds.
    with bf16_matmul(cpu_has_instructions(torch.bfloat16)):
        return torch.mm(x, weight.T, out=out)


def float16_mm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """float32 [N, O] of values that float16 holds, in any dtype that holds them."""
    if x.dtype == torch.float16:
        return torch.mm(x, weight.T, out_dtype=torch.float32)
    return torch.mm(x, weight.T)


def float8_mm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    one = torch.ones((), device=x.device)
    product = _scaled_mm(x, weight, one, one, torch.float32)
    return product if out is None else out.copy_(product)


def float8_mm_scaled(operands: Operands) -> torch.Tensor:
    """Multiplies without a bias, the scales, a tensor's or a row's, applied in the kernel's epilogue:
    [N, O], rounded once."""
    x, weight = operands.x, operands.weight
    x_scale, weight_scale = x.scale, weight.scale.view(1, -1)
    if x_scale.numel() == weight_scale.numel() == 1:
        x_scale, weight_scale = x_scale.view(()), weight_scale.view(())
    else:
        x_scale = x_scale.expand(len(x.codes), 1).contiguous()
        weight_scale = weight_scale.expand(1, len(weight.codes)).contiguous()
    return _scaled_mm(x.codes, weight.codes, x_scale, weight_scale, operands.dtype)


def float8_mm_blocks(operands: Operands) -> torch.Tensor:
    """Multiplies into bfloat16 [N, O] without a bias: inputs under a scale for 128 columns, weights
    under one for a block of 128 × 128, both applied in the kernel to each 128 columns' sum."""
    from torch.nn.functional import ScalingType, scaled_mm

    x, weight = operands.x, operands.weight
    codes, x_scale = x.codes, x.scale
    # The kernel asks for rows by four, the scales of x column by column, and four columns of a block's.
    if more := -len(codes) % 4:
        codes = functional.pad(codes.view(torch.uint8), (0, 0, 0, more)).view(codes.dtype)
        x_scale = functional.pad(x_scale, (0, 0, 0, more))
    of_blocks = weight.scale[::128]
    of_blocks = functional.pad(of_blocks, (0, -of_blocks.shape[1] % 4))
    product = scaled_mm(
        codes,
        weight.codes.T,
        x_scale.T.contiguous().T,
        ScalingType.BlockWise1x128,
        of_blocks.T,
        ScalingType.BlockWise128x128,
        output_dtype=torch.bfloat16,
    )
    return product[: len(x.codes)]


def _scaled_mm(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    return torch.ops.aten._scaled_mm(
        x, weight.T, scale_a=x_scale, scale_b=weight_scale, out_dtype=dtype, use_fast_accum=False
    )


def int_mm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """int32 [N, O]."""
    if x.is_cuda and len(x) <= 16:
        # CUDA's kernel wants more than 16 rows.
        padded = x.new_zeros(32, x.shape[1])
        padded[: len(x)] = x
        return torch.ops.aten._int_mm(padded, weight.T)[: len(x)]
    return torch.ops.aten._int_mm(x, weight.T)
