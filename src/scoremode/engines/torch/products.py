"""Products of two quantized matrices: natively where the device has it, else emulated exactly.

Both sides are codes times scales. Codes are multiplied and summed, and scales are applied in float32 to
the sums: of a whole row, or of each group of columns where a side has a scale a group. So

    y[n, o] = Σ over groups g of  sx[n, g] · sw[o, g] · Σ over columns i of g of  cx[n, i] · cw[o, i]

Integer sums are exact, natively in int32 or emulated in float32 over so few columns that none passes
2^24. Products of float codes are exact in float32, since each code is exact in bfloat16, and their sums
are rounded as any float32 matmul's are. A native float8 product is what the device's own instructions
make of it: on Hopper they keep about 14 bits of a sum between two float32 additions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch

from scoremode.engines.torch.device import Device
from scoremode.head.lending import bf16_matmul, cpu_has_instructions
from scoremode.schemes.base import Scratch
from scoremode.schemes.codes import Codes, Quantized

__all__ = ["Product", "choose_product"]

# Rows of sums that stay in a core's cache while groups are added up.
_CPU_ROWS = 256
_EXACT = 1 << 24


class Product(Protocol):
    """`name` and whether it is `native` go into the record; `dtype` is what codes are given in."""

    @property
    def name(self) -> str: ...
    @property
    def native(self) -> bool: ...
    @property
    def dtype(self) -> torch.dtype: ...

    def __call__(self, x: Quantized, weight: Quantized, scratch: Scratch) -> torch.Tensor:
        """float32 [N, O] of `x` [N, I] and `weight` [O, I]."""
        ...


def choose_product(x: Codes, weight: Codes, shape: tuple[int, int], device: Device) -> Product:
    """The product for a linear of `shape` [O, I] whose sides have these codes."""
    step = math.gcd(x.group or 0, weight.group or 0) or None
    if x.type == weight.type == "int":
        assert x.limit and weight.limit
        exact = _EXACT // (x.limit * weight.limit)
        if step is None:
            if max(x.limit, weight.limit) <= 128 and _multiplies_int8(device, shape):
                return IntProduct()
            return ExactIntProduct(exact, _float(device))
        part = next(n for n in range(min(step, exact), 0, -1) if step % n == 0)
        return FloatProduct("integers", x.group, weight.group, part, _float(device))
    if x.type == weight.type == "float8" and _multiplies_float8(device, shape, step):
        return Float8Product(x.group, weight.group, step)
    return FloatProduct("floats", x.group, weight.group, step, _float(device))


@dataclass(frozen=True)
class IntProduct:
    """int8 by int8 into int32, by the device's own instructions."""

    name: str = "int8, torch._int_mm"
    native: bool = True
    dtype: torch.dtype = torch.int8

    def __call__(self, x: Quantized, weight: Quantized, scratch: Scratch) -> torch.Tensor:
        return _scaled(_int_mm(x.codes, weight.codes).float(), x.scale, weight.scale)


@dataclass(frozen=True)
class ExactIntProduct:
    """Integers in float32 matmuls over `columns` at a time, whose sums are 2^24 at most; their total
    in int32, or int64 where that might not hold it."""

    columns: int
    dtype: torch.dtype
    native: bool = False

    @property
    def name(self) -> str:
        return (
            f"integers, exact sums of {self.columns} columns by {_matmul_name(self.dtype)} matmul"
        )

    def __call__(self, x: Quantized, weight: Quantized, scratch: Scratch) -> torch.Tensor:
        codes = x.codes
        total: torch.Tensor | None = None
        begins = range(0, codes.shape[1], self.columns)
        wide = torch.int32 if len(begins) * _EXACT < 1 << 31 else torch.int64
        for begin in begins:
            part = slice(begin, begin + self.columns)
            sums = _float_mm(codes[:, part], weight.codes[:, part], None).to(wide)
            total = sums if total is None else total.add_(sums)
        assert total is not None
        return _scaled(total.float(), x.scale, weight.scale)


@dataclass(frozen=True)
class Float8Product:
    """float8 by float8 into float32, by the device's own instructions."""

    x_group: int | None
    weight_group: int | None
    step: int | None
    name: str = "float8, torch._scaled_mm"
    native: bool = True
    dtype: torch.dtype = torch.float8_e4m3fn

    def __call__(self, x: Quantized, weight: Quantized, scratch: Scratch) -> torch.Tensor:
        if self.step is None:
            return _scaled(_float8_mm(x.codes, weight.codes, None), x.scale, weight.scale)
        parts = _parts(x.codes.shape[1], self.step, self.x_group, self.weight_group)
        return _by_parts(x, weight, parts, _float8_mm, len(x.codes), scratch)


@dataclass(frozen=True)
class FloatProduct:
    """Codes that are exact in bfloat16, summed in float32.

    `kind` names them; of integers every sum is exact, over `step` columns.
    """

    kind: str
    x_group: int | None
    weight_group: int | None
    step: int | None
    dtype: torch.dtype
    native: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind}, exact products by {_matmul_name(self.dtype)} matmul, float32 sums"

    def __call__(self, x: Quantized, weight: Quantized, scratch: Scratch) -> torch.Tensor:
        if self.step is None:
            return _scaled(_float_mm(x.codes, weight.codes, None), x.scale, weight.scale)
        parts = _parts(x.codes.shape[1], self.step, self.x_group, self.weight_group)
        rows = len(x.codes) if x.codes.is_cuda else _CPU_ROWS
        return _by_parts(x, weight, parts, _float_mm, rows, scratch)


# x [N, I] and weight [O, I] to float32 [N, O], in the memory given or its own.
Matmul = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
# Columns, and the number of the scale that they have on either side.
Part = tuple[slice, int, int]


def _by_parts(
    x: Quantized,
    weight: Quantized,
    parts: list[Part],
    matmul: Matmul,
    rows: int,
    scratch: Scratch,
) -> torch.Tensor:
    """The sums over each part under its scales, added up in order; `rows` of `x` at a time."""
    count, outputs, device = len(x.codes), len(weight.codes), x.codes.device
    result = torch.empty(count, outputs, dtype=torch.float32, device=device)
    for low in range(0, count, rows):
        block = slice(low, min(low + rows, count))
        x_scale = x.scale if len(x.scale) == 1 else x.scale[block]
        sums = scratch.get("sums", tuple(result[block].shape), torch.float32, device)
        for columns, gx, gw in parts:
            matmul(x.codes[block, columns], weight.codes[:, columns], sums)
            _scaled(sums, x_scale[:, gx : gx + 1], weight.scale[:, gw : gw + 1])
            if columns.start:
                result[block].add_(sums)
            else:
                result[block].copy_(sums)
    return result


def _parts(columns: int, step: int, x_group: int | None, weight_group: int | None) -> list[Part]:
    return [
        (
            slice(begin, min(begin + step, columns)),
            begin // (x_group or columns),
            begin // (weight_group or columns),
        )
        for begin in range(0, columns, step)
    ]


def _scaled(sums: torch.Tensor, x_scale: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    """`sums` [N, O] times scales [N or 1, 1] and [O or 1, 1], in place."""
    return sums.mul_(weight_scale.view(1, -1)).mul_(x_scale)


def _float_mm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    if x.dtype != torch.float32:
        return torch.mm(x, weight.T, out_dtype=torch.float32, out=out)
    with bf16_matmul(_lends_bf16()):
        return torch.mm(x, weight.T, out=out)


def _float8_mm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    one = torch.ones((), device=x.device)
    product = torch.ops.aten._scaled_mm(
        x, weight.T, scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=False
    )
    return product if out is None else out.copy_(product)


def _int_mm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """int32 [N, O]."""
    if x.is_cuda and len(x) <= 16:
        # CUDA's kernel wants more than 16 rows.
        padded = x.new_zeros(32, x.shape[1])
        padded[: len(x)] = x
        return torch.ops.aten._int_mm(padded, weight.T)[: len(x)]
    return torch.ops.aten._int_mm(x, weight.T)


def _float(device: Device) -> torch.dtype:
    """What codes are multiplied in: bfloat16 where its matmul can give float32."""
    return torch.bfloat16 if device.is_cuda else torch.float32


def _matmul_name(dtype: torch.dtype) -> str:
    return "bfloat16" if dtype == torch.bfloat16 or _lends_bf16() else "float32"


@lru_cache(maxsize=1)
def _lends_bf16() -> bool:
    """Whether a float32 matmul on this CPU may use bf16 instructions, exact for such codes."""
    return cpu_has_instructions(torch.bfloat16)


def _multiplies_int8(device: Device, shape: tuple[int, int]) -> bool:
    if device.is_cuda:
        capability = torch.cuda.get_device_capability(device.torch)
        return capability >= (7, 5) and shape[0] % 8 == 0 and shape[1] % 8 == 0
    # torch 2.13's product of a single column is wrong.
    return shape[1] > 1 and _cpu_multiplies_int8()


@lru_cache(maxsize=1)
def _cpu_multiplies_int8() -> bool:
    """Whether this CPU has int8 dot products, and torch's use of them is exact at the extremes.

    Without them pairs of products are added in 16 bits, which saturate.
    """
    found = torch.cpu.get_capabilities()
    if not any(found.get(flag, False) for flag in ("avx512_vnni", "avx_vnni", "amx_int8")):
        return False
    extremes = torch.tensor([-128, 127, -127, 1, 0], dtype=torch.int8)
    x = extremes.repeat(37, 61)
    weight = extremes.flip(0).repeat_interleave(61).repeat(23, 1)
    return torch.equal(torch.ops.aten._int_mm(x, weight.T).long(), x.long() @ weight.long().T)


def _multiplies_float8(device: Device, shape: tuple[int, int], step: int | None) -> bool:
    if not device.is_cuda or torch.cuda.get_device_capability(device.torch) < (8, 9):
        return False
    return all(n % 16 == 0 for n in (*shape, step or 0))
