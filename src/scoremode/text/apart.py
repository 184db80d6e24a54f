"""Plans of a corpus: of its one text, or of several texts with nothing crossing from one to the next.

Several texts are planned each by itself, by the same protocol: with a BOS each where it has one, with a
first window whose first token nothing precedes, with a tail. The limits of a protocol (its first W
windows, its shortest text) hold for each. Then all windows are one plan over one token stream, and an
average is over all targets.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scoremode.errors import CorpusError, ProtocolError
from scoremode.lib.json import json_digest
from scoremode.text.corpus import Corpus
from scoremode.text.labels import Labels
from scoremode.text.plan import Plan
from scoremode.text.protocol import Protocol
from scoremode.text.row_labels import labels_by_row
from scoremode.text.tokenizer import Tokenizer, tokenize

__all__ = ["joined", "plan_of", "texts_sha256"]


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
    """The sha256 of a text; of several that of all their own, since where each ends matters."""
    own = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    return own[0] if len(own) == 1 else json_digest(own)
