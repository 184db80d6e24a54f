"""The tokenizer in a GGUF file's metadata, with llama.cpp's token ids.

Keys are llama.cpp's (`tokenizer.ggml.*`), and so is what they mean (src/llama-vocab.cpp). Where that
tool warns and goes on with a guess (an id out of range, a token's name twice), the file is refused.
Special tokens that a text spells are taken as such, as in any tokenizer.json; llama-perplexity takes
control tokens as text.

**Byte pairs by merges**: GPT-2's kind, spelled byte by byte, and Gemma 4's, in characters. llama.cpp
merges by spelling, whatever the vocabulary holds, and drops a byte that no token has; the tokenizers
library merges by ids. They agree where each merge is of two tokens to a third, which is checked, and
where no merge reaches over a dropped byte: it is taken out as a piece of its own.

**SentencePiece's byte pairs**: tokens with scores and without merges. Of all neighbours that make a
token together, llama.cpp joins those whose token has the highest score, the leftmost of several;
characters that are no token become bytes. The library joins by a list of pairs: all pairs that make a
token, by its score. Both agree where tokens have different scores; where most share one the file is
refused (white space does in Llama's, and is joined alike). What is left is a token whose ends overlap
in a text, as those of "ana" in "anana": pairs with the longer left half come first, which is the
leftmost, but for a token that repeats a text more than twice.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoremode.checkpoint.gguf.pre_tokenizers import SPLITS, UNREAD, Split
from scoremode.errors import TokenizerError
from scoremode.text.tokenizer import Tokenizer, adopt

if TYPE_CHECKING:
    import tokenizers
    from tokenizers.models import BPE


_PREFIX = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_KINDS = 7

# Tokens that end a text, for llama.cpp, by their names: control tokens, whatever the file calls them.
_ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>"),
    *("<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"),
    *("<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>"),
    *("<｜end▁of▁sentence｜>", "[e~["),
)
# Those of fill-in-the-middle, where no id is given for the part: keys, names.
_PARTS = (
    (
        ("fim_pre_token_id", "prefix_token_id"),
        (
            *(
                "<|fim_prefix|>",
                "<fim-prefix>",
                "<fim_prefix>",
                "<｜fim▁begin｜>",
                "<PRE>",
                "▁<PRE>",
            ),
            *("<|code_prefix|>", "<|prefix|>"),
        ),
    ),
    (
        ("fim_suf_token_id", "suffix_token_id"),
        (
            *(
                "<|fim_suffix|>",
                "<fim-suffix>",
                "<fim_suffix>",
                "<｜fim▁hole｜>",
                "<SUF>",
                "▁<SUF>",
            ),
            *("<|code_suffix|>", "<|suffix|>"),
        ),
    ),
    (
        ("fim_mid_token_id", "middle_token_id"),
        (
            *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
            *("<|code_middle|>", "<|middle|>"),
        ),
    ),
    (("fim_pad_token_id",), ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")),
    (
        ("fim_rep_token_id",),
        ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    ),
    (("fim_sep_token_id",), ("<|file_sep|>",)),
)
# gpt-oss' roles are part of what it says.
_ROLES = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
# Phi-3's special tokens take the white space behind them, all but these.
_PLAIN_PHI3 = ("<unk>", "<s>", "<|endoftext|>")


class Added(NamedTuple):
    """A token that is found in a text before anything else; `special`: control, or unknown. `lstrip`,
    `rstrip`: whether it takes the white space beside it."""

    text: str
    special: bool
    lstrip: bool
    rstrip: bool


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary in `tokenizer.ggml.*`, by token id.

    - `tokens`: all different; one without a name is called `[EMPTY_7]`, as llama.cpp has it.
    - `kinds` int32 [V]: ggml's token types.
    - `scores` float32 [V], None where there are none.
    - `metadata`: all of the file's.
    """

    source: str
    tokens: list[str]
    kinds: NDArray[np.int32]
    scores: NDArray[np.float32] | None
    metadata: Mapping[str, Any] = field(repr=False)

    @cached_property
    def ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    def error(self, words: str) -> TokenizerError:
        return TokenizerError(f"{self.source}: {words}")

    def token_id(self, key: str, default: int | None = None) -> int | None:
        """The id that metadata `tokenizer.ggml.<key>` gives. Raises TokenizerError for no token."""
        value = self.metadata.get(_PREFIX + key, default)
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < len(self.tokens):
            raise self.error(
                f"{_PREFIX}{key} is {value!r:.80}, and it has {len(self.tokens)} tokens"
            )
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(_PREFIX + key, default)
        if type(value) is not bool:
            raise self.error(f"{_PREFIX}{key} is {value!r:.80}, neither true nor false")
        return value

    def merges(self) -> list[tuple[str, str]]:
        """The pairs of tokens that become one, first things first, each once.

        Raises TokenizerError where there are none, or one isn't two tokens.
        """
        merges = self.metadata.get(_PREFIX + "merges")
        if not isinstance(merges, list) or not merges or not isinstance(merges[0], str):
            raise self.error(
                f"has no {_PREFIX}merges, and by them alone its tokens are made: give --tokenizer"
            )
        if len(set(merges)) < len(merges):
            merges = list(dict.fromkeys(merges))
        pairs = [merge.split(" ") for merge in merges]
        for n, pair in enumerate(pairs):
            if len(pair) != 2 or not pair[0] or not pair[1]:
                # The first of a pair may begin with a space, as in "  a".
                at = merges[n].find(" ", 1)
                if at < 0 or at == len(merges[n]) - 1:
                    raise self.error(f"{_PREFIX}merges has {merges[n]!r:.80}, not two tokens")
                pairs[n] = [merges[n][:at], merges[n][at + 1 :]]
        return [(first, second) for first, second in pairs]

    def added(self) -> Iterator[Added]:
        """All tokens that are found in a text as they are, by llama.cpp's rules of kinds and names."""
        known = self.ids
        controls = {*np.flatnonzero((self.kinds == _CONTROL) | (self.kinds == _UNKNOWN)).tolist()}
        own = {*np.flatnonzero(self.kinds == _USER_DEFINED).tolist()}
        controls |= {known[name] for name in _ENDS if name in known}
        for keys, names in _PARTS:
            if all(self.token_id(key) is None for key in keys):
                controls |= {known[name] for name in names if name in known}
        roles = [name for name in _ROLES if name in known]
        # With these, <|end|> stands within what a model says.
        if "<|end|>" in known and any(
            known.keys() >= {*pair}
            for pair in (
                ("<|return|>", "<|call|>"),
                ("<|return|>", "<|calls|>"),
                ("<|flush|>", "<|call|>"),
                ("<|flush|>", "<|calls|>"),
            )
        ):
            roles.append("<|end|>")
        own |= {known[name] for name in roles}
        controls -= {known[name] for name in roles}
        # Gemma 4 has "</s>" among its HTML.
        if known.keys() >= {"<|tool_response>", "</s>"}:
            controls.discard(known["</s>"])
            own.discard(known["</s>"])
        before, behind = self._stripping()
        for i in sorted(controls | own):
            token = self.tokens[i]
            yield Added(token, i in controls, token in before, behind and token not in _PLAIN_PHI3)

    def _stripping(self) -> tuple[set[str], bool]:
        """The tokens that take white space before them, and whether all do behind them."""
        name, pre, architecture = (
            str(self.metadata.get(key, ""))
            for key in ("general.name", _PREFIX + "pre", "general.architecture")
        )
        if any(part in pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code")) or any(
            part in architecture for part in ("nomic-bert-moe", "jina-bert-v3")
        ):
            return {"<mask>"}, False
        if "phi-3" in name.lower() or "phi3" in name.lower():
            return set(), True
        return ({"[MASK]"} if "modern-bert" in name.lower() else set()), False


def read_vocabulary(metadata: Mapping[str, Any], source: str) -> Vocabulary:
    """The vocabulary in a GGUF file's metadata; `source` is what errors call it.

    Raises TokenizerError for lists of another length or type, and for a token that is there twice.
    """
    tokens = metadata.get(_PREFIX + "tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise TokenizerError(f"{source}: has no {_PREFIX}tokens: give --tokenizer")
    if not all(tokens):
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    if len(set(tokens)) < len(tokens):
        first: dict[str, int] = {}
        n = next(n for n, token in enumerate(tokens) if first.setdefault(token, n) != n)
        raise TokenizerError(
            f"{source}: tokens {first[tokens[n]]} and {n} are both {tokens[n]!r:.80}"
        )
    count = len(tokens)
    kinds = _numbers(metadata, "token_type", count, "i4", source=source)
    if kinds is None:
        kinds = np.full(count, _NORMAL, np.int32)
    elif not 0 <= kinds.min() <= kinds.max() < _KINDS:
        i = int(np.argmax((kinds < 0) | (kinds >= _KINDS)))
        raise TokenizerError(f"{source}: token {i} is of type {kinds[i]}, which ggml doesn't have")
    scores = _numbers(metadata, "scores", count, "f4", "i4", source=source)
    if scores is not None:
        scores = scores.astype(np.float32)
        if not np.isfinite(scores).all():
            i = int(np.argmin(np.isfinite(scores)))
            raise TokenizerError(f"{source}: token {i} has score {scores[i]}")
    return Vocabulary(source, tokens, kinds, scores, metadata)


def _numbers(
    metadata: Mapping[str, Any], key: str, count: int, *dtypes: str, source: str
) -> NDArray[Any] | None:
    """Metadata `tokenizer.ggml.<key>`, a number a token, None where it isn't there."""
    values = metadata.get(_PREFIX + key)
    if values is None:
        return None
    if not isinstance(values, np.ndarray) or values.dtype not in [np.dtype(d) for d in dtypes]:
        found = f"array of {values.dtype}" if isinstance(values, np.ndarray) else repr(values)[:80]
        raise TokenizerError(
            f"{source}: {_PREFIX}{key} is {found}, not an array of "
            f"{' or '.join(np.dtype(d).name for d in dtypes)}"
        )
    if len(values) != count:
        raise TokenizerError(
            f"{source}: {_PREFIX}{key} has {len(values)} entries for {count} tokens"
        )
    return values


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
