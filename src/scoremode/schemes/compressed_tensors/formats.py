"""Every quantization format that is decoded, by the `format` of a compressed-tensors config."""

from collections.abc import Callable

from scoremode.schemes.base import FactoredScheme
from scoremode.schemes.compressed_tensors import (
    float_quantized,
    int_quantized,
    mx,
    naive_quantized,
    nvfp4,
    pack_quantized,
)
from scoremode.schemes.compressed_tensors.stored import Stored

__all__ = ["FORMATS"]

FORMATS: dict[str, Callable[[Stored], FactoredScheme]] = {
    "pack-quantized": pack_quantized.build,
    "int-quantized": int_quantized.build,
    "float-quantized": float_quantized.build,
    "naive-quantized": naive_quantized.build,
    "nvfp4-pack-quantized": nvfp4.build,
    "mxfp4-pack-quantized": mx.build_mxfp4,
    "mxfp6-pack-quantized": mx.build_mxfp6,
    "mxfp8-quantized": mx.build_mxfp8,
}
