"""Checkpoints of AWQ, GPTQ and AutoRound, packed bit by bit, and dense ones of the same weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support import family
from support.families.packed_experts import TRANSPOSED, unroll
from support.family import LINEAR, Pair, Tensors

__all__ = ["LINEAR"]
# Outputs of a word of AWQ's, from its lowest bits on.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
MULTIPLES = {32: 4, 64: 2}


@dataclass(frozen=True)
class Recipe:
    """How weights are quantized and packed; `size` -1 is all inputs, `order` `outputs` is AWQ's, `gemv`
    and `gemv_fast` its other layouts."""

    bits: int = 4
    size: int = 32
    symmetric: bool = False
    order: str = "columns"
    less_one: bool = False
    ordered: bool = False
    scale: torch.dtype = torch.float16


def packed(codes: np.ndarray, bits: int) -> torch.Tensor:
    """int32 [n, words] of codes [n, values], each a run of bits, lowest first."""
    bit = (codes[:, :, None] >> np.arange(bits)) & 1
    stream = np.packbits(bit.reshape(len(codes), -1).astype(np.uint8), axis=1, bitorder="little")
    assert stream.shape[1] % 4 == 0
    return torch.from_numpy(stream.view("<i4").copy())


def interleaved(codes: np.ndarray) -> np.ndarray:
    """Codes [n, outputs] in the order in which AWQ's words have them."""
    return codes.reshape(len(codes), -1, 8)[:, :, AWQ_ORDER].reshape(len(codes), -1)


def four_rows(codes: np.ndarray) -> torch.Tensor:
    """int16 [O / 4, I] of codes [O, I], as the layout `gemv_fast` has them, one by one."""
    words = np.zeros((len(codes) // 4, codes.shape[1]), np.uint16)
    for row, line in enumerate(codes.tolist()):
        for column, code in enumerate(line):
            block, half, eight, of_eight = (column // 64, column // 32 % 2, column // 8 % 4,
                                            column % 8)  # fmt: skip
            words[row // 4, block * 64 + row % 4 * 16 + half * 8 + of_eight] |= code << 4 * eight
    return torch.from_numpy(words.view(np.int16))


def quantize(weight: torch.Tensor, recipe: Recipe) -> tuple[Tensors, torch.Tensor]:
    """The stored tensors of a weight [O, I], and the effective weight in the scales' dtype."""
    exact, (rows, columns) = weight.float().numpy(), weight.shape
    size = columns if recipe.size == -1 else recipe.size
    groups, most, half = -(-columns // size), (1 << recipe.bits) - 1, 1 << (recipe.bits - 1)
    group_of = np.arange(columns) // size
    if recipe.ordered:
        group_of = np.random.default_rng(rows).permutation(group_of)
    scale = np.empty((groups, rows), np.float32)
    zero = np.full((groups, rows), half)
    for g in range(groups):
        part = exact[:, group_of == g]
        if recipe.symmetric:
            scale[g] = np.abs(part).max(1) * 2 / most
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scale[g] = (high - low) / most
            # One is the least that the first format of GPTQ can store, most - 1 plus one its most.
            zero[g] = np.clip(np.rint(-low / scale[g]), 1, most)
    scales = torch.from_numpy(scale).to(recipe.scale)
    spread = scales.float().numpy()[group_of].T
    codes = np.clip(np.rint(exact / spread) + zero[group_of].T, 0, most).astype(int)
    stored_zero = zero - recipe.less_one
    # Of gemv: one word for eight groups; two and four of them at least for small groups.
    places = -(-groups // (8 * MULTIPLES.get(size, 1))) * 8 * MULTIPLES.get(size, 1)
    margin = (0, 0), (0, places - groups)
    if recipe.order == "gemv_fast":
        offset = -(scales.float() * torch.from_numpy(zero)).half()
        exact = codes * spread.astype(np.float64) + offset.double().numpy()[group_of].T
        tensors = {
            "qweight": four_rows(codes),
            "qzeros": torch.nn.functional.pad(offset.T, margin[1]).T.contiguous(),
            "scales": torch.nn.functional.pad(scales.T, margin[1]).T.contiguous(),
        }
        return tensors, torch.from_numpy(exact.astype(np.float16))
    if recipe.order == "gemv":
        tensors = {
            "qweight": packed(codes, 4),
            "qzeros": packed(np.pad(stored_zero.T, margin), 4),
            "scales": torch.nn.functional.pad(scales.T, margin[1]).contiguous(),
        }
    elif recipe.order == "outputs":
        tensors = {
            "qweight": packed(interleaved(codes.T), 4),
            "qzeros": packed(interleaved(stored_zero), 4),
            "scales": scales,
        }
    else:
        tensors = {
            "qweight": packed(codes, recipe.bits).T.contiguous(),
            "qzeros": packed(stored_zero, recipe.bits),
            "scales": scales,
            "g_idx": torch.from_numpy(group_of.astype(np.int32)),
        }
    less = torch.from_numpy(codes - zero[group_of].T).to(recipe.scale)
    return tensors, less * scales[group_of].T


def make_pair(folder: Path, name: str, recipe: Recipe, **config: Any) -> Pair:
    """A random float16 model with its linears packed, and a dense one of what they stand for; experts
    are linears in both, as quantizers have them."""

    def stored(weight: torch.Tensor) -> Tensors:
        tensors, dense = quantize(weight, recipe)
        return tensors | {"dense": dense}

    return family.make_pair(
        folder,
        name,
        stored,
        config,
        dtype=torch.float16,
        change=_whole_words,
        prepare=unroll if name in TRANSPOSED else None,
        # Words of gemv_fast come for 64 inputs.
        fits=lambda weight: recipe.order != "gemv_fast" or weight.shape[1] % 64 == 0,
    )


def _whole_words(settings: dict[str, Any]) -> None:
    """DeepSeek's low ranks as multiples of a group."""
    for name in ("kv_lora_rank", "q_lora_rank"):
        if name in settings:
            settings[name] = 32
