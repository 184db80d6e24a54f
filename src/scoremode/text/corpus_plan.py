"""Plans of a corpus: of its one text, or of several texts with nothing crossing from one to the next.

Several texts are planned each by itself, by the same protocol: with a BOS each where it has one, with a
first window whose first token nothing precedes, with a tail. The limits of a protocol (its first W
windows, its shortest text) hold for each. Then all windows are one plan over one token stream, and an
average is over all targets.

The rows of a data set are one text, so a window may hold several, and a token may begin in one and end
in another. Every token has the label of the row that its first character lies in; what the protocol
puts between two rows belongs to the one before.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import CorpusError, ProtocolError, TokenizerError
from scoremode.lib.json import json_digest
from scoremode.text.corpus import Corpus
from scoremode.text.plan import Labels, Plan
from scoremode.text.protocol import Protocol
from scoremode.text.tokenizer import Tokenizer, sides_of, tokenize

__all__ = ["joined", "labels_by_row", "plan_of", "texts_sha256"]


def plan_of(corpus: Corpus, tokenizer: Tokenizer, protocol: Protocol) -> Plan:
    """The plan of a corpus of text, with its labels where it has any.

    Raises CorpusError, TokenizerError, ProtocolError.
    """
    texts = corpus.texts(protocol.text)
    if corpus.apart:
        plans = []
        for text, label, file in zip(texts, corpus.labels, corpus.files, strict=True):
            try:
                plans.append((label, tokenize(text, tokenizer, protocol.whole())))
            except (CorpusError, ProtocolError) as error:
                raise type(error)(f"{file.source}: {error}") from None
        plan = joined([plan for _, plan in plans], [label for label, _ in plans])
        return plan if protocol.seed is None else plan.drawn(protocol)
    (text,) = texts
    plan = tokenize(text, tokenizer, protocol)
    if not corpus.labels:
        return plan
    labels = labels_by_row(text, corpus.row_labels(protocol.text), plan.tokens, tokenizer)
    return replace(plan, labels=labels)


def joined(plans: Sequence[Plan], labels: Sequence[str]) -> Plan:
    """One plan of all windows of `plans`, which are of one protocol and have a label each."""
    first = plans[0]
    before = np.cumsum([0, *(len(plan.tokens) for plan in plans[:-1])])
    weights = [plan.weights() for plan in plans]
    return Plan(
        first.protocol,
        np.concatenate([plan.tokens for plan in plans]),
        np.concatenate([plan.start + at for plan, at in zip(plans, before, strict=True)]),
        np.concatenate([plan.stop + at for plan, at in zip(plans, before, strict=True)]),
        np.concatenate([plan.first for plan in plans]),
        first.window_bos,
        first.stream_bos,
        # The guide's weights are of each text's own windows.
        None if first.protocol.average == "token" else np.concatenate(weights),  # pyright: ignore[reportArgumentType, reportCallIssue]
        labels=Labels.of_places(
            labels, np.repeat(np.arange(len(plans)), [len(plan.tokens) for plan in plans])
        ),
    )


def texts_sha256(texts: Sequence[str]) -> str:
    """The sha256 of a text; of several texts the sha256 of the list of theirs, since where each ends
    matters."""
    own = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    return own[0] if len(own) == 1 else json_digest(own)


def labels_by_row(
    text: str,
    rows: Sequence[tuple[int, str]],
    tokens: NDArray[np.int32],
    tokenizer: Tokenizer,
) -> Labels:
    """Labels of `tokens` (int32 [N]), which are `text` by `tokenizer` and what it puts around it.

    - `rows`: the character that each row begins with, rising from 0, and the row's label.

    Raises TokenizerError where the tokenizer doesn't tell which characters its tokens are.
    """
    ids, spans = tokenizer.encode_with_spans(text)
    begins = spans[:, 0]
    sides = sides_of(ids.tolist(), tokens.tolist())
    if sides is None or (np.diff(begins) < 0).any():
        raise TokenizerError(
            f"{tokenizer.source}: doesn't tell which characters its tokens are, by which rows are told "
            "apart"
        )
    starts = np.array([begin for begin, _ in rows], np.int64)
    row = np.searchsorted(starts, begins, "right") - 1
    # Tokens in front are no targets; those behind have the last row's label.
    front, behind = (len(side) for side in sides)
    row = np.concatenate([np.zeros(front, np.int64), row, np.full(behind, len(rows) - 1)])
    return Labels.of_places([label for _, label in rows], row)
