"""ggml's I-quants of 1 to 3 bits: blocks of 256, eight or four codes at a time a point of a codebook.

IQ2 and IQ3 have magnitudes in their codebook and the signs apart: a byte for eight codes, or seven
bits, with an eighth by which the number of minus signs is even. IQ1's codes are the codebook's with an
eighth added to eight or more of them or taken away, and are handed over as eighths.
Source: gguf 0.19, `quants`.
"""

from functools import lru_cache

import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.gguf.grids import grid, signs
from scoremode.schemes.gguf.parts import BlockType, Scales, halves

__all__ = ["I_QUANTS"]

_VALUES = 256


def _iq1_s(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """Of 11 bits of an index the low 8 are in order; the others, of four, in 16 bits whose highest one
    says that the eighth is taken away."""
    index = _index(blocks, 2, 34, scratch).view(-1, 8, 4)
    high = _words(blocks, 34, 50, torch.int16)
    index |= (high[:, :, None] >> _shifts((0, 3, 6, 9), blocks.device) & 7) << 8
    index |= (high >> 15 & 1)[:, :, None] << 11
    return _points(index, "IQ1_S", scratch)


def _iq1_m(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """The three high bits of an index and its sign of the eighth are a nibble."""
    index = _index(blocks, 0, 32, scratch).view(-1, 16, 2)
    high = blocks[:, 32:48].int()[:, :, None] >> _shifts((0, 4), blocks.device)
    index |= (high & 15) << 8
    return _points(index, "IQ1_S", scratch)


def _iq2_xxs(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """Four indices of a byte, then four times 7 bits of signs and a scale of 4, eight times."""
    words = _words(blocks, 2, 66, torch.int32).view(-1, 8, 2)
    index = scratch.get("index", (len(blocks), 8, 4), torch.int32, blocks.device)
    index.copy_(words.view(torch.uint8)[:, :, :4])
    codes = _points(index, "IQ2_XXS", scratch)
    return _signed(codes, _seven_bits(words[:, :, 1]), scratch)


def _iq2_xs(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """Words of 16: an index of 9 bits, 7 of signs."""
    words = _words(blocks, 2, 66, torch.int16)
    codes = _points(words & 511, "IQ2_XS", scratch)
    return _signed(codes, _with_parity(words >> 9 & 127), scratch)


def _iq2_s(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """The two high bits of four indices are a byte."""
    index = _index(blocks, 2, 34, scratch).view(-1, 8, 4)
    high = blocks[:, 66:74].int()[:, :, None] >> _shifts((0, 2, 4, 6), blocks.device)
    index |= (high & 3) << 8
    codes = _points(index, "IQ2_S", scratch)
    return _signed(codes, blocks[:, 34:66].int(), scratch)


def _iq3_xxs(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """All indices, then words of 28 bits of signs and a scale of 4."""
    codes = _points(_index(blocks, 2, 66, scratch), "IQ3_XXS", scratch)
    words = _words(blocks, 66, 98, torch.int32)
    return _signed(codes, _seven_bits(words), scratch)


def _iq3_s(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """The ninth bits of eight indices are a byte."""
    index = _index(blocks, 2, 66, scratch).view(-1, 8, 8)
    high = blocks[:, 66:74].int()[:, :, None] >> _shifts(tuple(range(8)), blocks.device)
    index |= (high & 1) << 8
    codes = _points(index, "IQ3_S", scratch)
    return _signed(codes, blocks[:, 74:106].int(), scratch)


def _index(blocks: torch.Tensor, begin: int, end: int, scratch: Scratch) -> torch.Tensor:
    """int32 [n, end − begin]: these bytes."""
    out = scratch.get("index", (len(blocks), end - begin), torch.int32, blocks.device)
    return out.copy_(blocks[:, begin:end])


def _words(blocks: torch.Tensor, begin: int, end: int, dtype: torch.dtype) -> torch.Tensor:
    """int32 [n, words]: these bytes as words of `dtype`, int16 or int32."""
    # A copy: a block's bytes needn't begin where a word may.
    return blocks[:, begin:end].clone(memory_format=torch.contiguous_format).view(dtype).int()


def _points(index: torch.Tensor, name: str, scratch: Scratch) -> torch.Tensor:
    """int8 [n, 256]: the codebook's points of this `index` [n, …]."""
    table = grid(name, index.device)
    out = scratch.get("points", (index.numel(),), table.dtype, index.device)
    torch.index_select(table, 0, index.reshape(-1), out=out)
    return out.view(torch.int8).view(len(index), _VALUES)


def _signed(codes: torch.Tensor, of_eight: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """`codes` int8 [n, 256], negative in place where a bit of `of_eight` int32, 0 to 255, says so."""
    minus = scratch.get("signs", (of_eight.numel(),), torch.int64, codes.device)
    torch.index_select(signs(codes.device), 0, of_eight.reshape(-1), out=minus)
    # The complement less −1 is the negative.
    codes.view(torch.int64).view(-1).bitwise_xor_(minus)
    return codes.sub_(minus.view(torch.int8).view(codes.shape))


def _seven_bits(words: torch.Tensor) -> torch.Tensor:
    """int32 [n, words, 4]: the signs of eight codes each."""
    return _with_parity(words[:, :, None] >> _shifts((0, 7, 14, 21), words.device) & 127)


def _with_parity(seven: torch.Tensor) -> torch.Tensor:
    """int32: 7 bits, and an eighth by which their number is even."""
    return _parities(seven.device)[seven]


@lru_cache(maxsize=8)
def _parities(device: torch.device) -> torch.Tensor:
    return torch.tensor([n | n.bit_count() % 2 << 7 for n in range(128)], dtype=torch.int32).to(
        device
    )


@lru_cache(maxsize=32)
def _shifts(shifts: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(shifts, dtype=torch.int32, device=device)


def _odd(factor: torch.Tensor, codes: torch.Tensor, of: float) -> Scales:
    """factor float32 [n, 1] · (2 · codes + 1) · `of`, a power of two."""
    return Scales((2 * codes + 1).float().mul_(factor).mul_(of))


def _nibbles(blocks: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    """int32 [n, 2 · bytes], the low one of a byte first."""
    both = blocks[:, begin:end].int()[:, :, None]
    return (both >> _shifts((0, 4), blocks.device) & 15).flatten(1)


def _iq1_s_scales(blocks: torch.Tensor) -> Scales:
    return _odd(halves(blocks, 0), _words(blocks, 34, 50, torch.int16) >> 12 & 7, 1 / 8)


def _iq1_m_scales(blocks: torch.Tensor) -> Scales:
    """Of four words the highest four bits are those of a float16, lowest first."""
    words = _words(blocks, 48, 56, torch.int16)
    factor = (words >> 12 & 15) << _shifts((0, 4, 8, 12), blocks.device)
    factor = factor.sum(1, keepdim=True).short().view(torch.float16).float()
    codes = words[:, :, None] >> _shifts((0, 3, 6, 9), blocks.device) & 7
    return _odd(factor, codes.flatten(1), 1 / 8)


def _iq2_xxs_scales(blocks: torch.Tensor) -> Scales:
    return _odd(halves(blocks, 0), _words(blocks, 2, 66, torch.int32)[:, 1::2] >> 28 & 15, 1 / 8)


def _iq2_xs_scales(blocks: torch.Tensor) -> Scales:
    return _odd(halves(blocks, 0), _nibbles(blocks, 66, 74), 1 / 8)


def _iq2_s_scales(blocks: torch.Tensor) -> Scales:
    return _odd(halves(blocks, 0), _nibbles(blocks, 74, 82), 1 / 8)


def _iq3_xxs_scales(blocks: torch.Tensor) -> Scales:
    return _odd(halves(blocks, 0), _words(blocks, 66, 98, torch.int32) >> 28 & 15, 1 / 4)


def _iq3_s_scales(blocks: torch.Tensor) -> Scales:
    return _odd(halves(blocks, 0), _nibbles(blocks, 106, 110), 1)


I_QUANTS = (
    BlockType("IQ1_S", 32, 9, _iq1_s, _iq1_s_scales),
    BlockType("IQ1_M", 16, 9, _iq1_m, _iq1_m_scales),
    BlockType("IQ2_XXS", 32, 43, _iq2_xxs, _iq2_xxs_scales),
    BlockType("IQ2_XS", 16, 43, _iq2_xs, _iq2_xs_scales),
    BlockType("IQ2_S", 16, 43, _iq2_s, _iq2_s_scales),
    BlockType("IQ3_XXS", 32, 62, _iq3_xxs, _iq3_xxs_scales),
    BlockType("IQ3_S", 32, 15, _iq3_s, _iq3_s_scales),
)
