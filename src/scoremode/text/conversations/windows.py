"""Windows of conversations: one a text, or several of one that is longer than the context.

Nothing crosses a conversation: a window holds tokens of one text of one conversation, and its first
position has nothing before it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
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

    - `tokens` int32 [N]: of all texts, one behind the other; `turn` int32 [N]: the number of each
      target's turn among all turns, -1 of what is no target.
    - `start`, `stop`, `first` int64 [W]: window `w` is `tokens[start[w]:stop[w]]`, and those of its
      targets count that lie from its position `first[w]` on.
    - `place` int32 [N]: how many targets of the same turn stand before each target; 0 for other tokens.
    - `conversation` int32 [W]: the place of each window's conversation among all that were read.
    - `long`, `lost`: conversations with a text longer than the context, and those of them of which no
      target is left.
    - `targets`: of all texts, in a window or not.
    """

    tokens: NDArray[np.int32]
    turn: NDArray[np.int32]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    first: NDArray[np.int64]
    place: NDArray[np.int32]
    conversation: NDArray[np.int32]
    long: int
    lost: int
    targets: int

    @cached_property
    def counts(self) -> NDArray[np.bool_]:
        """bool [N]: which tokens are targets."""
        return self.turn >= 0

    @cached_property
    def scored(self) -> NDArray[np.int32]:
        """int32 [S]: the turn of each target that a window scores."""
        spans = zip(self.start + self.first, self.stop, strict=True)
        found = np.concatenate([self.turn[begin:stop] for begin, stop in spans])
        return found[found >= 0]


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
    windows, long, lost, targets, turns = _Windows(length, rule), 0, 0, 0, 0
    for place, texts in enumerate(conversations):
        targets += sum(int(text.counts.sum()) for text in texts)
        texts = [Tokens(t.ids, np.where(t.counts, t.turn + turns, -1).astype("i4")) for t in texts]
        turns = max([turns, *(int(text.turn.max()) + 1 for text in texts)])
        long += any(len(text.ids) > length for text in texts)
        lost += not sum(windows.add(text, place) for text in texts)
    if not windows.spans:
        raise CorpusError(
            f"no target is left of {lost:,} conversations in windows of {length:,} tokens"
        )
    start, stop, first, conversation = np.array(windows.spans, np.int64).T.copy()
    return Cut(
        np.concatenate([text.ids for text in windows.texts]),
        np.concatenate([text.turn for text in windows.texts]),
        start,
        stop,
        first,
        np.concatenate([places(text.turn) for text in windows.texts]),
        conversation.astype(np.int32),
        long,
        lost,
        targets,
    )


def places(turn: NDArray[np.int32]) -> NDArray[np.int32]:
    """int32 [n]: the place in its turn of each target of a text, 0 for other tokens.

    `turn` int32 [n]: as in `Tokens`. Two turns may have nothing between them, and one may hold tokens
    that are no targets.
    """
    targets = np.flatnonzero(turn >= 0)
    at = np.arange(len(targets))
    begins = np.diff(turn[targets], prepend=-1) != 0
    found = np.zeros(len(turn), np.int32)
    found[targets] = at - np.maximum.accumulate(np.where(begins, at, 0))
    return found
