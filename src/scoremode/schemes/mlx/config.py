"""`quantization` of MLX's configs, which newer ones have once more as `quantization_config`.

A group size, a width in bits and a mode for all modules with scales, and by name what others have.
Source: mlx-lm 0.32, `load_model`, `quantize_model`; mlx 0.32, `quantize`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.fields import Fields, not_decoded, shown
from scoremode.schemes.patterns import plain

__all__ = ["METHOD", "MlxConfig", "Mode", "parse_mlx"]

METHOD = "quantization method 'mlx'"
_BITS = (2, 3, 4, 5, 6, 8)
# That a linear's inputs are quantized as its weight is (mlx's QQLinear).
_INPUTS = "quantize_input"
# Group size and bits of the modes that have but one pair.
_FIXED = {"mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}


@dataclass(frozen=True)
class Mode:
    """How a module's weight is quantized: `affine`, or small floats under scales of one byte."""

    name: str
    size: int
    bits: int


@dataclass(frozen=True)
class MlxConfig:
    """What of the config decides what a weight means.

    - `default`: of modules that are not named.
    - `named`: by module, None for one that stays dense; without beginnings, which may be others than a
      wrapper's tensors have.
    """

    default: Mode
    named: Mapping[str, Mode | None]

    @property
    def kv_cache(self) -> None:
        return None

    def claims(self, module: str) -> bool:
        """True where the module is named; mlx-lm takes others for what they are stored as."""
        return self.named.get(plain(module)) is not None

    def of(self, module: str) -> Mode | None:
        return self.named.get(plain(module), self.default)


def parse_mlx(config: Mapping[str, Any]) -> MlxConfig:
    """Reads MLX's `quantization`.

    Raises UnsupportedFormat for what is not decoded, CheckpointError for what can't be understood.
    """
    fields = Fields(config, "its top")
    default = _mode(fields)
    named: dict[str, Mode | None] = {}
    for name, value in config.items():
        if name in ("group_size", "bits", "mode", "quant_method", _INPUTS):
            continue
        if value is True:
            mode = default
        elif value in (False, None, {}) and type(value) not in (int, float):
            # As to the library, which asks whether there is something.
            mode = None
        elif isinstance(value, Mapping):
            mode = _mode(Fields(value, name))
        else:
            raise not_decoded(METHOD, name, value)
        if named.setdefault(plain(name), mode) != mode:
            raise CheckpointError(
                f"quantization_config can't be understood: {shown(name)} is named twice, with other "
                "beginnings, and differs"
            )
    return MlxConfig(default, named)


def _mode(fields: Fields) -> Mode:
    """What is missing has the library's own values, in a module's object too."""
    if fields.any(_INPUTS):
        raise _unsupported(fields, f"{_INPUTS} {shown(fields.any(_INPUTS))}")
    name = fields.text("mode") or "affine"
    size, bits = fields.whole("group_size"), fields.whole("bits")
    if name in _FIXED:
        fixed = _FIXED[name]
        if (size or fixed[0], bits or fixed[1]) != fixed:
            raise _unsupported(fields, f"mode '{name}' of {bits} bits in groups of {size}")
        return Mode(name, *fixed)
    if name != "affine":
        raise _unsupported(fields, f"mode {shown(name)}")
    size, bits = size or 64, bits or 4
    if size not in (16, 32, 64, 128) or bits not in _BITS:
        raise _unsupported(fields, f"{bits} bits in groups of {size}")
    return Mode(name, size, bits)


def _unsupported(fields: Fields, what: str) -> UnsupportedFormat:
    where = "" if fields.where == "its top" else f"{fields.where}: "
    return UnsupportedFormat(f"{where}{METHOD} with {what}: not decoded")
