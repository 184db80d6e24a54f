"""SentencePiece's byte-pair kind, of tokens with scores and without merges.

Of all neighbours that make a token together, llama.cpp joins those whose token has the highest score,
the leftmost of several; characters that are no token become bytes. The library joins by a list of
pairs: all pairs that make a token, by its score. Both do the same where tokens have different scores;
where most share one the file is refused (white space does in Llama's, and is joined alike).
What is left is a token whose ends overlap in a text, as those of "ana" in "anana": pairs with the
longer left half come first, which is the leftmost, but for a token that repeats a text more than twice.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scoremode.checkpoint.gguf.byte_pairs import MARK, byte_tokens
from scoremode.checkpoint.gguf.vocabulary import Vocabulary

if TYPE_CHECKING:
    import tokenizers

__all__ = ["sentencepiece"]

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
