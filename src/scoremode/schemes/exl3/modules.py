"""The quantized modules of a checkpoint of ExLlamaV3, and their Schemes.

Heads are quantized as other linears are, and apart from an embedding that they are tied to, which stays
dense; experts are linears of their own, and so are the parts of linears that a model has as one."""

from collections.abc import Mapping
from typing import Any, ClassVar

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.header import TensorInfo
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.exl3.config import METHOD, Exl3Config, parse_exl3
from scoremode.schemes.exl3.trellis import BLOCK, CODEBOOKS, MULTIPLIERS, TILE
from scoremode.schemes.exl3.weights import Exl3
from scoremode.schemes.headers import Headers
from scoremode.schemes.library import Library

__all__ = ["Modules"]

# Tensors that say no more than that a module has this codebook.
_MARKERS = CODEBOOKS[1:]
# Models of whose routed experts the library stores `up_proj` divided by 128, lest halves overflow, and
# makes up for it in the routing (`interm_div`): another model to whoever else reads it.
_DIVIDED = {"laguna", "mistral4"}
_READ = {"trellis", "suh", "svh", "su", "sv", "bias", *_MARKERS}


class Modules(Library):
    """Linears with a `trellis`."""

    methods = frozenset(("exl3",))
    marks = frozenset(("trellis", "suh", "svh"))
    records = frozenset(_MARKERS)
    # Phi-3's and GLM-4's.
    splits: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    }

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]):
        self._config = parse_exl3(config)
        self._checkpoint = checkpoint
        self._alike: dict[Exl3, Exl3] = {}
        if not any(name.endswith(".trellis") for name in checkpoint.tensors):
            raise UnsupportedFormat(f"{METHOD}, and no tensor is a trellis: not decoded")
        for described in (checkpoint.config, checkpoint.config.get("text_config")):
            kind = described.get("model_type") if isinstance(described, Mapping) else None
            if isinstance(kind, str) and kind in _DIVIDED:
                raise UnsupportedFormat(
                    f"{METHOD} of a model of type {kind!r}, whose experts it stores divided by 128: "
                    "not decoded"
                )

    @property
    def config(self) -> Exl3Config:
        return self._config

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Exl3, str]:
        stored = Headers(module, tensors)
        if unknown := set(tensors) - _READ:
            names = ", ".join(sorted(unknown))
            raise UnsupportedFormat(f"{module}: {METHOD} with {names} is not supported")
        inputs, outputs, width = stored.of_shape("trellis", ("I16",), (None, None, None))
        bits = width // TILE
        if width % TILE or not 1 <= bits <= 8:
            raise stored.wrong(f"{width} words a tile are not 1 to 8 bits in each of 256 codes")
        shape = (outputs * TILE, inputs * TILE)
        if any(size % BLOCK for size in shape):
            raise stored.wrong(
                f"{shape[0]} outputs and {shape[1]} inputs are no whole blocks of {BLOCK}"
            )
        signs = tuple(
            self._has_signs(stored, kind, size) for kind, size in (("u", shape[1]), ("v", shape[0]))
        )
        scheme = Exl3(shape, bits, self._codebook(stored), (signs[0], signs[1]))
        return self._alike.setdefault(scheme, scheme), "exl3"

    @staticmethod
    def _has_signs(stored: Headers, kind: str, size: int) -> bool:
        """Whether a side's factors are packed signs; `kind`: `u` of inputs, `v` of outputs."""
        signs, factors = f"s{kind}", f"s{kind}h"
        if signs not in stored.tensors:
            stored.expect(factors, ("F16",), [(size,)])
            return False
        if factors in stored.tensors:
            raise stored.wrong(f"it has both {signs} and {factors}")
        stored.expect(signs, ("I16",), [(size // 16,)])
        return True

    def _codebook(self, stored: Headers) -> str:
        """Raises UnsupportedFormat for multipliers that releases before 0.0.9 could be given, and that
        none since has read."""
        marked = [name for name in _MARKERS if name in stored.tensors]
        if not marked:
            return CODEBOOKS[0]
        if len(marked) > 1:
            raise stored.wrong(f"it is marked as of codebook {' and '.join(marked)}")
        stored.expect_one(marked[0], ("I32", "U32"))
        content = bytes(self._checkpoint.read_bytes(stored.tensors[marked[0]].name))
        multiplier = int.from_bytes(content, "little")
        if multiplier != MULTIPLIERS[marked[0]]:
            raise UnsupportedFormat(
                f"{stored.module}: {METHOD} with a codebook {marked[0]} of multiplier "
                f"{multiplier:#x}: not decoded"
            )
        return marked[0]
