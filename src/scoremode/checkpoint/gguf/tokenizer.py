"""The tokenizer in a GGUF file's metadata, with llama.cpp's token ids.

Special tokens that a text spells are taken as such, as of any tokenizer.json; llama-perplexity takes
those that are control tokens as text.
"""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from scoremode.checkpoint.gguf.byte_pairs import byte_level, spelled
from scoremode.checkpoint.gguf.sentencepiece import sentencepiece
from scoremode.checkpoint.gguf.splits import SPLITS, UNREAD, Split
from scoremode.checkpoint.gguf.vocabulary import Vocabulary, read_vocabulary
from scoremode.text.tokenizer import Tokenizer, adopt

if TYPE_CHECKING:
    import tokenizers

__all__ = ["has_vocabulary", "tokenizer_of"]

# What else llama.cpp reads, none of which the tokenizers library can do, or a language model has.
_UNREAD_MODELS = {
    "bert": "WordPiece, of encoders",
    "t5": "SentencePiece's unigram kind",
    "rwkv": "RWKV's longest match",
    "plamo2": "PLaMo 2's table of suffixes",
    "hybriddna": "byte pairs and DNA's k-mers",
    "whitespace": "byte pairs without white space",
}


def tokenizer_of(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """The tokenizer that `tokenizer.ggml.*` describes; `source` is the file's name.

    Raises TokenizerError for what is damaged, contradicts itself, or is of another kind.
    """
    vocabulary = read_vocabulary(metadata, source)
    model = _name(vocabulary, "tokenizer.ggml.model", "none")
    if model == "llama":
        return _adopted(vocabulary, sentencepiece(vocabulary), (1, 2), adds_bos=True)
    if model not in ("gpt2", "gemma4"):
        known = f" ({_UNREAD_MODELS[model]})" if model in _UNREAD_MODELS else ""
        raise vocabulary.error(
            f"its tokenizer is of kind {model!r:.80}{known}, which is not read from GGUF: "
            "give --tokenizer"
        )
    split = _split(vocabulary, model)
    build = spelled if split.spelled else byte_level
    if split.spelled and split.adds_bos:
        # Of Gemma 4 whatever the file says, since some published ones say no.
        vocabulary = replace(
            vocabulary, metadata={**metadata, "tokenizer.ggml.add_bos_token": True}
        )
    made = _adopted(vocabulary, build(vocabulary, split), (None, None), adds_bos=split.adds_bos)
    if "tokenizer.ggml.pre" not in metadata and model == "gpt2":
        note = (
            f"{source}: doesn't say how its tokenizer splits a text (tokenizer.ggml.pre); llama.cpp's "
            "default is taken, as that tool does, and files so old often give other tokens than their "
            "model was trained with. Convert the model anew, or give --tokenizer"
        )
        made = replace(made, notes=(note,))
    return made


def has_vocabulary(metadata: Mapping[str, Any]) -> bool:
    """Tells whether there is a tokenizer, read or not; a converter may have left it out."""
    model = metadata.get("tokenizer.ggml.model", "none")
    return not isinstance(model, str) or model not in ("none", "no_vocab")


def _name(vocabulary: Vocabulary, key: str, default: str) -> str:
    """The string of a key; it may be anything. Raises TokenizerError."""
    name = vocabulary.metadata.get(key, default)
    if not isinstance(name, str):
        raise vocabulary.error(f"{key} is {name!r:.80}, no name")
    return name


def _split(vocabulary: Vocabulary, model: str) -> Split:
    name = _name(vocabulary, "tokenizer.ggml.pre", "default")
    if model == "gemma4":
        name = "gemma4"
    if name not in SPLITS:
        known = f" ({UNREAD[name]})" if name in UNREAD else ""
        raise vocabulary.error(
            f"its tokenizer splits a text as {name!r:.80} does{known}, which is not known here: "
            "give --tokenizer"
        )
    return SPLITS[name]


def _adopted(
    vocabulary: Vocabulary,
    backend: "tokenizers.Tokenizer",
    defaults: tuple[int | None, int | None],
    *,
    adds_bos: bool,
) -> Tokenizer:
    """The backend with its added tokens, BOS and EOS; `defaults` are their ids where none are given."""
    from tokenizers import AddedToken

    backend.add_tokens(
        [
            AddedToken(
                added.text,
                lstrip=added.lstrip,
                rstrip=added.rstrip,
                normalized=False,
                special=added.special,
            )
            for added in vocabulary.added()
        ]
    )
    settings: dict[str, Any] = {}
    for name, default, adds in zip(("bos", "eos"), defaults, (adds_bos, False), strict=True):
        token = vocabulary.token_id(f"{name}_token_id", default)
        adds = vocabulary.flag(f"add_{name}_token", adds)
        if adds and token is None:
            raise vocabulary.error(
                f"is to put {name.upper()} to a text, and has no tokenizer.ggml.{name}_token_id"
            )
        settings[f"add_{name}_token"] = adds
        settings[f"{name}_token"] = None if token is None else vocabulary.tokens[token]
    digest = sha256(backend.to_str().encode()).hexdigest()
    return adopt(backend, settings, source=vocabulary.source, digest=digest)
