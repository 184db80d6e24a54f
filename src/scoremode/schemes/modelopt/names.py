"""Names of modules as ModelOpt's configs have them: `exclude_modules` and `quantized_layers`.

What is called `model` or `language_model` at a name's beginning doesn't count.
"""

import fnmatch
from collections.abc import Iterable, Iterator

from scoremode.schemes.patterns import Patterns, plain

__all__ = ["Names", "around"]

_SPECIAL = frozenset("*?[")


def around(name: str) -> Iterator[str]:
    """The name itself, then those of the modules around it, the innermost first."""
    while name:
        yield name
        name = name.rpartition(".")[0]


class Names:
    """A list of names and of patterns with `*`, `?` and `[…]`, as fnmatch takes them.

    A name stands for all below it too (MiniMax-M3's `vision_tower`). Raises CheckpointError, naming
    `where`, for a pattern that isn't supported.
    """

    def __init__(self, names: Iterable[str], where: str):
        exact, starts, others = set(), [], []
        for name in map(plain, names):
            if _SPECIAL.isdisjoint(name):
                exact.add(name)
            elif _SPECIAL.isdisjoint(name[:-1]) and name.endswith("*"):
                # Nearly all of them, and published lists have hundreds.
                starts.append(name[:-1])
            else:
                others.append(f"re:{fnmatch.translate(name)}")
        self._exact, self._starts = frozenset(exact), tuple(starts)
        self._patterns = Patterns(others, where)

    def has(self, module: str) -> bool:
        name = plain(module)
        return (
            not self._exact.isdisjoint(around(name))
            or name.startswith(self._starts)
            or self._patterns.matches(name)
        )
