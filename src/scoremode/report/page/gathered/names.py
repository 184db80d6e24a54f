"""Names of models, as short as they can be and still tell one from the other."""

import re
from collections.abc import Sequence

__all__ = ["short_names"]

_FILE = re.compile(r"\.(gguf|safetensors)$")
_BETWEEN = re.compile(r"[-_. ]")


def short_names(sources: Sequence[str]) -> list[str]:
    """A name for each of `sources`, which differ: as many last parts of the path as it takes, less what
    all names begin with.

    `hub:ORG/NAME@COMMIT` is ORG/NAME. "SmolLM2-135M.Q4_K_M.gguf" beside "SmolLM2-135M.Q8_0.gguf" is
    "Q4_K_M".
    """
    parts = [_parts(source) for source in sources]
    names = ["/".join(part[-1:]) for part in parts]
    for many in range(2, max((len(part) for part in parts), default=0) + 1):
        longer = ["/".join(part[-many:]) for part in parts]
        names = [
            long if names.count(name) > 1 else name
            for name, long in zip(names, longer, strict=True)
        ]
    if len(set(names)) < len(names):
        return list(sources)
    return _without_beginning([_FILE.sub("", name) for name in names], names)


def _parts(source: str) -> list[str]:
    own, plus, taken = source.partition(" + ")
    if own.startswith("hub:"):
        own = own.removeprefix("hub:").partition("@")[0]
    parts = [part for part in own.split("/") if part] or [own]
    return [*parts[:-1], f"{parts[-1]}{plus}{taken}"]


def _without_beginning(names: list[str], before: list[str]) -> list[str]:
    """`names` without the words that all begin with, or `before` where they would be the same."""
    if len(set(names)) < len(names):
        return before
    if len(names) < 2:
        return names
    low, high = min(names), max(names)
    common = low[: next((i for i, c in enumerate(low) if high[i : i + 1] != c), len(low))]
    # To the end of a word; none may be all of a name.
    ends = [found.end() for found in _BETWEEN.finditer(common)]
    if not ends or any(not name[ends[-1] :] for name in names):
        return names
    return [name[ends[-1] :] for name in names]
