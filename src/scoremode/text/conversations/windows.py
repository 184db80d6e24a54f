"""Windows of conversations: one a text, or several of one that is longer than the context.

Nothing crosses a conversation: a window holds tokens of one text of one conversation, and its first
position has nothing before it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import CorpusError
from scoremode.text.conversations.tokens import Tokens

__all__ = ["Cut", "Long", "cut", "places"]

# What becomes of a text longer than the context: its first window alone, several, or none.
Long = Literal["truncate", "split", "skip"]


@dataclass(frozen=True, eq=False)
class Cut:
    """All windows of conversations.

    - `tokens` int32 [N]: of all texts, one behind the other; `counts` bool [N]: which are targets.
    - `start`, `stop`, `first` int64 [W]: window `w` is `tokens[start[w]:stop[w]]`, and those of its
      targets count that lie from its position `first[w]` on.
    - `place` int32 [N]: how many targets of the same turn stand right before each that counts; 0 for
      other tokens.
    - `conversation` int32 [W]: the place of each window's conversation among all that were read.
    - `long`, `lost`: conversations with a text longer than the context, and those of them of which no
      target is left.
    """

    tokens: NDArray[np.int32]
    counts: NDArray[np.bool_]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    first: NDArray[np.int64]
    place: NDArray[np.int32]
    conversation: NDArray[np.int32]
    long: int
    lost: int


@dataclass
class _Windows:
    """Windows while they are made; `at`: the place of the next token."""

    length: int
    rule: Long
    at: int = 0
    spans: list[tuple[int, int, int, int]] = field(default_factory=list)
    texts: list[Tokens] = field(default_factory=list)

    def add(self, text: Tokens, conversation: int) -> bool:
        """Adds the windows of a text; whether any holds a target."""
        n, stride = len(text.ids), max(self.length // 2, 1)
        if n > self.length and self.rule == "skip":
            return False
        starts = [0]
        if n > self.length and self.rule == "split":
            starts = list(range(0, n - self.length + stride, stride))
        before, added = 1, False
        for start in starts:
            stop = min(start + self.length, n)
            # The last window ends where the text does, with as much before it as the others have.
            start = max(0, stop - self.length)
            if text.counts[max(before, start + 1) : stop].any():
                first = max(before - start, 1)
                self.spans.append((self.at + start, self.at + stop, first, conversation))
                added = True
            before = stop
        if added:
            self.at += n
            self.texts.append(text)
        return added


def cut(conversations: Iterable[list[Tokens]], length: int, rule: Long) -> Cut:
    """The windows of at most `length` tokens of conversations, each given by its texts.

    With `split` a window begins half a context before its new targets, so that each has at least that
    much before it, or all there is. Raises CorpusError where no target is left.
    """
    windows, long, lost = _Windows(length, rule), 0, 0
    for place, texts in enumerate(conversations):
        long += any(len(text.ids) > length for text in texts)
        lost += not sum(windows.add(text, place) for text in texts)
    if not windows.spans:
        raise CorpusError(
            f"no target is left of {lost:,} conversations in windows of {length:,} tokens"
        )
    start, stop, first, conversation = np.array(windows.spans, np.int64).T.copy()
    return Cut(
        np.concatenate([text.ids for text in windows.texts]),
        np.concatenate([text.counts for text in windows.texts]),
        start,
        stop,
        first,
        np.concatenate([places(text.counts) for text in windows.texts]),
        conversation.astype(np.int32),
        long,
        lost,
    )


def places(counts: NDArray[np.bool_]) -> NDArray[np.int32]:
    """int32 [n]: of a text's tokens that count (bool [n]) the place in their run, which is a turn,
    since a template writes something between two; 0 for the others."""
    at = np.arange(len(counts))
    # The last token up to each that doesn't count; in front of the text stands none either.
    before = np.maximum.accumulate(np.where(counts, -1, at))
    return np.where(counts, at - before - 1, 0).astype(np.int32)
