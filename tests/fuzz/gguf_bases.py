"""Small valid GGUF files to mutate: dense ones, every block type, splits, and other architectures."""

import tempfile
from pathlib import Path

import numpy as np
from fuzz.files import Files
from gguf.constants import GGMLQuantizationType
from support.gguf.files import (
    I32,
    METADATA,
    SHAPES,
    STRING,
    array,
    contents,
    file,
    info,
    llama,
    split,
)
from support.gguf.golden import make_pair, with_types

from scoremode.checkpoint.gguf.header import TYPES

_TOKENS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": array(STRING, [*map(chr, range(33, 112)), "<s>"]),
    "tokenizer.ggml.token_type": array(I32, [1] * 79 + [3]),
    "tokenizer.ggml.merges": array(STRING, ["a b", "c d"]),
    "tokenizer.ggml.bos_token_id": 79,
    "general.file_type": 7,
}
_MATRICES = [name for name, shape in SHAPES.items() if len(shape) == 2]
_GOLDEN = ("qwen2", "gemma2", "gpt2", "qwen3_moe", "gpt_oss", "deepseek_v2")


def gguf_bases() -> dict[str, Files]:
    """Always the same ones."""
    bases: dict[str, Files] = {}
    for kind in ("F32", "F16", "BF16"):
        bases[f"GGUF {kind}"] = _one(llama(dict.fromkeys(_MATRICES, kind), _TOKENS))
    bases["GGUF tied"] = _one(llama({}, {}, [name for name in SHAPES if name != "output.weight"]))
    short = [kind.name for kind in TYPES.values() if kind.is_packed and kind.values <= 64]
    mixed = dict(zip(_MATRICES, short, strict=False))
    bases["GGUF blocks of 32"] = _one(_random(mixed))
    for kind in TYPES.values():
        if kind.values == 256:
            bases[f"GGUF {kind.name}"] = _one(_random({"blk.0.ffn_down.weight": kind.name}))
    bases["GGUF split"] = split(dict.fromkeys(_MATRICES, "Q8_0"))
    bases["GGUF aligned to 8"] = _one(_random(mixed, alignment=8))
    with tempfile.TemporaryDirectory() as folder:
        for name in _GOLDEN:
            _, made = make_pair(Path(folder) / name, name)
            packed = with_types(made, Path(folder) / f"{name}.gguf", _as_q8_0)
            bases[f"GGUF of {name}"] = _one(packed.read_bytes())
    return bases


def _one(content: bytes) -> Files:
    return {"model.gguf": content}


def _as_q8_0(name: str, shape: tuple[int, ...]) -> str | None:
    is_matrix = len(shape) > 1 and name.endswith("weight") and shape[-1] % 32 == 0
    return "Q8_0" if is_matrix and "gate_inp" not in name and "conv" not in name else None


def _random(types: dict[str, str], alignment: int = 32) -> bytes:
    """A llama whose blocks are any bytes."""
    random = np.random.default_rng(0)
    infos, data = [], b""
    dense = contents({})
    for name, shape in SHAPES.items():
        kind = TYPES[types.get(name, "F32")]
        if shape[-1] % kind.values:
            kind = TYPES["Q8_0"]
        content = dense[name]
        if kind.is_packed:
            size = np.prod(shape) // kind.values * kind.bytes
            content = random.integers(0, 256, int(size), np.uint8).tobytes()
        infos.append(info(name, GGMLQuantizationType[kind.name], shape, len(data)))
        data += content + bytes(-len(content) % alignment)
    metadata = METADATA | _TOKENS | {"general.alignment": alignment}
    return file(metadata, infos, data, alignment=alignment)
