"""The modules of a GGUF file that are stored in blocks, and their Schemes.

A linear or an embedding is one tensor, uint8 [O, bytes of a row], whose last name is its blocks' type:
`q_proj.Q4_K`. So are a layer's experts, stored as one, with [E, O, bytes of a row]:
`experts.gate_proj.Q4_K`; and DeepSeek's heads in `k_b_proj` and `v_b_proj`. A `scale` float32 [1]
beside it, of experts [E], is one more factor.
"""

import re
from collections.abc import Mapping
from typing import Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.gguf.types import TYPES
from scoremode.checkpoint.header import TensorInfo
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.base import Scheme
from scoremode.schemes.fields import shown
from scoremode.schemes.gguf.block_types import BLOCK_TYPES
from scoremode.schemes.gguf.blocks import Blocks
from scoremode.schemes.gguf.scaled import SCALE, Scaled
from scoremode.schemes.headers import Headers
from scoremode.schemes.library import Library, TensorsDecide
from scoremode.schemes.stacked import Expert, Stacked

__all__ = ["METHOD", "Modules"]

METHOD = "quantization method 'gguf'"
# Q1_0 as well, so that it is refused by name.
_TYPES = frozenset(kind.name for kind in TYPES.values() if kind.is_packed)
_STACKED = re.compile(
    rf"(.*\.(?:experts\.[^\d.][^.]*|[kv]_b_proj))\.({'|'.join(sorted({*_TYPES, SCALE}))})"
)


class Modules(Library):
    """Linears, embeddings and experts in blocks of one of ggml's types."""

    methods = frozenset(("gguf",))
    marks = _TYPES

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]):
        self._config = TensorsDecide()
        self._alike: dict[tuple, Scheme] = {}
        if unknown := set(config) - {"quant_method"}:
            names = ", ".join(map(shown, sorted(unknown)))
            raise UnsupportedFormat(f"{METHOD} with {names}: not decoded")
        if not any(self.split(name)[1] in self.marks for name in checkpoint.tensors):
            raise UnsupportedFormat(f"{METHOD}, and no tensor is in blocks: not decoded")

    @property
    def config(self) -> TensorsDecide:
        return self._config

    @staticmethod
    def split(name: str) -> tuple[str, str]:
        if found := _STACKED.fullmatch(name):
            return f"{found[1]}.weight", found[2]
        module, _, suffix = name.rpartition(".")
        return module, suffix

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Scheme, str]:
        stored = Headers(module, tensors)
        types = sorted(set(tensors) & self.marks)
        if len(types) != 1 or "weight" in tensors:
            others = " and ".join((*types, *(["weight"] if "weight" in tensors else [])))
            raise CheckpointError(f"{module}: stored more than once, as {others}")
        (kind,) = types
        if kind not in BLOCK_TYPES:
            raise UnsupportedFormat(f"{module}: blocks of ggml's type {kind}: not decoded")
        if unknown := set(tensors) - {kind, SCALE, "bias"}:
            names = ", ".join(sorted(unknown))
            raise UnsupportedFormat(f"{module}: {METHOD} with {names} is not supported")
        stacked = _STACKED.fullmatch(f"{module.removesuffix('.weight')}.{kind}") is not None
        *count, rows, width = stored.of_shape(kind, ("U8",), (None,) * (3 if stacked else 2))
        block = BLOCK_TYPES[kind]
        if width % block.bytes:
            raise stored.wrong(f"{width} bytes a row are no whole {kind} blocks of {block.bytes}")
        scaled = SCALE in tensors
        if scaled:
            stored.expect(SCALE, ("F32",), [tuple(count or [1])])
        key = (kind, *count, rows, width, scaled)
        if key not in self._alike:
            blocks = Blocks(kind, (rows, width // block.bytes * block.values))
            one = Scaled(blocks) if scaled else blocks
            names = tuple((name, name) for name in one.tensors)
            self._alike[key] = Stacked(count[0], Expert(one, names)) if stacked else one
        return self._alike[key], "gguf"
