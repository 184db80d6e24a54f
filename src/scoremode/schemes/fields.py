"""Fields of a config's objects, read by the type they must have.

JSON has no schema, and Python is generous: `int("4")`, `int(4.7)`, `bool("false")`, `True == 1` would
all pass for what somebody meant. A value of another type than the field's is an error that shows it.

A `TensorFormat` is what configs say of one tensor: the fields of compressed-tensors' QuantizationArgs
that decide it, and what other libraries have beside them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scoremode.errors import CheckpointError, UnsupportedFormat

_NOT = "quantization_config can't be understood"


class Fields:
    """An object of `quantization_config`; `where` names it in errors, "" is the config itself.

    A field that is missing has its default. One that is null counts as missing where the default is
    None. Readers raise CheckpointError for a value of another type; `refuse` and `choice` raise
    UnsupportedFormat, in the name of the quantization `method`.
    """

    def __init__(self, value: Any, where: str = "", method: str = ""):
        self.where, self.method = where, method
        if not isinstance(value, Mapping):
            raise CheckpointError(f"{_NOT}: {where} {shown(value)} is not an object")
        self._value = value

    def wrong(self, name: str, expected: str) -> CheckpointError:
        value, where = shown(self._value.get(name)), f"{self.where}: " if self.where else ""
        return CheckpointError(f"{_NOT}: {where}{name} {value} is not {expected}")

    def not_decoded(self, name: str, value: Any) -> UnsupportedFormat:
        """The error for a field that has a meaning, and none here."""
        return not_decoded(self.method, f"{self.where}, {name}" if self.where else name, value)

    def refuse(self, *names: str) -> None:
        """Raises UnsupportedFormat where one of these fields says anything."""
        for name in names:
            if value := self.any(name):
                raise self.not_decoded(name, value)

    def choice(self, name: str, values: Iterable[str], default: str | None = None) -> str | None:
        """A string that is one of `values`; UnsupportedFormat for any other."""
        value = self.text(name, default)
        if value is not None and value not in values:
            raise self.not_decoded(name, value)
        return value

    def block(self, name: str, default: Any = None) -> tuple[int, int] | None:
        """Rows and columns."""
        match self.any(name, default):
            case None:
                return None
            case [int(rows), int(columns)] if bool not in (type(rows), type(columns)):
                if 0 < rows < 1 << 31 and 0 < columns < 1 << 31:
                    return rows, columns
        raise self.wrong(name, "rows and columns")

    def size(self, name: str, default: int | None = None) -> int | None:
        """A number of columns, or -1 for all of them."""
        value = self.whole(name, default)
        if value is not None and value != -1 and not 0 < value < 1 << 31:
            raise self.wrong(name, "a size")
        return value

    def any(self, name: str, default: Any = None) -> Any:
        """The value as it is."""
        return self._value.get(name, default)

    def __iter__(self) -> Iterator[str]:
        """Names of the fields that are there."""
        return iter(self._value)

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._typed(name, str, "a string", default)

    def whole(self, name: str, default: int | None = None) -> int | None:
        return self._typed(name, int, "an integer", default)

    def flag(self, name: str, default: bool | None = None) -> bool | None:
        return self._typed(name, bool, "true or false", default)

    def names(self, name: str) -> tuple[str, ...]:
        """A list of strings; () where it is missing."""
        value = self._typed(name, list, "a list of names", None) or ()
        if not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "a list of names")
        return tuple(value)

    def object(self, name: str) -> "Fields | None":
        value, where = self._value.get(name), f"{self.where}, {name}" if self.where else name
        return None if value is None else Fields(value, where, self.method)

    def _typed(self, name: str, kind: type, expected: str, default: Any) -> Any:
        value = self._value.get(name, default)
        if value is None and default is None:
            return None
        # True is an int to Python.
        if type(value) is not kind:
            raise self.wrong(name, expected)
        return value


def not_decoded(method: str, name: str, value: Any) -> UnsupportedFormat:
    """The error for a field of a method's config that has a meaning, and none here."""
    return UnsupportedFormat(f"{method} with {name} {shown(value)}: not decoded")


def shown(value: Any) -> str:
    """A value of JSON as Python writes it, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:60]}…"


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


def declared_cache(parse: Callable[[], TensorFormat | None]) -> TensorFormat | UnreadCache | None:
    """The format of keys and values that `parse` finds, or why it can't be read."""
    try:
        return parse()
    except (CheckpointError, UnsupportedFormat) as error:
        return UnreadCache(str(error))
