"""ggml's I-quants of 1 to 3 bits: blocks of 256, eight or four codes at a time a point of a codebook.

IQ2 and IQ3 have magnitudes in their codebook and the signs apart: a byte for eight codes, or seven
bits, with an eighth by which the number of minus signs is even. IQ1's codes are the codebook's with an
eighth added to eight or more of them or taken away, and are handed over as eighths.
Source: gguf 0.19, `quants`.

Codebooks are points of 8 or 4 dimensions on a grid of 3 or 8 levels.

Each is stored as what it is, a set, since its points are in order: of all points of the grid, a bit
that tells whether it is one, lowest first, compressed. A point's number has its coordinates as digits,
the first one lowest.
Source: gguf 0.19, `quants`, by tools/gguf_grids.py.
"""

import zlib
from base64 import b64decode
from collections.abc import Callable
from functools import lru_cache

import torch

from scoremode.schemes.base import Scratch
from scoremode.schemes.gguf_types import BlockType, Scales, halves

# The values of the levels; of IQ1 eight times, so that an eighth can be added to them.
_LEVELS = {
    "IQ1": (-8, 0, 8),
    "IQ2": (8, 25, 43),
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62),
    "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
}
_SETS = {
    "IQ1_S": (
        "eNotUkFLnEcYfneq4XVMZWM/QXJ696ux01kR6y3pZZFdWPRiQvIHPNm0SMk5TT4nu+mX2RRCILQ0l3EwyTgNq/FQ"
        "tp+wAU9WemjprQdpPYS6HgJeGgzEzK69zbzwvM/zvM9z7UJUN2zmMlY+c3dJ2/MoKarPR4rKlQsj/YYpSkcBlflA"
        "mnTL8wd+EGLg/r4yWAqoQprMRwGup/AHg4kMk6hO1ZlrWMlNbBvS4yDHnLe4v44oBAQu4QW5hPhj/CVztNu8Z5v+"
        "0s3DTralhlpxtvvn0EMWQ0xOZ1wxBDn7t/08pqKF5dKy1wLjXFA4omigUrhaN8g+dpeopuhqkGEJH81HTGLLqcRU"
        "GaGyi5aJnyTWw3sKKyXoKjQwcxkquU8VaCVxZSrqD5bFqXjGyEug4Re6KVy24t3XoDgyEbMaKKgmprMh/TY1srjz"
        "17NGY8k9DP8bDV0+K6laKwkt0dPObza26z+afx0DBtKlQIlpWCsyk6hpnrVb2btDa4oWNRcdCyvT7OzxamfvddFN"
        "fte+dXj83+2Xr77J9r54+8nJy/Hj4YN/dJz37aGax003qJon2djBnaRvYWLxyPHVIgTLuO+HgSnJn9Kv6t4DJcDC"
        "/eQjUIjwlfZ+iz1ta7PLki+/n/x98yCv8pN+T4z88aQPePcOhLkVUv5iFk/XzEAyCtousOWoHA5VeK56KXsS/ls+"
        "3Eu532C3NjlipmRjSAEtXtdLLe8TIK72d+IClruoAU0joVF3OXopE+BdVMFBb+E+pYqPhgi89XqjwbgMFCrxXKCA"
        "tZTFpj0oWqizuc1gefVN09MVsfizmXqVcBaacH0hFIl5X/Qdu2YsYp6MjkENnabMexVdOwOznuETyH9Y/j/l/lBp"
        "9fyIACBw8Yw6loGqDoiDCM7NVbrdcKynMB3DVPAShkmwzLoLc+8B4wUZaQ=="
    ),
    "IQ2_XXS": (
        "eNp1UkuqxDAMk8Hdq5B3Hwd6gG7m/ld5tvPt0BENpLHkSG4/f+XDq1ZouUAAaigwxA64afWEFLXbz718+LoBQVCq"
        "n5eSxPakiugoSjpNT6j4xkLlkEakmrdsKvaVVzQcEqXwcY6jlFtvHa9ytE5NdA8erHrVBlu7ptfiaQ4UTzR7t0+D"
        "9Mhgk18I792/MWkMozOpYEUGZTWnjKHk4pUeVVKiD+3yaLJ11MlR6vJsezlRkya9ZIuWJs+Vsrxm3zJ8I6bZP4Xa"
        "FM4G+dvYCpk35szlEWu/YcUTjjHsvjFmaK+qB/ijNp18T/Nl/wr9TfsHxl0VIw=="
    ),
    "IQ2_XS": (
        "eNpdUVuuhTAIHBL6j4nuhyb2vyZ2/1s5PFr13uYcxQLDzDDGuEarR6N7jN6qFMJ9iVYGEbqnDtoZlkIhZkArpNjL"
        "fqNsO5NA1bo8JYAFBDtigJd16QK0VEffvNELHLCRJGDcOCavsBSwVdr3Ft8MzBI/YyQguItPFR+YrVZ4Vig91ZxJ"
        "msCQSjFFFqbnQF6FMyWHrikZp8mrtADNKEt5SwnyPsOM0miHp4hoTq0xX7HOtDckM8rDMHs17BW3p+aFYCbtz+aG"
        "BpShy2TzehJuiNPq30xqNOkvCWeIZyg+If0x2t8iIbnQwY7bDyOfokOFu1z32/oVuavEmHEw5Vjp7gI+vAKcOd2I"
        "zVCwoLfAQE4LqnxJ7h+iL1v+XMoqbTQn0uOl7msKr70o/h/N4W2uYLIu79Po/gBOsClJ"
    ),
    "IQ2_S": (
        "eNptUl2KBiEMa0HfK+h9KozvCvb+V9m0OrvfsivD/MXEJGpmy4a1XPAyh9Xc6l4yLVEpeAwza3usaVZxAVJAq6Yp"
        "pM2cJcyaLT2AlIirZCEipW1rQbmtui2WsEqz9p4y1US+1ivoUAjWzIBAV1vJISY6EP4lcShBm/Zqq+fEhfbsmg9L"
        "aCXMz/QgxS/BAkpmUINcYMOXIGrxTSGOT9yYpnu1Vh9vI1+HvSWP7L7MthfV6UCzvw4hIPVAsBEstKF0IB8QbMGi"
        "P5Er4HetD0G65iMyICUE/BGMWiLJM1qGQ/VNuR2K20hOIF6fghIY3ex4n3JL4FPLO2KGahul7iKdaRzznbS0y8Iu"
        "F4+cfyKzQ/OKg5U5ZHDnVx3K2c/KMLms2JRQPAfAKf90WOQ7NiDh02sg9DEwGad3h46fCTlhJKkX/TCtK8h6O/yV"
        "Gdg1ylcNv5Ur35q+ALm8Vh4="
    ),
    "IQ3_XXS": (
        "eNpNUTEOwjAMPFuxVGUKQ/eKCfGKdGCHH0WdEK9g5Jn4nKZwVdUmPt+dk/llmoBLtrNpgcxqL2xYNlvgEExopeGy"
        "AckfwgsFeMBLimx5bgKYWhSzqa+QDKIVFeeu4jj5ChqqgRTblm/0xzX6nmKbNXGSntCb6DfRq7kbjTtyjSBQy66/"
        "hN+d+2xmUmVXQJrvrAzPhsIYUZoYzGd743mEKqQLVncbdJqUEUMGcbH932U9l6yoo4HjpLQ7QEI8ddpIhIPI7z1c"
        "tL8Nw3X9CxXSe8Mevst9ZNxL7bIcM/FIRlwNpv2O7piB+AIWuhT2"
    ),
    "IQ3_S": (
        "eNotUcFKw0AQfTPMwmZPuyHiNd1GqPmKrdSDeimC+DtpqdD2luIHiFYE+5PObpzDwLw3897b5Od1br+dOV3PD9Ej"
        "ytdDDGeHykbz6M0QaV9LxaAG9/YTySYHhoCvdEYAri/mGWuWp8AVGyzpHKRqSU7VNugiLRq4le4VlqE1Yq3dGW4z"
        "f3k5mt4Mt+bQ1aL8CW7De9Q33DihhC2qTuHOswxkQW9ZRC9bTmQJkF/p39ly7x0ItCLRqIpzONKxhbV3qioBbFrx"
        "CRYJJYaDaXOaIKOwHu6czGxUfMaWBiHvTMy8gR+y3Ee5EqiCRzaYgaxCEgSjJN8LS14gtkvdwY4GeG5tDZKUhXJ3"
        "KJUXm9K1+oxqAGx08Jn00gqR5+yipY9QsMLkm0MX/F9rhEnkBcIeC53rpb6Gi0eXc8T8kWhylcm7/IVJG/gDusYn"
        "IA=="
    ),
}


@lru_cache(maxsize=16)
def grid(name: str, device: torch.device) -> torch.Tensor:
    """The codebook of a type, each point as one number whose bytes are its coordinates int8: int64 [n]
    of 8, int32 [n] of 4.

    IQ1_S's has all points twice, each coordinate an eighth more, then less.
    """
    levels = torch.tensor(_LEVELS.get(name, _LEVELS.get(name[:3])), dtype=torch.int8)
    dimensions = 8 if len(levels) == 3 else 4
    stored = torch.frombuffer(bytearray(zlib.decompress(b64decode(_SETS[name]))), dtype=torch.uint8)
    present = stored[:, None] >> torch.arange(8, dtype=torch.uint8) & 1
    numbers = present.view(-1).nonzero()
    points = levels[numbers // len(levels) ** torch.arange(dimensions) % len(levels)]
    if name == "IQ1_S":
        points = torch.cat([points + 1, points - 1])
    wide = torch.int64 if dimensions == 8 else torch.int32
    return points.view(wide).view(-1).to(device)


@lru_cache(maxsize=8)
def signs(device: torch.device) -> torch.Tensor:
    """int64 [256]: a byte's bits from the lowest one on, each as a byte of ones."""
    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return (-bits).to(torch.int8).view(torch.int64).view(-1).to(device)


_VALUES = 256


def _iq1_s(blocks: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """An index has 11 bits. The low 8 are in order; the others, of four, in 16 bits whose highest one
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


def _iq1_m_scales(blocks: torch.Tensor) -> Scales:
    """A float16 from the highest four bits of four words, lowest first."""
    words = _words(blocks, 48, 56, torch.int16)
    factor = (words >> 12 & 15) << _shifts((0, 4, 8, 12), blocks.device)
    factor = factor.sum(1, keepdim=True).short().view(torch.float16).float()
    codes = words[:, :, None] >> _shifts((0, 3, 6, 9), blocks.device) & 7
    return _odd(factor, codes.flatten(1), 1 / 8)


def _by_nibbles(begin: int, end: int, of: float) -> Callable[[torch.Tensor], Scales]:
    return lambda blocks: _odd(halves(blocks, 0), _nibbles(blocks, begin, end), of)


def _by_words(
    begin: int, end: int, dtype: torch.dtype, shift: int, mask: int, of: float, step: int = 1
) -> Callable[[torch.Tensor], Scales]:
    """Scales in the bits from `shift` on of each word, or of every second one."""

    def scales(blocks: torch.Tensor) -> Scales:
        words = _words(blocks, begin, end, dtype)[:, step - 1 :: step]
        return _odd(halves(blocks, 0), words >> shift & mask, of)

    return scales


I_QUANTS = (
    BlockType("IQ1_S", 32, 9, _iq1_s, _by_words(34, 50, torch.int16, 12, 7, 1 / 8)),
    BlockType("IQ1_M", 16, 9, _iq1_m, _iq1_m_scales),
    BlockType("IQ2_XXS", 32, 43, _iq2_xxs, _by_words(2, 66, torch.int32, 28, 15, 1 / 8, 2)),
    BlockType("IQ2_XS", 16, 43, _iq2_xs, _by_nibbles(66, 74, 1 / 8)),
    BlockType("IQ2_S", 16, 43, _iq2_s, _by_nibbles(74, 82, 1 / 8)),
    BlockType("IQ3_XXS", 32, 62, _iq3_xxs, _by_words(66, 98, torch.int32, 28, 15, 1 / 4)),
    BlockType("IQ3_S", 32, 15, _iq3_s, _by_nibbles(106, 110, 1)),
)
