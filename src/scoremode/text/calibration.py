"""Calibration texts: what a quantized model was tuned on, read to see whether a scored text is in it.

A text file is one document. Of a data set each row is one, its text by a field, or each message of a
conversation: a chat template's words between messages are in no document, and no n-gram counts that has
some.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import CorpusError
from scoremode.lib.files import MOST_TEXT, read_regular
from scoremode.text.conversations.messages import conversation_of
from scoremode.text.corpus import PACKED, ROWS, TABLES, read_text
from scoremode.text.hub import rows_of_hub
from scoremode.text.overlap import NGRAM, Ngrams
from scoremode.text.plan import Plan
from scoremode.text.rows import read_rows, row_names
from scoremode.text.tokenizer import Tokenizer

__all__ = ["Calibration", "Overlap", "calibration_of_file", "calibration_of_hub"]


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
        """What tells it from another calibration text."""
        return {"sha256": self.source_sha256, "text_field": self.text_field}

    def looked_for(self, plan: Plan, tokenizer: Tokenizer) -> "Overlap":
        """Which n-grams of NGRAM tokens of a plan's text its documents have. Raises TokenizerError."""
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
    """Which n-grams of a text a calibration text has; `tokens`: how many the latter is."""

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
