"""Labels: the group that each token of a text belongs to, by its row of a data set or by its file."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import CorpusError
from scoremode.lib.json import json_digest

__all__ = ["Labels", "check_labels", "label_of"]

# A field of more values than these is no group's name but each row's own.
_MOST_LABELS = 256
_LONGEST = 200


@dataclass(frozen=True, eq=False)
class Labels:
    """`names`: all labels, sorted; `of` int32 [N]: the place there of each token's, in its stream."""

    names: tuple[str, ...]
    of: NDArray[np.int32]

    @classmethod
    def of_places(cls, labels: Sequence[str], places: NDArray[np.integer]) -> "Labels":
        """Those of tokens that are of `labels` by their `places` there, [N]."""
        names = tuple(sorted({str(labels[i]) for i in np.unique(places)}))
        of = {name: i for i, name in enumerate(names)}
        return cls(names, np.array([of.get(label, -1) for label in labels], np.int32)[places])

    def at(self, index: NDArray[np.integer]) -> NDArray[np.object_]:
        """The labels of tokens by their places in the stream, as texts [len(index)]."""
        return np.array(self.names, object)[self.of[index]]

    def counts(self, index: NDArray[np.integer]) -> dict[str, int]:
        """How many of these tokens have each label, of those that any has."""
        counts = np.bincount(self.of[index], minlength=len(self.names)).tolist()
        return {name: n for name, n in zip(self.names, counts, strict=True) if n}

    def sha256(self, index: NDArray[np.integer]) -> str:
        """The sha256 of which of these tokens has which label."""
        names, codes = np.unique(self.of[index], return_inverse=True)
        digest = sha256(codes.astype("<i4").tobytes()).hexdigest()
        return json_digest([[self.names[i] for i in names], digest])


def label_of(value: Any, where: str, field: str, more: str = "") -> str:
    """The label that a row's field holds: a text or a whole number. Raises CorpusError, which ends with
    `more`."""
    if isinstance(value, str | int) and not isinstance(value, bool):
        text = str(value).strip()
        if text and len(text) <= _LONGEST and _is_unicode(text):
            return text
    raise CorpusError(f"{where}: {field} is {str(value)[:40]!r}, which names no group{more}")


def check_labels(labels: Sequence[str], what: str) -> None:
    """Raises CorpusError where rows have too many labels for a table."""
    if (count := len(set(labels))) > _MOST_LABELS:
        raise CorpusError(f"{what}: makes {count:,} groups, and a table has {_MOST_LABELS} at most")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
