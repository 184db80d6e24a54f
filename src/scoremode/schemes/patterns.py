"""Names and patterns of modules, as `targets` and `ignore` have them.

A checkpoint of experts has tens of thousands of modules, and lists of ignored ones are as long, so exact
names are looked up and patterns compiled once. Patterns come with the checkpoint and may take for ever:
one that takes longer than a glance is counted, and all such matches by one list have PATIENCE seconds.
"""

import re
import time
import warnings
from collections.abc import Iterable

import regex

from scoremode.errors import CheckpointError
from scoremode.schemes.fields import shown

__all__ = ["Patterns"]

# Seconds. A sane pattern takes a microsecond.
PATIENCE = 1.0
_GLANCE = 1e-3
_LONGEST = 2000
# Names of modules that an engine fuses, and of their parts: a config may use either.
_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_OTHERS = _FUSED | {part: (whole,) for whole, parts in _FUSED.items() for part in parts}
# What ends soon whatever the name: few repeats, and none of a group.
_MANY_REPEATS = re.compile(r"(?:[*+?{].*){4}|\)[*+?{]|\\[1-9]|\(\?", re.DOTALL)
_SHORT = 200
# What `re`, which the library uses, and `regex`, which can be stopped, take differently.
_DIFFERENT = re.compile(r"\{(?![0-9,])|\[\[|\[\^?\[|\[:|\(\?[|R0-9&+-]")


class Patterns:
    """A list of exact names and `re:` patterns, which match from a name's start.

    Raises CheckpointError, naming `where`, for a pattern that doesn't compile.
    """

    def __init__(self, names: Iterable[str], where: str):
        self._where = where
        self._left = PATIENCE
        names = list(names)
        self._exact = frozenset(names)
        self._quick: list[re.Pattern[str]] = []
        self._slow: list[regex.Pattern[str]] = []
        for name in names:
            if name.startswith("re:"):
                self._compile(name.removeprefix("re:"))

    def has(self, name: str) -> bool:
        """Whether this very name is in the list."""
        return name in self._exact

    def rank(self, module: str) -> int | None:
        """0 for the exact name, 1 for a pattern, None for neither.

        A part is also matched by the name of what it is fused into, and that by the name of a part.
        """
        names = _names(module)
        if not self._exact.isdisjoint(names):
            return 0
        for pattern in self._quick:
            for name in names:
                if pattern.match(name) if len(name) <= _SHORT else self._matches(pattern, name):
                    return 1
        if any(self._matches(p, name) for p in self._slow for name in names):
            return 1
        return None

    def _matches(self, pattern: "re.Pattern[str] | regex.Pattern[str]", name: str) -> bool:
        begin = time.perf_counter()
        try:
            return (
                regex.compile(pattern.pattern).match(name, timeout=max(self._left, _GLANCE))
                is not None
            )
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
                # Of syntax that may change its meaning.
                warnings.simplefilter("error")
                quick = re.compile(text)
                if _MANY_REPEATS.search(text) is None:
                    self._quick.append(quick)
                else:
                    self._slow.append(regex.compile(text))
        except (re.error, regex.error, OverflowError, RecursionError, Warning, ValueError) as error:
            why = " ".join(str(error).split())[:100]
            raise self._not_understood(text, f"is not a regular expression ({why})") from None

    def _not_understood(self, text: str, why: str) -> CheckpointError:
        return CheckpointError(
            f"quantization_config can't be understood: {self._where}: pattern {shown(text)} {why}"
        )


def _names(module: str) -> tuple[str, ...]:
    """The module's own name, and those it has fused or in parts."""
    parent, dot, last = module.rpartition(".")
    others = _OTHERS.get(last)
    return (module, *[f"{parent}{dot}{name}" for name in others]) if others else (module,)
