"""Checkpoints of ExLlamaV3 made by numpy, of random codes, and the dense ones of the same weights."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.family import Case, Family, Pair
from support.models import edit_config, edit_tensors, make_checkpoint

from scoremode.schemes.exl3 import Modules

Tensors = dict[str, torch.Tensor]
LINEAR = re.compile(r"(_proj|experts\.\d+\.\w+|lm_head)\.weight$")
MULTIPLIERS = {"mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}


def config(bits: float = 4.0, codebook: str = "mcg") -> dict[str, Any]:
    return {
        "quant_method": "exl3",
        "version": "1.4.1",
        "bits": bits,
        "head_bits": 6,
        "calibration": {"rows": 250, "cols": 2048},
        "out_scales": "always",
        "codebook": codebook,
    }


def quantize(weight: torch.Tensor, bits: int, codebook: str, signs: bool = False) -> Tensors:
    """Suffix → tensor, of a linear of the weight's shape up to whole blocks and about its size; `dense`
    is the effective weight, float32. `signs`: as the first releases stored it."""
    rows, columns = (-(-size // 128) * 128 for size in weight.shape)
    codes = torch.randint(-(1 << 15), 1 << 15, (columns // 16, rows // 16, 16 * bits))
    stored: Tensors = {"trellis": codes.to(torch.int16)}
    for kind, size in (("u", columns), ("v", rows)):
        if signs:
            packed = torch.randint(-(1 << 15), 1 << 15, (size // 16,))
            stored[f"s{kind}"] = packed.to(torch.int16)
        else:
            factors = torch.randn(size).sign() * (torch.rand(size) + 0.5)
            factors *= weight.float().std() ** 0.5
            stored[f"s{kind}h"] = factors.half()
    if codebook in MULTIPLIERS:
        marker = np.array(MULTIPLIERS[codebook], dtype=np.uint32).view(np.int32)
        stored[codebook] = torch.from_numpy(marker.copy())
    height, width = weight.shape
    stored["dense"] = dense(stored)[:height, :width].contiguous()
    return stored


def dense(stored: Tensors) -> torch.Tensor:
    """float32 [O, I]: what the tensors stand for."""
    rotated = hadamard(hadamard(inner(stored)).T)
    of_inputs, of_outputs = (
        stored[f"s{kind}h"].float().numpy() if f"s{kind}h" in stored else spread(stored[f"s{kind}"])
        for kind in "uv"
    )
    with np.errstate(all="ignore"):
        factors = of_outputs[:, None] / np.float32(128) * of_inputs
        return torch.from_numpy(rotated * factors)


def inner(stored: Tensors) -> np.ndarray:
    """float32 [I, O]: the values of the codes, a bit at a time."""
    trellis = stored["trellis"].numpy()
    rows, columns, width = trellis.shape
    bits = width // 16
    words = np.ascontiguousarray(trellis).view(np.uint32).astype(">u4")
    ring = np.unpackbits(words.view(np.uint8), axis=2).astype(np.uint64)
    ends = (np.arange(256)[:, None] + 1) * bits - 16 + np.arange(16)
    codes = ring[:, :, ends % (256 * bits)] @ (1 << np.arange(15, -1, -1, dtype=np.uint64))
    values = decoded(codes.reshape(-1), stored).reshape(rows, columns, 256)
    tile = np.empty_like(values)
    for lane in range(32):
        for nth in range(8):
            row = lane % 4 * 2 + nth % 2 + (8 if nth & 2 else 0)
            column = lane // 4 + (8 if nth & 4 else 0)
            tile[:, :, row * 16 + column] = values[:, :, lane * 8 + nth]
    tile = tile.reshape(rows, columns, 16, 16).transpose(0, 2, 1, 3)
    return tile.reshape(rows * 16, columns * 16).astype(np.float32)


def decoded(codes: np.ndarray, stored: Tensors) -> np.ndarray:
    """float16: the codebook's values of codes."""
    if "mul1" in stored:
        total = (codes * 0x83DCD12D & 0xFFFFFFFF).astype(np.uint32).view(np.uint8)
        sums = 1024 + total.reshape(-1, 4).sum(1, dtype=np.int64)
        slope, offset = np.array([0x1EEE, 0xC931], dtype=np.uint16).view(np.float16).astype(float)
        return (sums * slope + offset).astype(np.float16)
    products = codes * 0xCBAC1FED if "mcg" in stored else codes * 89226354 + 64248484
    bits = (products & 0x8FFF8FFF) ^ 0x3B603B60
    halves = bits.astype(np.uint32).view(np.float16).reshape(-1, 2)
    return halves[:, 0] + halves[:, 1]


def hadamard(x: np.ndarray) -> np.ndarray:
    """Hadamard's matrix of 128 times each 128 rows of [n, m]."""

    def rotated(x: np.ndarray) -> np.ndarray:
        if x.shape[1] == 1:
            return x
        half = x.shape[1] // 2
        a, b = rotated(x[:, :half]), rotated(x[:, half:])
        return np.concatenate((a + b, a - b), 1)

    return rotated(x.reshape(len(x) // 128, 128, -1)).reshape(x.shape)


def spread(packed: torch.Tensor) -> np.ndarray:
    bits = packed.numpy().view(np.uint16)[:, None] >> np.arange(16) & 1
    return (1 - 2.0 * bits).astype(np.float32).reshape(-1)


def whole_blocks(settings: dict[str, Any]) -> None:
    """A model whose every size is a whole number of blocks."""
    settings.update(
        hidden_size=128, intermediate_size=256, head_dim=64, num_hidden_layers=2, vocab_size=128
    )
    if "moe_intermediate_size" in settings:
        settings.update(moe_intermediate_size=128, num_experts=3)


def parts(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """A linear's weight as the library stores it: one that stands for several (Phi-3) in parts."""
    home, _, last = name.removesuffix(".weight").rpartition(".")
    names = {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    }.get(last)
    if names is None:
        return {name: weight}
    # Twice as many heads as keys.
    sizes = [weight.shape[0] // size for size in ((2, 4, 4) if len(names) == 3 else (2, 2))]
    split = zip(names, weight.split(sizes), strict=True)
    return {f"{home}.{part}.weight": own for part, own in split}


def make_pair(
    folder: Path,
    name: str,
    bits: int,
    codebook: str,
    signs: bool = False,
    change: Any = whole_blocks,
) -> tuple[Path, Path]:
    """A random model, its linears and its head quantized, the head in other bits; and a dense one of
    what they stand for, whose head is its own."""
    packed, dense = folder / "packed", folder / "dense"
    for target in (packed, dense):
        make_checkpoint(target, name, dtype=torch.float16, change=change)
    made: dict[str, torch.Tensor] = {}

    def pack(tensors: Tensors) -> None:
        torch.manual_seed(1)
        # The library stores a head of its own even where it is tied.
        tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"].clone())
        for key in [key for key in tensors if LINEAR.search(key)]:
            own = 6 if "lm_head" in key else bits
            of_parts = []
            for name, weight in parts(key, tensors.pop(key)).items():
                stored = quantize(weight, own, codebook, signs)
                of_parts.append(stored.pop("dense"))
                tensors |= {f"{name.removesuffix('weight')}{s}": t for s, t in stored.items()}
            made[key] = torch.cat(of_parts)

    def decode(tensors: Tensors) -> None:
        tensors |= made

    edit_tensors(packed, pack)
    edit_tensors(dense, decode)
    edit_config(packed, quantization_config=config(bits, codebook))
    edit_config(dense, tie_word_embeddings=False)
    return packed, dense


def case(bits: int, codebook: str, *models: str, signs: bool = False) -> Case:
    return Case(
        f"{bits} {codebook}{' signs' * signs}",
        lambda w: quantize(w, bits, codebook, signs),
        config(bits, codebook),
        f"EXL3 {bits} bits {codebook}",
        models=models,
        dtypes=("float32", "float16"),
        shape=(128, 256),
    )


def whole_pair(folder: Path, name: str, case: Case) -> Pair:
    bits, codebook, *signs = case.name.split()
    return make_pair(folder, name, int(bits), codebook, bool(signs))


FAMILY = Family(
    Modules,
    config(),
    (
        # Phi-3's linears are one for several, which are stored apart.
        case(4, "mul1", "llama", "phi3"),
        # The head is stored apart from the embedding that the config ties it to.
        case(3, "mcg", "llama-tied"),
        case(2, "3inst", "qwen3_moe"),
        case(5, "3inst", "qwen2", signs=True),
        case(1, "3inst", signs=True),
    ),
    pair=whole_pair,
    promises=False,
    weight=lambda stored, *_: dense(stored),
    not_decoded=(({"codebook": "2mad"}, "codebook '2mad'"),),
    not_understood=(
        ({"bits": "4"}, "bits '4' is not a number"),
        ({"head_bits": True}, "head_bits True is not a number"),
        ({"codebook": 3}, "codebook 3 is not a string"),
    ),
)
