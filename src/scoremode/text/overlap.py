"""Overlap of a scored text with another, such as the one that a model was calibrated on, by n-grams.

A scored target overlaps where it lies in an n-gram of its window that the other text has too: n token
ids of the run's own tokenizer, in a row. GPT-3 was decontaminated by 13-grams (Brown et al. 2020,
arXiv:2005.14165, appendix C), of words without case and punctuation; tokens are shorter than words, so
13 of them find more. An n-gram lies within one window and within one document of the other text, and
the BOS that a protocol writes over a window's first token is none of the text's.

Nothing is hashed, so nothing collides. The n-grams of 1, 2, 4, 8, … and n tokens in the scored text are
numbered, each by the numbers of the two n-grams that it is made of. The other text's n-grams are looked
up among those, some tokens at a time, so that memory is that of the scored text.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import UsageError
from scoremode.text.plan import Plan

__all__ = ["NGRAM", "Ngrams"]

# Tokens of an n-gram.
NGRAM = 13
# Tokens of the other text that are looked up at a time.
_CHUNK = 1 << 20
# The number of what the scored text doesn't have.
_NONE = -1

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class _Level:
    """The different n-grams of one length: `keys` int64 [K], in order; n-gram `k` is made of numbers
    `a` and `b` of the level before, `shift` tokens apart, where `keys[k] = a * before + b`."""

    keys: IntArray
    shift: int
    before: int


class Ngrams:
    """The n-grams of a token stream, int32 [N] with N > 0, and which of them another text has.

    Raises UsageError for `n` below 1.
    """

    def __init__(self, tokens: NDArray[np.int32], n: int = NGRAM) -> None:
        if n < 1:
            raise UsageError(f"n-grams of {n} tokens: must be at least 1")
        self._n = n
        ids, numbers = np.unique(tokens.astype(np.int64), return_inverse=True)
        # Level 0: a token's number by its id.
        self._number = np.full(int(ids[-1]) + 1, _NONE, np.int64)
        self._number[ids] = np.arange(len(ids))
        self._levels: list[_Level] = []
        length, count = 1, len(ids)
        while length < n and len(numbers) > 0:
            shift = min(length, n - length)
            keys = numbers[:-shift] * count + numbers[shift:]
            found, numbers = np.unique(keys, return_inverse=True)
            self._levels.append(_Level(found, shift, count))
            length, count = length + shift, len(found)
        # Of each place where one begins its number, and of each number whether the other has it.
        self._numbers, self._seen = numbers, np.zeros(count, np.bool_)

    def find(self, documents: Iterable[NDArray[np.int32]]) -> None:
        """Notes which n-grams are in `documents`: token ids, int32 [any] each."""
        # A scored text of fewer than n tokens has none.
        if not len(self._seen):
            return
        for ids in _chunks(documents, self._n):
            self._look_up(ids)

    def _look_up(self, ids: IntArray) -> None:
        known = (ids >= 0) & (ids < len(self._number))
        numbers = np.where(known, self._number[np.where(known, ids, 0)], _NONE)
        for level in self._levels:
            left, right = numbers[: -level.shift], numbers[level.shift :]
            there = np.flatnonzero((left != _NONE) & (right != _NONE))
            keys = left[there] * level.before + right[there]
            at = np.minimum(np.searchsorted(level.keys, keys), len(level.keys) - 1)
            same = level.keys[at] == keys
            numbers = np.full(len(left), _NONE, np.int64)
            numbers[there[same]] = at[same]
        self._seen[numbers[numbers != _NONE]] = True

    def overlapping(self, plan: Plan) -> NDArray[np.bool_]:
        """bool [scored]: the scored targets of a plan of these tokens, in its order, that lie in an
        n-gram found."""
        n = self._n
        window, _, place = plan.targets()
        begins = np.zeros(len(plan.tokens) + 1, np.int64)
        begins[1 : len(self._numbers) + 1] = self._seen[self._numbers]
        before = begins.cumsum()
        # The first and the last place where an n-gram that holds the target may begin.
        first = np.maximum(plan.start[window] + (plan.window_bos is not None), place - n + 1)
        last = np.minimum(place, plan.stop[window] - n)
        return before[np.maximum(last + 1, first)] > before[first]


def _chunks(documents: Iterable[NDArray[np.int32]], n: int) -> Iterator[IntArray]:
    """The documents' ids, some at a time, with _NONE between two documents; a document that is cut
    goes on with the n - 1 tokens before the cut, preceded by nothing else."""
    held: list[IntArray] = []
    size = 0
    for document in documents:
        for begin in range(0, max(len(document) - n + 1, 0), _CHUNK):
            # Their n-grams begin at `begin` and less than _CHUNK places after it.
            part = document[begin : begin + _CHUNK + n - 1].astype(np.int64)
            held += [part, np.array([_NONE])]
            size += len(part) + 1
            if size >= _CHUNK:
                yield np.concatenate(held)
                held, size = [], 0
    if held:
        yield np.concatenate(held)
