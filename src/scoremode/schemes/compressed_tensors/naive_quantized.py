"""naive-quantized: one int8 or float8 an element, what compressed-tensors falls back to.

Stored as int-quantized and float-quantized are, by the type of the weights.
"""

from scoremode.schemes.compressed_tensors import float_quantized, int_quantized
from scoremode.schemes.compressed_tensors.float_quantized import FloatQuantized
from scoremode.schemes.compressed_tensors.int_quantized import IntQuantized
from scoremode.schemes.compressed_tensors.stored import Stored

__all__ = ["build"]


def build(stored: Stored) -> IntQuantized | FloatQuantized:
    """The Scheme of a naive-quantized module. Raises CheckpointError, UnsupportedFormat."""
    if stored.weights.type == "int":
        return int_quantized.build(stored)
    return float_quantized.build(stored)
