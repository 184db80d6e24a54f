"""Names and patterns of modules, as `targets` and `ignore` have them.

Engines fuse some linears into one, and configs written for an engine may use the fused name where the
checkpoint has the parts, or the other way round. They are names in the model that was exported, and a
checkpoint may have the same modules under another beginning (`model.language_model.layers` as
`language_model.model.layers`): what is called so at a name's beginning doesn't count.

A checkpoint of experts has tens of thousands of modules, and lists of ignored ones are as long, so
exact names are looked up and patterns compiled once. Patterns come with the checkpoint and may take for
ever: matches that take longer than a glance have PATIENCE seconds, all those by one list together.

`NotConverted` is a list of modules that stay dense, as transformers matches names with it.
Source: transformers 5.23, `should_convert_module`; 4.46, `_replace_with_bnb_linear`.
"""

import re
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import regex

from scoremode.errors import CheckpointError, words_of
from scoremode.schemes.fields import Fields, shown

# Last components of embeddings' names; every other module with a quantized weight is a linear.
EMBEDDINGS = {"embed_tokens", "embed_in", "wte", "word_embeddings", "tok_embeddings"}
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_OUTER = frozenset(("model", "language_model"))
_WHOLE = {part: whole for whole, parts in _FUSED.items() for part in parts}

# Seconds. A sane pattern takes a microsecond.
PATIENCE = 1.0
_GLANCE = 1e-3
_LONGEST = 2000
# Patterns that may take long: many repeats, or one of a group.
_MANY_REPEATS = re.compile(r"(?:[*+?{].*){4}|\)[*+?{]|\\[1-9]|\(\?", re.DOTALL)
_SHORT = 200
# Syntax that `re`, which the library uses, and `regex`, which can be stopped, read differently.
_DIFFERENT = re.compile(r"\{(?![0-9,])|\[\[|\[\^?\[|\[:|\(\?[|R0-9&+-]")


def plain(name: str) -> str:
    """The name without the beginnings that other releases of a model's class call otherwise."""
    first, dot, rest = name.partition(".")
    while dot and first in _OUTER:
        name = rest
        first, dot, rest = name.partition(".")
    return name


def is_one_of_layers(module: str) -> bool:
    """Tells whether a linear is one of a decoder layer's, and no expert's.

    What quantizes a model while it is loaded leaves heads, and experts that the model has as one.
    """
    parts = module.split(".")
    return any(part.isdecimal() for part in parts) and "experts" not in parts


def parts_of(module: str) -> tuple[str, ...]:
    """The names of the linears that are fused into `module`, none if it isn't fused."""
    parent, dot, last = module.rpartition(".")
    return tuple([f"{parent}{dot}{part}" for part in _FUSED.get(last, ())])


def whole_of(module: str) -> str | None:
    """The name of what `module` is fused into, None if it is no part."""
    parent, dot, last = module.rpartition(".")
    whole = _WHOLE.get(last)
    return None if whole is None else f"{parent}{dot}{whole}"


class Patterns:
    """A list of exact names and `re:` patterns, which match from a name's start.

    Raises CheckpointError, naming `where`, for a pattern that doesn't compile.
    """

    def __init__(self, names: Iterable[str], where: str):
        self._where = where
        self._left = PATIENCE
        names = list(names)
        self._exact = frozenset(names)
        self._plain = frozenset(map(plain, names))
        self._patterns: list[re.Pattern[str] | regex.Pattern[str]] = []
        for name in names:
            if name.startswith("re:"):
                self._compile(name.removeprefix("re:"))

    def has(self, name: str) -> bool:
        """Tells whether this very name is in the list."""
        return name in self._exact

    def rank(self, module: str) -> int | None:
        """0 for the name, whatever it begins with, 1 for a pattern, None for neither.

        A part is also matched by the name of what it is fused into. A pattern that matches one of
        the parts is about parts, though: `re:.*v_proj` fits `qkv_proj` by accident and says nothing
        of `q_proj`.
        """
        whole = whole_of(module)
        if plain(module) in self._plain or (whole is not None and plain(whole) in self._plain):
            return 0
        for pattern in self._patterns:
            if self._matches(pattern, module):
                return 1
            if (
                whole is not None
                and self._matches(pattern, whole)
                and not any(self._matches(pattern, part) for part in parts_of(whole))
            ):
                return 1
        return None

    def matches(self, name: str) -> bool:
        """Tells whether a pattern matches this very name, whatever it is fused into."""
        return self.first(name) is not None

    def first(self, name: str) -> int | None:
        """The number among the patterns of the first that matches this very name, None if none does."""
        for index, pattern in enumerate(self._patterns):
            if self._matches(pattern, name):
                return index
        return None

    def _matches(self, pattern: "re.Pattern[str] | regex.Pattern[str]", name: str) -> bool:
        if isinstance(pattern, re.Pattern):
            if len(name) <= _SHORT:
                return pattern.match(name) is not None
            pattern = regex.compile(pattern.pattern)
        begin = time.perf_counter()
        try:
            return pattern.match(name, timeout=max(self._left, _GLANCE)) is not None
        except TimeoutError:
            raise CheckpointError(
                f"quantization_config's {self._where}: pattern {shown(pattern.pattern)} takes too "
                f"long on {name}"
            ) from None
        finally:
            took = time.perf_counter() - begin
            self._left -= took if took > _GLANCE else 0

    def _compile(self, text: str) -> None:
        if len(text) > _LONGEST or _DIFFERENT.search(text):
            raise self._not_understood(text, "is not supported")
        try:
            with warnings.catch_warnings():
                # Python warns of syntax that may change its meaning.
                warnings.simplefilter("error")
                pattern = re.compile(text)
                may_last = _MANY_REPEATS.search(text) is not None
                self._patterns.append(regex.compile(text) if may_last else pattern)
        except (re.error, regex.error, OverflowError, RecursionError, Warning, ValueError) as error:
            why = words_of(error, 100, named=False)
            raise self._not_understood(text, f"is not a regular expression ({why})") from None

    def _not_understood(self, text: str, why: str) -> CheckpointError:
        return CheckpointError(
            f"quantization_config can't be understood: {self._where}: pattern {shown(text)} {why}"
        )


# The characters of a regular expression besides letters and the dots of names.
_SPECIAL = frozenset("\\*+?[](){}|^$")
_BOUNDARY = r"(?:(?<=\.)|(?=\.|$))"


@dataclass(frozen=True)
class NotConverted:
    """The names of a config's `modules_to_not_convert`; `where`: the field's own name."""

    names: tuple[str, ...] = ()
    where: str = "modules_to_not_convert"

    @classmethod
    def of(cls, fields: Fields, *fields_names: str) -> "NotConverted":
        """The list in the first of these fields that is there. Raises CheckpointError for one that
        can't be understood, patterns that don't compile included."""
        said = (name for name in fields_names if fields.any(name) is not None)
        where = next(said, fields_names[0])
        result = cls(fields.names(where), where)
        assert result._patterns is not None
        return result

    def name(self, module: str) -> bool:
        """Tells whether the list names the module: by its own name or that of one around it, by the
        end of its name, or as a regular expression."""
        parts = module.split(".")
        around = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
        return (
            not self._whole.isdisjoint(around)
            or module.endswith(self.names)
            or self._patterns.matches(module)
        )

    def spares(self, module: str) -> bool:
        """Tells whether the list may have left the module dense: as it `name`s it, by older releases'
        rule (a run of whole parts of its name, up to a part's end), or under another beginning."""
        return self.name(module) or any(f"{plain(name)}." in f"{module}." for name in self.names)

    @cached_property
    def _whole(self) -> frozenset[str]:
        return frozenset(self.names)

    @cached_property
    def _patterns(self) -> Patterns:
        # A dot at the end may stand for any character: of layer 11, too, after `layers.1`.
        special = [n for n in self.names if n.endswith(".") or not _SPECIAL.isdisjoint(n)]
        return Patterns((f"re:(?:{name}){_BOUNDARY}" for name in special), self.where)
