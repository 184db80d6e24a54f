"""Products of two quantized matrices: natively where the device has it, else emulated exactly.

Both sides are codes times scales. Codes are multiplied and summed, and scales are applied in float32 to
the sums: of a whole row, or of each group of columns where a side has a scale a group. So

    y[n, o] = Σ over groups g of  sx[n, g] · sw[o, g] · Σ over columns i of g of  cx[n, i] · cw[o, i]

Integer sums are exact, natively in int32 or emulated in float32 over so few columns that none passes
2^24. Products of float codes are exact in float32, since each code is exact in bfloat16, and their sums
are rounded as any float32 matmul's are. A native float8 product is rounded as the device's own
instructions do it: on Hopper they keep about 14 bits of a sum between two float32 additions. Then comes
the bias, and one rounding to the dtype that is asked for.

Torch's use of a device's instructions is proven right before it is relied on (`scales_blocks`, …).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from scoremode.engines.torch.device import Device
from scoremode.engines.torch.matmul.sums import (
    Operands,
    add_minimums,
    by_parts,
    finished,
    float8_mm,
    float8_mm_blocks,
    float8_mm_scaled,
    float16_mm,
    float_mm,
    int_mm,
    rounded,
)
from scoremode.head.project import cpu_has_instructions
from scoremode.lib.fallback import attempt, is_missing
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Codes, Quantized

_EXACT = 1 << 24
# Columns of one scale of the input and of the weight, None for all.
Groups = tuple[int | None, int | None]
# Rows and columns of the blocks that cuBLAS multiplies under a scale each.
_BLOCK = 128
# Columns of a part of the kernel for parts, and the least bytes of one, which the tensor cores ask for.
_LARGEST_PART = 128
_PART_BYTES = 32


def multiplies_int8(device: Device, shape: tuple[int, int]) -> bool:
    if device.is_cuda:
        capability = torch.cuda.get_device_capability(device.torch)
        return capability >= (7, 5) and shape[0] % 8 == 0 and shape[1] % 8 == 0
    # torch 2.13's product of a single column is wrong.
    return shape[1] > 1 and cpu_multiplies_int8()


@lru_cache(maxsize=1)
def cpu_multiplies_int8() -> bool:
    """Tells whether this CPU has int8 dot products, and torch's use of them is exact at the extremes.

    Without them pairs of products are added in 16 bits, which saturate.
    """
    found = torch.cpu.get_capabilities()
    if not any(found.get(flag, False) for flag in ("avx512_vnni", "avx_vnni", "amx_int8")):
        return False
    extremes = torch.tensor([-128, 127, -127, 1, 0], dtype=torch.int8)
    x = extremes.repeat(37, 61)
    weight = extremes.flip(0).repeat_interleave(61).repeat(23, 1)
    return torch.equal(torch.ops.aten._int_mm(x, weight.T).long(), x.long() @ weight.long().T)


def multiplies_float8(device: Device, shape: tuple[int, int], step: int | None) -> bool:
    if not device.is_cuda or torch.cuda.get_device_capability(device.torch) < (8, 9):
        return False
    return all(n % 16 == 0 for n in (*shape, step or 0))


@lru_cache(maxsize=8)
def scales_rows(device: torch.device) -> bool:
    """Tells whether `torch._scaled_mm` applies scales a row: on Hopper and later, in some builds."""
    if torch.cuda.get_device_capability(device) < (9, 0):
        return False
    codes = torch.ones(32, 32, device=device).to(torch.float8_e4m3fn)
    scale = torch.ldexp(torch.ones(32, 1), torch.arange(32).view(32, 1)).to(device)
    ones = Quantized(codes, scale)
    try:
        product = float8_mm_scaled(Operands(ones, ones, Scratch(), dtype=torch.bfloat16))
    except (RuntimeError, ValueError):
        # The record names the product that is taken then.
        return False
    return torch.equal(product.float(), 32 * scale * scale.T)


@lru_cache(maxsize=8)
def scales_blocks(device: torch.device) -> bool:
    """Tells whether `scaled_mm` multiplies under scales of 128 columns and of blocks of 128 × 128, and
    applies each where it belongs: on Hopper, from cuBLAS 12.9 on, in newer torch."""
    if torch.cuda.get_device_capability(device) != (9, 0):
        return False
    # Sums of products of ones are exact under powers of two; none but its own scales gives a sum.
    rows, outputs, groups = 5, 304, 5
    x_scale = torch.ldexp(torch.ones(rows, groups), torch.arange(rows * groups).view(rows, -1) % 7)
    blocks = torch.ldexp(torch.ones(3, groups), torch.arange(3 * groups).view(3, -1) % 5)
    weight_scale = blocks.repeat_interleave(128, 0)[:outputs]
    x, weight = (
        Quantized(torch.ones(n, 128 * groups, device=device).to(torch.float8_e4m3fn), s.to(device))
        for n, s in ((rows, x_scale), (outputs, weight_scale))
    )
    try:
        product = float8_mm_blocks(Operands(x, weight, Scratch(), dtype=torch.bfloat16))
    except (ImportError, RuntimeError, ValueError):
        # The record names the product that is taken then.
        return False
    expected = 128 * x_scale.double() @ weight_scale.double().T
    return torch.equal(product.cpu(), expected.bfloat16())


def has_kernels(device: Device) -> bool:
    """Tells whether there is Triton and a GPU with its instructions for bfloat16."""
    if not device.is_cuda or torch.cuda.get_device_capability(device.torch) < (8, 0):
        return False
    return is_missing() is None


@dataclass(frozen=True)
class Product:
    """A way to multiply two quantized matrices.

    - `name` and `native` (by instructions of the device's own) go into the record.
    - `dtype`: of the codes that it is given.
    - `multiply`: [N, O] in the dtype that the operands ask for, rounded to it once.
    """

    name: str
    dtype: torch.dtype
    multiply: Callable[[Operands], torch.Tensor]
    native: bool = False


def choose_product(
    x: Codes, weight: Codes, shape: tuple[int, int], device: Device, *, minimums: bool = False
) -> Product:
    """The product for a linear of `shape` [O, I] whose sides have these codes, and a weight's
    `minimums` maybe."""
    product = _of_codes(x, weight, shape, device)
    return plus_minimums(product) if minimums else product


def _of_codes(x: Codes, weight: Codes, shape: tuple[int, int], device: Device) -> Product:
    step = math.gcd(x.group or 0, weight.group or 0) or None
    groups = x.group, weight.group
    if x.type == weight.type == "int":
        assert x.limit and weight.limit
        largest = x.limit * weight.limit
        is_int8 = max(x.limit, weight.limit) <= 128
        if step is None:
            if is_int8 and multiplies_int8(device, shape):
                return int8_product()
            whole = exact_int_product(_EXACT // largest, _float(device))
            if has_kernels(device) and largest * shape[1] < 1 << 31:
                return parts_product("integers", groups, _LARGEST_PART, whole)
            return whole
        for dtype in (torch.int8, torch.bfloat16)[not is_int8 :]:
            # Of groups of 16 columns bfloat16 has the bytes that int8 has not.
            if part := _part(step, dtype, device):
                twin = float_product("integers", groups, part, _float(device))
                native = dtype == torch.int8
                kind = "int8" if native else "integers"
                return parts_product(kind, groups, part, twin, dtype, native=native)
        part = next(n for n in range(min(step, _EXACT // largest), 0, -1) if step % n == 0)
        return float_product("integers", groups, part, _float(device))
    if x.type == weight.type == "float8" and multiplies_float8(device, shape, step):
        if step is None:
            return float8_product(scales_rows=scales_rows(device.torch))
        part = _part(step, torch.float8_e4m3fn, device)
        parts = float8_parts_product(groups, part or step)
        if part is not None:
            parts = parts_product("float8", groups, part, parts, parts.dtype, native=True)
        in_blocks = groups == (_BLOCK, _BLOCK) and weight.rows == _BLOCK and shape[1] % _BLOCK == 0
        if in_blocks and scales_blocks(device.torch):
            return float8_blocks_product(parts)
        return parts
    if "float16" in (x.type, weight.type):
        return float16_product(device)
    if step is not None and (part := _part(step, torch.bfloat16, device)):
        twin = float_product("floats", groups, part, _float(device))
        return parts_product("floats", groups, part, twin)
    return float_product("floats", groups, step, _float(device))


def plus_minimums(product: Product) -> Product:
    """Adds to `product` what the weight's minimums make of the input's sums: a matmul in float32."""

    def multiply(operands: Operands) -> torch.Tensor:
        sums = product.multiply(replace(operands, bias=None, dtype=torch.float32))
        return rounded(add_minimums(sums, operands), operands)

    name = f"{product.name}; minimums times sums by float32 matmul"
    return replace(product, name=name, multiply=multiply)


def float16_product(device: Device) -> Product:
    """float16 by float16, each product exact, summed in float32."""
    dtype = torch.float16 if device.is_cuda else torch.float32

    def multiply(operands: Operands) -> torch.Tensor:
        return finished(float16_mm(operands.x.codes, operands.weight.codes), operands)

    name = "float16 by its own" if device.is_cuda else "float16 by float32"
    return Product(f"{name} matmul, float32 sums", dtype, multiply, native=device.is_cuda)


def int8_product() -> Product:
    """int8 by int8 into int32, by the device's own instructions."""

    def multiply(operands: Operands) -> torch.Tensor:
        return finished(int_mm(operands.x.codes, operands.weight.codes), operands)

    return Product("int8, torch._int_mm", torch.int8, multiply, native=True)


def exact_int_product(columns: int, dtype: torch.dtype) -> Product:
    """Integers in float32 matmuls over `columns` at a time, whose sums are 2^24 at most; their total
    in int32, or int64 where that might not hold it."""

    def multiply(operands: Operands) -> torch.Tensor:
        x, weight = operands.x.codes, operands.weight.codes
        total: torch.Tensor | None = None
        begins = range(0, x.shape[1], columns)
        wide = torch.int32 if len(begins) * _EXACT < 1 << 31 else torch.int64
        for begin in begins:
            part = slice(begin, begin + columns)
            sums = float_mm(x[:, part], weight[:, part], None).to(wide)
            total = sums if total is None else total.add_(sums)
        assert total is not None
        return finished(total.float(), operands)

    name = f"integers, exact sums of {columns} columns by {_matmul_name(dtype)} matmul"
    return Product(name, dtype, multiply)


def float8_product(*, scales_rows: bool) -> Product:
    """float8 by float8 into float32, by the device's own instructions.

    `scales_rows`: its epilogue can multiply the float32 sums by scales a row, in an order of its own,
    and round once; into bfloat16 and without a bias it does.
    """

    def multiply(operands: Operands) -> torch.Tensor:
        if scales_rows and operands.bias is None and operands.dtype == torch.bfloat16:
            return float8_mm_scaled(operands)
        return finished(float8_mm(operands.x.codes, operands.weight.codes, None), operands)

    epilogue = ", scales in its epilogue if into bfloat16 without bias" if scales_rows else ""
    name = f"float8, torch._scaled_mm{epilogue}"
    return Product(name, torch.float8_e4m3fn, multiply, native=True)


def float8_parts_product(groups: Groups, step: int) -> Product:
    """float8 by float8 over `step` columns at a time, under the scales of each."""

    def multiply(operands: Operands) -> torch.Tensor:
        return rounded(by_parts(operands, step, groups, float8_mm), operands)

    return Product("float8, torch._scaled_mm a group", torch.float8_e4m3fn, multiply, native=True)


def float8_blocks_product(other: Product) -> Product:
    """float8 by float8 in blocks of 128 × 128, by cuBLAS; `other` with a bias or into another dtype."""

    def multiply(operands: Operands) -> torch.Tensor:
        if operands.bias is None and operands.dtype == torch.bfloat16:
            return float8_mm_blocks(operands)
        return other.multiply(operands)

    name = f"float8, scaled_mm of blocks if into bfloat16 without bias, else {other.name}"
    return Product(name, torch.float8_e4m3fn, multiply, native=True)


def float_product(kind: str, groups: Groups, step: int | None, dtype: torch.dtype) -> Product:
    """Codes that are exact in bfloat16, summed in float32.

    `kind` names them; of integers every sum is exact, over `step` columns.
    """

    def multiply(operands: Operands) -> torch.Tensor:
        if step is None:
            return finished(float_mm(operands.x.codes, operands.weight.codes, None), operands)
        return rounded(by_parts(operands, step, groups, float_mm), operands)

    name = f"{kind}, exact products by {_matmul_name(dtype)} matmul, float32 sums"
    return Product(name, dtype, multiply)


def parts_product(
    kind: str,
    groups: Groups,
    part: int,
    twin: Product,
    dtype: torch.dtype = torch.bfloat16,
    *,
    native: bool = False,
) -> Product:
    """Sums of a `part` of the columns at a time, by one Triton kernel; `twin` if it can't be had."""

    def multiply(operands: Operands) -> torch.Tensor:
        x, weight = operands.x, operands.weight
        device = x.codes.device
        out = torch.empty(len(x.codes), len(weight.codes), dtype=operands.dtype, device=device)

        def run() -> None:
            from scoremode.engines.torch.matmul.kernels import multiply_parts

            multiply_parts(operands, out, groups, part)

        if attempt(f"product of {kind}", device, run):
            return out
        x, weight = (Quantized(q.codes.to(twin.dtype), q.scale) for q in (x, weight))
        return twin.multiply(replace(operands, x=x, weight=weight))

    sums = "exact sums" if dtype == torch.int8 or kind == "integers" else "sums"
    codes = "" if native else ", exact products by bfloat16"
    name = f"{kind}{codes}, {sums} of {part} columns by a Triton kernel"
    return Product(name, dtype, multiply, native)


def _float(device: Device) -> torch.dtype:
    """Dtype that codes are multiplied in: bfloat16 where its matmul can give float32."""
    return torch.bfloat16 if device.is_cuda else torch.float32


def _matmul_name(dtype: torch.dtype) -> str:
    lends = dtype == torch.bfloat16 or cpu_has_instructions(torch.bfloat16)
    return "bfloat16" if lends else "float32"


def _part(step: int, dtype: torch.dtype, device: Device) -> int | None:
    """Columns of the kernel's parts, under scales that change every `step`; None if too few for it."""
    part = min(step & -step, _LARGEST_PART)
    return part if has_kernels(device) and part * dtype.itemsize >= _PART_BYTES else None
