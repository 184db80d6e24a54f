"""Byte-pair tokenizers by merges: GPT-2's kind, spelled byte by byte, and Gemma 4's, in characters.

llama.cpp merges by spelling, whatever the vocabulary holds, and drops a byte that no token has; the
tokenizers library merges by ids. They are the same where each merge is of two tokens to a third, which
is asked for, and where no merge reaches over a dropped byte: it is taken out as a piece of its own.
"""

from typing import TYPE_CHECKING

from scoremode.checkpoint.gguf.splits import Split
from scoremode.checkpoint.gguf.vocabulary import Vocabulary

if TYPE_CHECKING:
    import tokenizers
    from tokenizers.models import BPE

__all__ = ["MARK", "byte_level", "byte_tokens", "spelled"]

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
