"""The tokenizer in a GGUF file's metadata, with llama.cpp's token ids.

Special tokens that a text spells are taken as such, as of any tokenizer.json; llama-perplexity takes
those that are control tokens as text.

Byte-pair tokenizers by merges: GPT-2's kind, spelled byte by byte, and Gemma 4's, in characters.

llama.cpp merges by spelling, whatever the vocabulary holds, and drops a byte that no token has; the
tokenizers library merges by ids. They are the same where each merge is of two tokens to a third, which
is asked for, and where no merge reaches over a dropped byte: it is taken out as a piece of its own.

SentencePiece's byte-pair kind, of tokens with scores and without merges.

Of all neighbours that make a token together, llama.cpp joins those whose token has the highest score,
the leftmost of several; characters that are no token become bytes. The library joins by a list of
pairs: all pairs that make a token, by its score. Both do the same where tokens have different scores;
where most share one the file is refused (white space does in Llama's, and is joined alike).
What is left is a token whose ends overlap in a text, as those of "ana" in "anana": pairs with the
longer left half come first, which is the leftmost, but for a token that repeats a text more than twice.
"""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scoremode.checkpoint.gguf.pre_tokenizers import SPLITS, UNREAD, Split
from scoremode.checkpoint.gguf.vocabulary import Vocabulary, read_vocabulary
from scoremode.text.tokenizer import Tokenizer, adopt

if TYPE_CHECKING:
    import tokenizers
    from tokenizers.models import BPE

# What stands for a space.
MARK = "▁"


def byte_level(vocabulary: Vocabulary, split: Split) -> "tokenizers.Tokenizer":
    """GPT-2's kind. Raises TokenizerError."""
    from tokenizers import Regex, Tokenizer, decoders
    from tokenizers import pre_tokenizers as before

    backend = Tokenizer(_model(vocabulary, whole=split.whole, byte_fallback=False))
    steps: list[before.PreTokenizer] = [
        before.Split(Regex(pattern), "isolated") for pattern in split.patterns
    ]
    steps.append(before.ByteLevel(add_prefix_space=False, use_regex=False))
    if missing := [c for c in before.ByteLevel.alphabet() if c not in vocabulary.ids]:
        if split.whole:
            for character in missing:
                token = next((t for t in vocabulary.tokens if character in t), None)
                if token is not None:
                    raise vocabulary.error(
                        f"token {token!r:.80} has a byte ({character!r}) that is no token itself"
                    )
        codes = "".join(rf"\x{{{ord(c):04X}}}" for c in sorted(missing))
        steps.append(before.Split(Regex(f"[{codes}]"), "removed"))
    backend.pre_tokenizer = before.Sequence(steps)  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return backend


def spelled(vocabulary: Vocabulary, split: Split) -> "tokenizers.Tokenizer":
    """Gemma 4's kind: "▁" for a space, and bytes for a character that is no token.

    Raises TokenizerError, also where a run of line ends that is a token isn't what its merges make:
    llama.cpp takes the token.
    """
    from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

    byte_tokens(vocabulary)
    backend = Tokenizer(_model(vocabulary, whole=False, byte_fallback=True))
    for line_ends in (token for token in vocabulary.tokens if not token.strip("\n")):
        if backend.encode(line_ends).ids != [vocabulary.ids[line_ends]]:
            raise vocabulary.error(
                f"token {vocabulary.ids[line_ends]} is {len(line_ends)} line ends, which its merges "
                "don't make"
            )
    backend.normalizer = normalizers.Replace(" ", MARK)  # pyright: ignore[reportAttributeAccessIssue]
    backend.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns]
    )
    backend.decoder = decoders.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend


def byte_tokens(vocabulary: Vocabulary) -> None:
    """Raises TokenizerError unless each byte has a token."""
    for byte in range(256):
        if (name := f"<0x{byte:02X}>") not in vocabulary.ids:
            raise vocabulary.error(
                f"has no token {name}, and characters without a token of their own are spelled in bytes"
            )


def _model(vocabulary: Vocabulary, *, whole: bool, byte_fallback: bool) -> "BPE":
    from tokenizers.models import BPE

    merges, known = vocabulary.merges(), vocabulary.ids
    # Asked here: the library panics.
    for first, second in merges:
        if not (first in known and second in known and first + second in known):
            unknown = next(t for t in (first, second, first + second) if t not in known)
            raise vocabulary.error(
                f"merges {first!r:.80} and {second!r:.80}, and {unknown!r:.80} is no token"
            )
    return BPE(known, merges, ignore_merges=whole, byte_fallback=byte_fallback)


# A vocabulary of 262,144 tokens needs a tenth of it.
_MOST_CHARACTERS = 1 << 28


def sentencepiece(vocabulary: Vocabulary) -> "tokenizers.Tokenizer":
    """A tokenizer that joins by scores. Raises TokenizerError."""
    from tokenizers import Tokenizer, decoders, normalizers
    from tokenizers.models import BPE

    byte_tokens(vocabulary)
    backend = Tokenizer(BPE(vocabulary.ids, _pairs(vocabulary), byte_fallback=True))
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", MARK)]
    # Before each stretch of text: the first, and what follows an added token.
    if vocabulary.flag("add_space_prefix", default=True):
        steps.insert(0, normalizers.Prepend(MARK))
    backend.normalizer = normalizers.Sequence(steps)  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = decoders.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend


def _pairs(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """All pairs of tokens that make a third, the highest score of that first."""
    scores, known = vocabulary.scores, vocabulary.ids
    if scores is None:
        raise vocabulary.error("has no tokenizer.ggml.scores, by which its tokens are joined")
    # What all parts of all tokens would take.
    if sum(len(token) ** 2 for token in vocabulary.tokens) > _MOST_CHARACTERS:
        longest = max(vocabulary.tokens, key=len)
        raise vocabulary.error(
            f"has tokens of up to {len(longest):,} characters, as no SentencePiece model has"
        )
    pairs: list[tuple[str, str]] = []
    made: list[int] = []
    for i, token in enumerate(vocabulary.tokens):
        for at in range(len(token) - 1, 0, -1):
            if token[:at] in known and token[at:] in known:
                pairs.append((token[:at], token[at:]))
                made.append(i)
    if made:
        _check_order(vocabulary, scores[sorted(set(made))])
    order = np.argsort(-scores[made], kind="stable")
    return [pairs[n] for n in order]


def _check_order(vocabulary: Vocabulary, scores: NDArray[np.float32]) -> None:
    """Raises TokenizerError if most tokens that pairs make have one `scores`' value: which are joined
    is then a matter of place alone, and that is no list of pairs."""
    values, counts = np.unique(scores, return_counts=True)
    most = int(counts.argmax())
    if counts[most] > max(1, len(scores) // 2):
        raise vocabulary.error(
            f"{counts[most]:,} of {len(scores):,} tokens that others make have the score "
            f"{values[most]:g}, as converters write that have none: llama.cpp joins from the left "
            "then, the model's own tokenizer does not; convert the model anew, or give --tokenizer"
        )


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
