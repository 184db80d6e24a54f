"""Bytes of blocks taken apart."""

import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.gguf_types import halves, spread, taken


def test_halves_and_bytes_of_each_block():
    blocks = torch.arange(40, dtype=torch.uint8).view(4, 10)
    blocks[:, 2:6] = torch.tensor([[1.5, -2.0]] * 4, dtype=torch.float16).view(torch.uint8)
    assert halves(blocks, 2, 2).tolist() == [[1.5, -2.0]] * 4
    out = taken(blocks, 7, 10, Scratch())
    assert out.is_contiguous() and out.tolist() == [[7 + n, 8 + n, 9 + n] for n in (0, 10, 20, 30)]


def test_codes_of_a_run_lie_above_each_other():
    generator = torch.Generator().manual_seed(0)
    for bits, run in ((4, 8), (2, 4), (1, 2)):
        packed = torch.randint(0, 256, (3, 16), generator=generator).to(torch.uint8)
        count = 8 // bits
        for to in range(8 - bits + 1):
            out = torch.empty(3, 16 * count, dtype=torch.uint8)
            assert spread(packed, bits, run, out, Scratch(), to) is out
            expected = [
                [
                    (row[first + at] >> nth * bits & (1 << bits) - 1) << to
                    for first in range(0, 16, run)
                    for nth in range(count)
                    for at in range(run)
                ]
                for row in packed.tolist()
            ]
            assert out.tolist() == expected
