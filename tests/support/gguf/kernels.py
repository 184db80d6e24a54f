"""The CUDA decoder of ggml's blocks beside the gguf package's numpy; interpreted without a GPU."""

import torch
from support.gguf.blocks import dequantized, random_blocks, with_halves
from support.kernel_twins import by_kernel, launches
from support.schemes import same

from scoremode.schemes.gguf import BLOCK_TYPES, Blocks

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_kernel(kind: str, halves: tuple[int, ...]) -> None:
    """Every program full, and the last one not; `halves` (even bytes of a block) anything that a
    float16 can be."""
    whole = 4096 // BLOCK_TYPES[kind].values
    special = [with_halves(kind, halves)] if halves else []
    for packed in (random_blocks(kind, 8, whole), random_blocks(kind, 5, 3, seed=1), *special):
        scheme, expected = scheme_of(kind, packed), dequantized(kind, packed)
        for dtype in DTYPES:
            with launches() as names:
                ours = by_kernel(scheme, {kind: packed}, "decode", dtype)
            assert names == [f"decode {kind}"]
            same(ours, expected)


def scheme_of(kind: str, packed: torch.Tensor) -> Blocks:
    of = BLOCK_TYPES[kind]
    return Blocks(kind, (len(packed), packed.shape[1] // of.bytes * of.values))
