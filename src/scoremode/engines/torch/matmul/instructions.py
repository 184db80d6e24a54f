"""Instructions by which a device multiplies codes, and the proof that torch's use of them is right."""

from functools import lru_cache

import torch

from scoremode.engines.torch.device import Device
from scoremode.engines.torch.matmul.sums import Operands, float8_mm_blocks, float8_mm_scaled
from scoremode.lib.fallback import is_missing
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Quantized

__all__ = [
    "cpu_multiplies_int8",
    "has_kernels",
    "multiplies_float8",
    "multiplies_int8",
    "scales_blocks",
    "scales_rows",
]


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
