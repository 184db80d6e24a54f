"""Format of a quantized tensor: the fields of compressed-tensors' QuantizationArgs that decide it, and
what other libraries have beside them."""

from collections.abc import Callable
from dataclasses import dataclass

from scoremode.errors import CheckpointError, UnsupportedFormat

__all__ = ["TensorFormat", "UnreadCache", "declared_cache"]


@dataclass(frozen=True)
class TensorFormat:
    """The format in which one tensor (weights, input or output activations) is quantized.

    - `powers_of_two`: dynamic scales are rounded up to powers of two (DeepSeek's `ue8m0`).
    - `outliers`: columns with a value of this magnitude are multiplied apart, in 16 bits (LLM.int8).
    - `inverse`: an input's integers are x · (1/s), of a scale of at least float32's epsilon (torchao,
      Quark), and not x / s.
    - `rounded`: dynamic scales are rounded to the dtype of the input (torchao), not float32.
    """

    bits: int
    type: str
    strategy: str
    group_size: int | None = None
    symmetric: bool = True
    dynamic: bool | str = False
    actorder: str | None = None
    block: tuple[int, int] | None = None
    scale_dtype: str | None = None
    powers_of_two: bool = False
    outliers: float | None = None
    inverse: bool = False
    rounded: bool = False

    @property
    def is_mx(self) -> bool:
        """Groups of 32 floats under a power of two (OCP Microscaling).

        By the scales' dtype; 4-bit floats in groups of 32 have had no other kind of scale, and
        older releases do not write it.
        """
        return (
            self.type == "float"
            and self.strategy == "group"
            and self.group_size == 32
            and (self.scale_dtype == "uint8" or (self.scale_dtype is None and self.bits == 4))
        )

    @property
    def described(self) -> str:
        """The format with when its scales are made: `float8 tensor static`."""
        return f"{self} {'dynamic' if self.dynamic else 'static'}"

    def __str__(self) -> str:
        granularity = f"group {self.group_size}" if self.group_size else self.strategy
        if self.block:
            granularity = f"block {self.block[0]}x{self.block[1]}"
        return f"{self.type}{self.bits} {granularity}{'' if self.symmetric else ' asymmetric'}"


@dataclass(frozen=True)
class UnreadCache:
    """A declared format of keys and values that isn't decoded, and `why`: the weights don't need it,
    so that only `--kv-cache as-declared` is refused."""

    why: str

    @property
    def described(self) -> str:
        return f"not decoded: {self.why}"


def declared_cache(
    parse: Callable[[], TensorFormat | None],
) -> TensorFormat | UnreadCache | None:
    """What `parse` finds declared of keys and values, or why it can't be read."""
    try:
        return parse()
    except (CheckpointError, UnsupportedFormat) as error:
        return UnreadCache(str(error))
