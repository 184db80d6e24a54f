"""Makes a plan of a text and a model's name, with no weights and no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.checkpoint.chat_template import chat_template, special_tokens, turn_ends
from scoremode.checkpoint.config import language_config, longest_of, positions_of
from scoremode.checkpoint.files import config_of
from scoremode.checkpoint.model_files import (
    ModelFiles,
    resolve_local,
    tokenizer_places,
)
from scoremode.checkpoint.tokenizer import checkpoint_tokenizer, has_tokenizer
from scoremode.errors import ProtocolError, ReferenceUnusable, TokenizerError
from scoremode.results.comparison.comparable import check_same_plan
from scoremode.text.conversations.corpus import Conversations
from scoremode.text.conversations.template import ChatTemplate
from scoremode.text.corpus import Corpus
from scoremode.text.corpus_plan import plan_of, texts_sha256
from scoremode.text.kept_text import KeptText
from scoremode.text.plan import Plan
from scoremode.text.protocol import Protocol
from scoremode.text.task_requests import PlannedCorpus, RequestCorpus, page_corpus
from scoremode.text.tokenizer import Tokenizer, difference

# Rules of what is no text.
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
        """What another run must share to score the same targets in the same groups.

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


def plan_text(
    corpus: Corpus,
    protocol: Protocol,
    *,
    model: ModelFiles | str | None = None,
    tokenizer: ModelFiles | str | None = None,
    config: Mapping[str, Any] | None = None,
) -> PlannedText:
    """Text → tokens → windows, by the config and tokenizer of `model`, files or a path here, without
    its weights.

    - `tokenizer`: one in place of the model's own.
    - `config`: the language model's, where its checkpoint is open.

    Raises CorpusError, TokenizerError, ProtocolError, CheckpointError.
    """
    files = None if model is None else resolve_local(model)
    if config is None:
        config = {} if files is None else language_config(config_of(files))
    # Where a tokenizer and a chat template may lie, the tokenizer's first.
    places = tokenizer_places(tokenizer, files)
    _check_kind(corpus, protocol)
    if not places:
        raise TokenizerError("no model and no --tokenizer: nothing to tokenize with")
    declared, longest = positions_of(config), longest_of(config)
    resolved = protocol.resolve(declared, longest)
    most = None if declared is None else max(declared, longest or 0)
    tokenizer = _tokenizer(corpus, places[0])
    prefix, template, ends, positions = None, None, frozenset[int](), None
    if resolved.is_of_requests:
        prefix = prefix_of(places[0], tokenizer)
    if isinstance(corpus, Conversations):
        template = chat_template(places, tokenizer, corpus.template)
        ends = turn_ends(places, tokenizer)
        positions = most if protocol.context_length is None else None
    planned = cut(
        corpus,
        resolved,
        tokenizer,
        prefix=prefix,
        template=template,
        ends=ends,
        positions=positions,
    )
    if resolved.text == "conversations" and most is not None:
        _check_lengths(planned.plan, most, str(model))
    largest, vocabulary = int(planned.plan.tokens.max()), config.get("vocab_size")
    if vocabulary is not None and largest >= vocabulary:
        raise TokenizerError(
            f"{tokenizer.source}: the text has token id {largest}, and {model} has {vocabulary} "
            "entries"
        )
    return replace(planned, model_vocabulary=vocabulary)


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
        wanted = page_corpus(pages) if pages else corpus
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


def _check_lengths(plan: Plan, most: int, model: str) -> None:
    """Raises ProtocolError where windows of conversations have more tokens than a model's positions."""
    if longer := int((plan.lengths > most).sum()):
        error = ProtocolError(
            f"{model}: context length {plan.protocol.context_length} exceeds the model's {most} "
            f"positions, and {longer:,} of {len(plan):,} windows are longer: give --context-length "
            f"{most} or less"
        )
        error.instead = {"--context-length": str(most)}
        raise error


def _pages_of(corpus: Corpus, protocol: Protocol) -> tuple[str, ...]:
    """The pages of a corpus, none where the protocol is for other requests. Raises ProtocolError."""
    if protocol.text != "pages":
        return ()
    if isinstance(corpus, KeptText):
        raise ProtocolError(
            f"{corpus.where}: keeps the token ids of its pages, and protocol {protocol.name} counts "
            "their words: give the text, too (-f, --dataset-file or --dataset)"
        )
    if corpus.labels:
        of = corpus.group_by or "file"
        raise ProtocolError(f"protocol {protocol.name}: its pages have no groups (--group-by {of})")
    return corpus.texts("pages")


def _check_kind(corpus: Corpus, protocol: Protocol) -> None:
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


def prefix_of(files: ModelFiles, tokenizer: Tokenizer) -> int | None:
    """The token before a request that nothing precedes: BOS, else EOS; None where there is neither."""
    if tokenizer.bos is not None:
        return tokenizer.bos
    eos = special_tokens(files, tokenizer).get("eos_token")
    return None if eos is None else tokenizer.backend.token_to_id(eos)


def plan_of_base(
    ours: PlannedText, corpus: Corpus, base: ModelFiles, tokenizer: ModelFiles | str | None
) -> PlannedText:
    """The plan of the same text for a base, with its own tokenizer unless one is given. Raises
    ReferenceUnusable where it is another plan."""
    # With a length that was found for the model, so that both have the same windows.
    own = plan_text(corpus, ours.plan.protocol, model=base, tokenizer=tokenizer)
    tokens, text = own.plan.tokens, own.text_sha256
    check_same_tokens(ours, tokens, text, base.name, own.tokenizer, own.chat)
    check_same_plan(ours.to_json(corpus), own.to_json(corpus), base.name)
    return own


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
    """All that tells what a template writes."""
    return [template[name] for name in ("sha256", "arguments", "date")]


def _tokenizer(corpus: Corpus, files: ModelFiles) -> Tokenizer:
    """The model's own; of one that has none, that of the reference whose text is taken."""
    if isinstance(corpus, KeptText) and not has_tokenizer(files):
        kept = corpus.record["tokenizer"]["source"]
        # It may have lain in a hub's cache, or be gone by now: what is missing is the model's.
        if not Path(kept).exists():
            raise TokenizerError(
                f"{files}: has no tokenizer, and that of {corpus.where} is not in {kept} any more: "
                "give --tokenizer"
            )
        return checkpoint_tokenizer(kept)
    return checkpoint_tokenizer(files)
