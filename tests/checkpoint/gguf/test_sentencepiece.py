"""Joining by scores, against the rule itself, done by hand; llama.cpp's answers: test_splits.py."""

import random

import numpy as np
import pytest
from support.gguf.vocabularies import metadata_of

from scoremode.checkpoint.gguf.tokenizer import read_vocabulary, sentencepiece
from scoremode.errors import TokenizerError

BYTES = [f"<0x{b:02X}>" for b in range(256)]


def vocabulary(pieces, scores=None, **changes):
    tokens = [*BYTES, *pieces]
    scores = [0.0] * 256 + [*(scores or -np.arange(1.0, len(pieces) + 1))]
    return read_vocabulary(metadata_of({"tokens": tokens, "scores": scores, **changes}), "v.gguf")


def joined(made, text):
    """The two neighbours with the highest score become one, the leftmost of several, until none do."""
    parts = [*("▁" + text).replace(" ", "▁")]
    while True:
        known = [
            (-made.scores[made.ids["".join(parts[n : n + 2])]], n)
            for n in range(len(parts) - 1)
            if "".join(parts[n : n + 2]) in made.ids
        ]
        if not known:
            break
        _, n = min(known)
        parts[n : n + 2] = ["".join(parts[n : n + 2])]
    ids = []
    for part in parts:
        ids += [made.ids[part]] if part in made.ids else list(part.encode())
    return ids


def test_random_texts_are_joined_by_the_rule():
    chance = random.Random(3)
    letters = "ab▁c"
    pieces = [*letters]
    while len(pieces) < 60:
        piece = chance.choice(pieces) + chance.choice(pieces)
        if piece not in pieces and len(piece) < 9:
            pieces.append(piece)
    made = vocabulary(pieces)
    backend = sentencepiece(made)
    different = 0
    for _ in range(400):
        text = "".join(chance.choice("ab cé") for _ in range(chance.randint(1, 25)))
        different += backend.encode(text).ids != joined(made, text)
    # Tokens of few letters repeat a text within themselves more often than any language's.
    assert different <= 8


def test_the_best_score_is_joined_first():
    made = vocabulary(["▁", "a", "b", "c", "ab", "bc"], [0, 0, 0, 0, -2, -1])
    assert sentencepiece(made).encode("abc").tokens == ["▁", "a", "bc"]


def test_a_space_is_put_before_each_stretch_of_text():
    made = vocabulary(["▁", "a", "▁a"])
    assert sentencepiece(made).encode("a a").tokens == ["▁a", "▁a"]
    made = vocabulary(["▁", "a", "▁a"], add_space_prefix=False)
    assert sentencepiece(made).encode("a a").tokens == ["a", "▁a"]


def test_what_no_token_spells_becomes_bytes():
    made = vocabulary(["▁", "a"])
    assert sentencepiece(made).encode("é\n").tokens == ["▁", "<0xC3>", "<0xA9>", "<0x0A>"]


def test_without_scores_or_bytes_it_is_refused():
    with pytest.raises(TokenizerError, match=r"has no tokenizer\.ggml\.scores"):
        sentencepiece(read_vocabulary(metadata_of({"tokens": [*BYTES, "a"]}), "v.gguf"))
    with pytest.raises(TokenizerError, match="has no token <0x00>"):
        sentencepiece(read_vocabulary(metadata_of({"tokens": ["a"], "scores": [0.0]}), "v.gguf"))


def test_tokens_of_one_score_are_refused():
    pieces = ["▁", *"jump", "ju", "um", "jum", "ump"]
    with pytest.raises(TokenizerError, match="4 of 4 tokens that others make have the score -1000"):
        sentencepiece(vocabulary(pieces, [-1000.0] * len(pieces)))
    # White space's is one for all in Llama's.
    pieces += ["▁j", "p▁", "▁▁", "▁▁▁"]
    made = vocabulary(pieces, [*-np.arange(1.0, len(pieces) - 1), -1e9, -1e9])
    assert sentencepiece(made).encode("  jump").ids == joined(made, "  jump")


def test_tokens_too_long_to_be_taken_apart():
    with pytest.raises(TokenizerError, match="tokens of up to 1,000,000 characters"):
        sentencepiece(vocabulary(["a", "a" * 1_000_000]))
    with pytest.raises(TokenizerError, match="tokens of up to 3,000 characters"):
        sentencepiece(vocabulary(["a" * n for n in range(1, 3001)]))
