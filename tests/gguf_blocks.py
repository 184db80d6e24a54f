"""Blocks of ggml's types: random ones, and what the gguf package makes of them in numpy."""

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

# float16 by their bits: zeros, the smallest, subnormal, one, the largest, infinite, NaN.
HALVES = (
    0x0000, 0x8000, 0x0001, 0x83FF, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01,
)  # fmt: skip


def sizes(kind: str) -> tuple[int, int]:
    """Values and bytes of a block."""
    values, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    return int(values), int(size)


def random_blocks(kind: str, rows: int, count: int, seed: int = 0) -> torch.Tensor:
    """uint8 [rows, bytes of `count` blocks]: any bytes, but of every fourth block only those by which
    no half is infinite or NaN."""
    generator = np.random.default_rng(seed)
    size = sizes(kind)[1]
    blocks = generator.integers(0, 256, (rows * count, size), dtype=np.uint8)
    blocks[::4] &= 0b1011_1111
    return torch.from_numpy(blocks.reshape(rows, count * size))


def with_halves(kind: str, places: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """uint8 [1, …]: a block with each pair of HALVES at the even bytes `places`, random ones beside."""
    pairs = [(first, second) for first in HALVES for second in HALVES]
    blocks = random_blocks(kind, 1, len(pairs), seed).view(len(pairs), -1)
    for nth, place in enumerate(places):
        values = np.array([pair[nth] for pair in pairs], dtype="<u2").view(np.uint8)
        blocks[:, place : place + 2] = torch.from_numpy(values.reshape(-1, 2))
    return blocks.view(1, -1)


def dequantized(kind: str, blocks: torch.Tensor) -> torch.Tensor:
    """float32 [rows, values] of uint8 [rows, bytes]."""
    with np.errstate(all="ignore"):
        return torch.from_numpy(quants.dequantize(blocks.numpy(), GGMLQuantizationType[kind]))
