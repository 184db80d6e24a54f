"""compressed-tensors' formats by their names, and a module's Scheme by what the config says of it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.header import TensorInfo
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.base import FactoredScheme
from scoremode.schemes.compressed_tensors import mx, naive_quantized, nvfp4, pack_quantized
from scoremode.schemes.compressed_tensors.config import QuantizationConfig, parse_quantization
from scoremode.schemes.compressed_tensors.foreseen import foresee
from scoremode.schemes.compressed_tensors.stored import Stored
from scoremode.schemes.foreign import sparse_format
from scoremode.schemes.foreseen import Foresee
from scoremode.schemes.library import Library

__all__ = ["FORMATS", "Modules"]

FORMATS: dict[str, Callable[[Stored], FactoredScheme]] = {
    "pack-quantized": pack_quantized.build,
    "int-quantized": naive_quantized.build_int,
    "float-quantized": naive_quantized.build_float,
    "naive-quantized": naive_quantized.build,
    "nvfp4-pack-quantized": nvfp4.build,
    "mxfp4-pack-quantized": partial(mx.build, bits=4),
    "mxfp6-pack-quantized": partial(mx.build, bits=6),
    "mxfp8-quantized": partial(mx.build, bits=8),
}


class Modules(Library):
    """The quantized modules of a checkpoint, each in the format of the group that claims it."""

    methods = frozenset(("compressed-tensors",))
    marks = frozenset(
        ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape")
    )

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]):
        self._checkpoint = checkpoint
        self._config = parse_quantization(config)
        # Experts come by the ten thousand, and but for their names each is like the other.
        self._alike: dict[tuple, FactoredScheme] = {}

    @property
    def config(self) -> QuantizationConfig:
        return self._config

    @staticmethod
    def foresee(config: Mapping[str, Any], model: Mapping[str, Any]) -> Foresee:
        return foresee(config)

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[FactoredScheme, str]:
        stored = self._claim(module, tensors)
        key = self._key(stored)
        scheme = self._alike.get(key) if key else None
        if scheme is None:
            scheme = FORMATS[stored.format](stored)
            if key:
                self._alike[key] = scheme
        return scheme, stored.group.name

    def _claim(self, module: str, tensors: Mapping[str, TensorInfo]) -> Stored:
        group = self.config.group_of(module)
        if group is None:
            raise CheckpointError(
                f"{module} is stored quantized, and no quantization group claims it"
            )
        if group.weights is None:
            raise CheckpointError(
                f"{module} is stored quantized, and group {group.name} quantizes no weights"
            )
        read = self._checkpoint.read_bytes
        stored = Stored(module, tensors, self.config, group, group.weights, read)
        if stored.format == "mixed-precision":
            raise stored.wrong(
                f"quantized with mixed precision, and group {group.name} names no format"
            )
        if stored.format not in FORMATS:
            unknown = f"format {stored.format}: not known, or not one of packed weights"
            raise UnsupportedFormat(f"{module}: {sparse_format(stored.format) or unknown}")
        return stored

    def _key(self, stored: Stored) -> tuple | None:
        """All that a Scheme is made from, None where that is more than headers and a shape."""
        tensors = stored.tensors
        if "weight_g_idx" in tensors or "input_zero_point" in tensors:
            return None
        shape = tensors.get("weight_shape")
        content = stored.read(shape.name) if shape and shape.bytes <= 16 else shape
        return (id(stored.group), content, *((s, i.dtype, i.shape) for s, i in tensors.items()))
