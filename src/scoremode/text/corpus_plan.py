"""Plans of a corpus of any kind: `cut` is the one way from a corpus to windows.

A corpus has one text, or several with nothing crossing from one to the next. Several texts are planned
each by itself, by the same protocol: with a BOS each where it has one, with a first window whose first
token nothing precedes, with a tail. The limits of a protocol (its first W windows, its shortest text)
hold for each. Then all windows are one plan over one token stream, and an average is over all targets.

The rows of a data set are one text, so a window may hold several, and a token may begin in one and end
in another. Every token has the label of the row that its first character lies in; what the protocol
puts between two rows belongs to the one before.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import CorpusError, ProtocolError, ReferenceUnusable, TokenizerError
from scoremode.lib.json import json_digest
from scoremode.text.conversations.corpus import Conversations
from scoremode.text.conversations.template import ChatTemplate
from scoremode.text.corpus import Corpus
from scoremode.text.kept_text import KeptText
from scoremode.text.plan import Labels, Plan
from scoremode.text.protocol import Protocol
from scoremode.text.task_requests import PlannedCorpus, RequestCorpus, page_corpus
from scoremode.text.tokenizer import Tokenizer, difference, sides_of, tokenize

# Text rules of corpora that are no text.
_APART = ("conversations", "requests")


@dataclass(frozen=True)
class PlannedText:
    """A plan with all that it was made of, and the model's `vocab_size`, if known."""

    plan: Plan
    tokenizer: Tokenizer
    text_sha256: str
    text_bytes: int
    model_vocabulary: int | None
    # Of conversations: their chat template and what became of them (`Talk.facts`).
    chat: dict[str, Any] | None = None
    # Of requests and pages: which windows are theirs.
    asked: PlannedCorpus | None = None
    # What there is to say of how the text was cut.
    cut: tuple[str, ...] = ()
    # Of a text: what it has that it may not be meant to have.
    text_notes: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines that a user should know before anything is scored."""
        left_out = [] if self.chat is None else self.chat["bad"]
        more = [] if self.chat is None else [self.chat["bad_rows"] - len(left_out)]
        lines = [f"left out: {line}" for line in left_out]
        lines += [f"left out: {n} more rows" for n in more if n]
        return (*self.tokenizer.notes, *self.text_notes, *lines, *self.cut)

    @property
    def vocabulary(self) -> int | None:
        """The number of entries that the softmax runs over, None for the whole head."""
        rule = self.plan.protocol.vocabulary
        return {"config": self.model_vocabulary, "tokenizer": self.tokenizer.size, "head": None}[
            rule
        ]

    def identity(self) -> dict[str, Any]:
        """Facts that another run must share to score the same targets in the same groups.

        A plan tells which targets of which tokens count; groups, and what it does not tell of
        conversations, are said beside it.
        """
        found: dict[str, Any] = {"plan": self.plan.sha256}
        if self.plan.labels is not None:
            found["labels"] = self.plan.labels.sha256(self.plan.targets()[2])
        if self.chat is None:
            return found
        template = self.chat["template"]
        said = {
            "sha256": self.text_sha256,
            "template": None if template is None else _writes(template),
        }
        return found | {"conversations": said}

    def to_json(self, corpus: Corpus) -> dict[str, Any]:
        text = {"rule": self.plan.protocol.text, "sha256": self.text_sha256}
        said = {} if self.chat is None else {"conversations": self.chat}
        return {
            "corpus": corpus.to_json() | {"text": text | {"bytes": self.text_bytes}} | said,
            "tokenizer": self.tokenizer.to_json(),
            "protocol": self.plan.protocol.to_json() | {"sha256": self.plan.protocol.sha256},
            "plan": self.plan.to_json(),
        }


def cut(
    corpus: Corpus,
    protocol: Protocol,
    tokenizer: Tokenizer,
    *,
    prefix: int | None = None,
    template: ChatTemplate | None = None,
    ends: frozenset[int] = frozenset(),
    positions: int | None = None,
) -> PlannedText:
    """A corpus cut into windows by a `protocol` that is resolved, for no model in particular.

    - `prefix`: of requests and pages, the token before what nothing precedes (`prefix_of`).
    - `template`, `ends`, `positions`: of conversations (`Conversations.planned`).
    """
    chat, asked, lines = None, None, ()
    if protocol.is_of_requests:
        pages = _pages_of(corpus, protocol)
        wanted = corpus if pages is None else page_corpus(pages)
        assert isinstance(wanted, RequestCorpus)
        asked = wanted.planned(protocol, tokenizer, prefix)
        plan = asked.plan
    elif isinstance(corpus, KeptText):
        plan = corpus.planned(protocol, tokenizer)
    elif isinstance(corpus, Conversations):
        talk = corpus.planned(protocol, tokenizer, template, ends, positions)
        plan, chat, lines = talk.plan.arranged(), talk.facts, talk.notes
    else:
        plan = plan_of(corpus, tokenizer, protocol)
    digest, size = text_facts(corpus, protocol)
    return PlannedText(plan, tokenizer, digest, size, None, chat, asked, lines, corpus.notes)


def text_facts(corpus: Corpus, protocol: Protocol) -> tuple[str, int]:
    """The sha256 and the bytes of the text of a corpus under a protocol."""
    if isinstance(corpus, RequestCorpus):
        return corpus.source_sha256, corpus.text_bytes
    if isinstance(corpus, KeptText):
        return corpus.text_sha256, corpus.text_bytes
    if isinstance(corpus, Conversations):
        return corpus.source_sha256, corpus.size
    texts = corpus.texts(protocol.text)
    return texts_sha256(texts), sum(len(text.encode()) for text in texts)


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


def check_kind(corpus: Corpus, protocol: Protocol) -> None:
    """Raises ProtocolError where the protocol is for another kind of corpus than this one."""
    kind = "a text"
    if isinstance(corpus, RequestCorpus):
        kind = "requests"
    elif isinstance(corpus, Conversations):
        kind = "conversations"
    elif isinstance(corpus, KeptText) and corpus.plan.protocol.text in _APART:
        kind = corpus.plan.protocol.text
    wanted = protocol.text if protocol.text in _APART else "a text"
    if wanted != kind:
        raise ProtocolError(
            f"protocol {protocol.name} is for {protocol.text}, and {corpus.name} is {kind}"
        )


def _pages_of(corpus: Corpus, protocol: Protocol) -> tuple[str, ...] | None:
    """The pages of a corpus; None where the protocol is for other requests. Raises ProtocolError."""
    if protocol.text != "pages":
        return None
    if isinstance(corpus, KeptText):
        raise ProtocolError(
            f"{corpus.where}: keeps the token ids of its pages, and protocol {protocol.name} counts "
            "their words: give the text, too (-f, --dataset-file or --dataset)"
        )
    if corpus.labels:
        of = corpus.group_by or "file"
        raise ProtocolError(f"protocol {protocol.name}: its pages have no groups (--group-by {of})")
    return corpus.texts("pages")


def check_same_tokens(
    ours: PlannedText,
    tokens: NDArray[np.int32],
    text_sha256: str,
    what: str,
    theirs: Tokenizer,
    chat: Mapping[str, Any] | None = None,
) -> None:
    """Raises ReferenceUnusable where a base, which `what` names, has other tokens of the same text.

    Whatever the formats of the two are, their ids are compared and not believed to be the same; `chat`
    says what the base's chat template is, of conversations.
    """
    if text_sha256 != ours.text_sha256:
        return
    if words := difference(theirs, tokens, ours.tokenizer, ours.plan.tokens):
        own, other = (facts and facts["template"] for facts in (ours.chat, chat))
        if own and other and _writes(own) != _writes(other):
            raise ReferenceUnusable(
                f"{what}: its chat template ({other['source']}) writes these conversations otherwise "
                f"than {own['source']}: {words}. --chat-template FILE gives both the same one, "
                "--tokenizer the base's with its template"
            )
        raise ReferenceUnusable(
            f"{what}: has other tokens of this text than {ours.tokenizer.source} makes: {words}. "
            "--tokenizer gives both the same one"
        )


def _writes(template: Mapping[str, Any]) -> list[Any]:
    """The fields of a template that decide what it writes."""
    return [template[name] for name in ("sha256", "arguments", "date")]
