"""Blocks of ggml's types: random ones, and what the gguf package makes of them in numpy."""

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

# float16 by their bits: zeros, the smallest, subnormal, one, the largest, infinite, NaN.
HALVES = (
    0x0000, 0x8000, 0x0001, 0x83FF, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01,
)  # fmt: skip


# Where a block has its halves, by its types; IQ1_M's lies in parts.
PLACES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "IQ1_S"), (0,)),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,)},
}


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


def tame_blocks(kind: str, rows: int, count: int, seed: int = 0) -> torch.Tensor:
    """uint8 [rows, bytes of `count` blocks]: any codes, under scales by which weights are as large as a
    model's, about 0.1."""
    blocks = random_blocks(kind, rows, count, seed).view(rows * count, -1)

    def scaled(to: float) -> torch.Tensor:
        if kind == "IQ1_M":
            # In the highest bits of four words.
            (bits,) = torch.tensor([to], dtype=torch.float16).view(torch.int16).tolist()
            for nth in range(4):
                blocks[:, 49 + 2 * nth] &= 0x0F
                blocks[:, 49 + 2 * nth] |= (bits >> 4 * nth & 15) << 4
        for place in PLACES.get(kind, ()):
            half = torch.tensor([to], dtype=torch.float16)
            blocks[:, place : place + 2] = half.view(torch.uint8)
        return blocks

    if kind == "MXFP4":
        blocks[:, 0] = 122
    elif kind == "NVFP4":
        blocks[:, :4] = 0x14
    else:
        scaled(0.1 / float(dequantized(kind, scaled(1.0)).std()))
    return blocks.view(rows, -1)
