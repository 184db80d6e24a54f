"""Float32 matmuls with a CPU's bf16 instructions: exact products of bf16 inputs, summed in float32."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["bf16_matmul", "cpu_has_instructions", "lends_bf16"]


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
