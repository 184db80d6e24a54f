"""Makes a plan of a text and a model's name, with no weights and no torch."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scoremode.checkpoint.chat_template import chat_template, special_tokens, turn_ends
from scoremode.checkpoint.config import language_config, longest_of, positions_of
from scoremode.checkpoint.files import Checkpoint, config_of
from scoremode.checkpoint.model_files import (
    ModelFiles,
    resolve_local,
    tokenizer_places,
)
from scoremode.checkpoint.tokenizer import checkpoint_tokenizer, has_tokenizer
from scoremode.errors import ProtocolError, TokenizerError
from scoremode.results.comparison.comparable import check_same_plan
from scoremode.runs.request import Request
from scoremode.text.conversations.corpus import Conversations
from scoremode.text.corpus import Corpus
from scoremode.text.corpus_plan import PlannedText, check_kind, check_same_tokens, cut
from scoremode.text.kept_text import KeptText
from scoremode.text.plan import Plan
from scoremode.text.protocol import Protocol
from scoremode.text.tokenizer import Tokenizer


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
    check_kind(corpus, protocol)
    if not places:
        raise TokenizerError("no model and no --tokenizer: nothing to tokenize with")
    declared, longest = positions_of(config), longest_of(config)
    resolved = protocol.resolve(declared, longest)
    most = None if declared is None else max(declared, longest or 0)
    loaded = _tokenizer(corpus, places[0])
    prefix, template, ends, positions = None, None, frozenset[int](), None
    if resolved.is_of_requests:
        prefix = prefix_of(places[0], loaded)
    if isinstance(corpus, Conversations):
        template = chat_template(places, loaded, corpus.template)
        ends = turn_ends(places, loaded)
        positions = most if protocol.context_length is None else None
    planned = cut(
        corpus,
        resolved,
        loaded,
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
            f"{loaded.source}: the text has token id {largest}, and {model} has {vocabulary} entries"
        )
    return replace(planned, model_vocabulary=vocabulary)


def plan_request(request: Request, checkpoint: Checkpoint) -> PlannedText:
    """The plan of a request whose names are resolved, by the config of its model's open checkpoint.
    Raises what `plan_text` raises."""
    return plan_text(
        request.corpus,
        request.protocol,
        model=request.model,
        tokenizer=request.tokenizer,
        config=checkpoint.text_config,
    )


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
