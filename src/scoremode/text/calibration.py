"""Calibration texts: what a quantized model was tuned on, read to see whether a scored text is in it.

A text file is one document. Of a data set each row is one, its text by a field, or each message of a
conversation: a chat template's words between messages are in no document, and no n-gram counts that has
some.

**Overlap.** A scored target overlaps where it lies in an n-gram of its window that the calibration text
has too: n token ids of the run's own tokenizer, in a row. GPT-3 was decontaminated by 13-grams (Brown
et al. 2020, arXiv:2005.14165, appendix C) of words without case and punctuation; tokens are shorter
than words, so 13 of them find more. An n-gram lies within one window and within one document of the
other text, and the BOS that a protocol writes over a window's first token is none of the text's.
Nothing is hashed, so nothing collides: the n-grams of 1, 2, 4, 8, … and n tokens in the scored text are
numbered, each by the numbers of the two n-grams that it is made of, and the other text's n-grams are
looked up among those, some tokens at a time, so that memory is that of the scored text.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import CorpusError, UsageError
from scoremode.lib.files import MOST_TEXT, read_regular
from scoremode.text.conversations.messages import conversation_of
from scoremode.text.corpus import PACKED, ROWS, TABLES, read_text
from scoremode.text.hub import rows_of_hub
from scoremode.text.plan import Plan
from scoremode.text.rows import read_rows, row_names
from scoremode.text.tokenizer import Tokenizer

__all__ = ["NGRAM", "Calibration", "Ngrams", "Overlap", "calibration_of_file", "calibration_of_hub"]


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


@dataclass(frozen=True)
class Calibration:
    """Documents of a text that a model was calibrated on, and where they are from.

    - `source_sha256`: of the bytes that were read; `text_field`: the field of a row's text.
    """

    name: str
    source: str
    source_sha256: str
    text_field: str
    documents: tuple[str, ...]

    def identity(self) -> dict[str, str]:
        """The fields that tell it from another calibration text."""
        return {"sha256": self.source_sha256, "text_field": self.text_field}

    def looked_for(self, plan: Plan, tokenizer: Tokenizer) -> "Overlap":
        """Looks up the n-grams of NGRAM tokens of a plan's text in the documents. Raises
        TokenizerError."""
        ngrams, tokens = Ngrams(plan.tokens), 0

        def ids() -> Iterator[NDArray[np.int32]]:
            nonlocal tokens
            for document in self.documents:
                found = tokenizer.encode(document, special_tokens=False)
                tokens += len(found)
                yield found

        ngrams.find(ids())
        return Overlap(self, tokens, ngrams)


@dataclass(frozen=True)
class Overlap:
    """The n-grams of a text that a calibration text has; `tokens`: the length of the latter."""

    calibration: Calibration
    tokens: int
    ngrams: Ngrams

    def section(self, plan: Plan) -> dict[str, Any]:
        """The record's section `calibration`, of a plan of the text: how many of its scored targets lie
        in an n-gram found, in all and by label."""
        hit, of = self.ngrams.overlapping(plan), self.calibration
        section: dict[str, Any] = {
            "name": of.name,
            "source": of.source,
            "source_sha256": of.source_sha256,
            "text_field": of.text_field,
            "documents": len(of.documents),
            "tokens": self.tokens,
            "ngram": NGRAM,
            "targets": int(hit.sum()),
            "share": float(hit.mean()),
        }
        if plan.labels is not None:
            labels = plan.labels.at(plan.targets()[2])
            section["labels"] = {
                name: float(hit[labels == name].mean()) for name in sorted(set(labels.tolist()))
            }
        return section


def calibration_of_file(path: Path, text_field: str = "text") -> Calibration:
    """The calibration text in a text file, or in a data set's `.jsonl`, packed or not, or `.parquet`.

    Raises CorpusError, naming the row that is neither a text in `text_field` nor a conversation.
    """
    suffix = path.suffix.lower()
    if suffix in TABLES | {".gz"} and not path.name.lower().endswith(PACKED):
        raise CorpusError(
            f"{path}: a calibration text is a text file, or rows in .jsonl, .jsonl.gz or .parquet"
        )
    if suffix not in ROWS | {".gz"}:
        data, text = read_text(path)
        return _checked(path.name, str(path), _digest(data), text_field, [text])
    try:
        data = read_regular(path, MOST_TEXT)
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from None
    rows = read_rows(data, str(path), None)
    names = row_names(data, path.name, len(rows))
    documents = _documents(rows, names, text_field)
    return _checked(path.name, str(path), _digest(data), text_field, documents)


def calibration_of_hub(
    dataset: str,
    config: str | None = None,
    *,
    split: str = "train",
    revision: str | None = None,
    text_field: str = "text",
) -> Calibration:
    """The calibration text in a split of a hub data set. Raises CorpusError, as for a file."""
    found = rows_of_hub(
        dataset, config, split=split, text_field=None, revision=revision, flag="--calibration"
    )
    documents = _documents(found.rows, found.names, text_field)
    return _checked(found.title, found.source, found.sha256, text_field, documents)


def _documents(rows: Sequence[Any], names: Sequence[str], text_field: str) -> list[str]:
    found: list[str] = []
    for row, where in zip(rows, names, strict=True):
        if isinstance(row, dict) and isinstance(text := row.get(text_field), str):
            found.append(_unicode(text, where))
        else:
            found += _messages(row, where, text_field)
    return found


def _messages(row: Any, where: str, text_field: str) -> list[str]:
    try:
        chat = conversation_of(row, where)
    except CorpusError as error:
        raise CorpusError(f"{error}; nor has it a text in {text_field!r}") from None
    if chat.text is not None:
        return ["".join(chat.text)]
    texts = [m.get(part) for m in chat.messages for part in ("reasoning_content", "content")]
    return [text for text in texts if text]


def _unicode(text: str, where: str) -> str:
    """A row's text. Raises CorpusError now where no tokenizer can read it once all is scored."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half a surrogate pair, from JSON
        raise CorpusError(f"{where}: not Unicode text at character {error.start}") from None
    return text


def _checked(
    name: str, source: str, digest: str, text_field: str, documents: Sequence[str]
) -> Calibration:
    if not any(document.strip() for document in documents):
        raise CorpusError(f"{source}: the calibration text is empty")
    return Calibration(name, source, digest, text_field, tuple(documents))


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()
