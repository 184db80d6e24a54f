"""What a linear or an embedding would be stored as, by MLX's `quantization` alone.

Of modules that it doesn't name those are quantized whose inputs are whole groups, as mlx-lm does where
it is told nothing else.
Source: mlx-lm 0.32, `quantize_model`.
"""

from collections.abc import Mapping
from typing import Any

from scoremode.schemes.foreseen import Foresee, Foreseen, Linear
from scoremode.schemes.mlx.config import parse_mlx

__all__ = ["foresee"]


def foresee(config: Mapping[str, Any]) -> Foresee:
    """Raises CheckpointError, UnsupportedFormat for a config that can't be read."""
    parsed = parse_mlx(config)

    def tensors(linear: Linear) -> Mapping[str, Foreseen] | None:
        mode, (rows, columns) = parsed.of(linear.module), linear.shape
        if mode is None or (columns % mode.size and not parsed.claims(linear.module)):
            return None
        groups = rows, -(-columns // mode.size)
        words = Foreseen("U32", (rows, -(-columns * mode.bits // 32)))
        if mode.name != "affine":
            return {"weight": words, "scales": Foreseen("U8", groups)}
        affine = Foreseen(linear.dtype, groups)
        return {"weight": words, "scales": affine, "biases": affine}

    return tensors
