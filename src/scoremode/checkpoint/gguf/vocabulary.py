"""A GGUF file's vocabulary: tokens, their kinds, scores, merges and special ids, checked.

Keys are llama.cpp's (`tokenizer.ggml.*`), and so is what they mean (src/llama-vocab.cpp). Where that
tool warns and goes on with a guess (an id out of range, a token without a name twice), the file is
refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import TokenizerError

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
