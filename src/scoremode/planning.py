"""From a text and a model's name to a plan, with no weights and no torch."""

import hashlib
from dataclasses import dataclass
from typing import Any

from scoremode.checkpoint.files import language_config, locate, positions_of, read_config
from scoremode.checkpoint.tokenizers import checkpoint_tokenizer
from scoremode.errors import CheckpointError, TokenizerError
from scoremode.text.corpus import Corpus
from scoremode.text.plan import Plan
from scoremode.text.protocol import Protocol
from scoremode.text.tokenizer import Tokenizer, tokenize

__all__ = ["PlannedText", "plan_text"]


@dataclass(frozen=True)
class PlannedText:
    """A plan with all that it was made of, and the model's `vocab_size`, if known."""

    plan: Plan
    tokenizer: Tokenizer
    text_sha256: str
    text_bytes: int
    model_vocabulary: int | None

    @property
    def vocabulary(self) -> int | None:
        """How many entries the softmax runs over, None for the whole head."""
        rule = self.plan.protocol.vocabulary
        return {"config": self.model_vocabulary, "tokenizer": self.tokenizer.size, "head": None}[
            rule
        ]

    def to_json(self, corpus: Corpus) -> dict[str, Any]:
        text = {"rule": self.plan.protocol.text, "sha256": self.text_sha256}
        return {
            "corpus": corpus.to_json() | {"text": text | {"bytes": self.text_bytes}},
            "tokenizer": self.tokenizer.to_json(),
            "protocol": self.plan.protocol.to_json() | {"sha256": self.plan.protocol.sha256},
            "plan": self.plan.to_json(),
        }


def plan_text(
    corpus: Corpus,
    protocol: Protocol,
    *,
    model: str | None = None,
    tokenizer: str | None = None,
    revision: str | None = None,
) -> PlannedText:
    """Text → tokens → windows, by the config and tokenizer of `model`, without its weights.

    Raises CorpusError, TokenizerError, ProtocolError, CheckpointError.
    """
    positions = vocabulary = None
    if model is not None:
        folder, _ = locate(model, revision, weights=False)
        config = language_config(read_config(folder))
        positions = positions_of(config)
        vocabulary = config.get("vocab_size")
        if not isinstance(vocabulary, int | None):
            raise CheckpointError(f"{folder / 'config.json'}: vocab_size {vocabulary!r}")
    source = tokenizer or model
    if source is None:
        raise TokenizerError("no model and no --tokenizer: nothing to tokenize with")
    resolved = protocol.resolve(positions)
    loaded = checkpoint_tokenizer(source, None if tokenizer else revision)
    text = corpus.text(resolved.text)
    plan = tokenize(text, loaded, resolved)
    largest = int(plan.tokens.max())
    if vocabulary is not None and largest >= vocabulary:
        raise TokenizerError(
            f"{loaded.source}: the text has token id {largest}, and {model} has {vocabulary} entries"
        )
    data = text.encode()
    return PlannedText(plan, loaded, hashlib.sha256(data).hexdigest(), len(data), vocabulary)
