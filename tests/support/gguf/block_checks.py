"""What every block type is held to."""

import torch
from support.gguf.blocks import PLACES, dequantized, random_blocks, sizes, with_halves
from support.schemes import decode, same

from scoremode.schemes.base import Scratch
from scoremode.schemes.gguf import Blocks
from scoremode.schemes.gguf_types import BlockType


def check_type(kind: BlockType) -> None:
    """Decoded and in parts `kind` is what the gguf package makes of it, with its halves anything that
    a float16 can be."""
    name = kind.name
    assert sizes(name) == (kind.values, kind.bytes)
    special = [with_halves(name, PLACES[name])] if name in PLACES else []
    for packed in (random_blocks(name, 100, 21), random_blocks(name, 1, 1, seed=1), *special):
        shape = len(packed), packed.shape[1] // kind.bytes * kind.values
        scheme, stored = Blocks(name, shape), {name: packed}
        expected = dequantized(name, packed)
        finite = expected[expected.isfinite()]
        assert len(packed) == 1 or (finite.unique().numel() > 100 and (finite < 0).any())
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            same(decode(scheme, stored, dtype), expected)
        codes = torch.empty(shape, dtype=torch.int8)
        scale = scheme.factor(stored, codes, Scratch())
        assert codes.int().abs().max() <= kind.limit
        assert len(packed) == 1 or codes.int().abs().max() == kind.limit
        given = scheme.scales(stored)
        groups = shape[0], shape[1] // kind.group
        assert scale.dtype == torch.float32 and scale.shape == groups
        same(given.scale, scale)
        values = codes.float().unflatten(1, (-1, kind.group)) * scale[:, :, None]
        assert (given.minimum is not None) == kind.has_minimum
        if given.minimum is not None:
            assert given.minimum.dtype == torch.float32 and given.minimum.shape == groups
            values += given.minimum[:, :, None]
        same(values.flatten(1), expected)
