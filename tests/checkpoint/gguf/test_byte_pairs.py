"""Byte pairs, with bytes that no token has and merges that name none."""

import pytest
from support.gguf.vocabularies import metadata_of
from tokenizers import pre_tokenizers

from scoremode.checkpoint.gguf.pre_tokenizers import SPLITS
from scoremode.checkpoint.gguf.tokenizer import byte_level, byte_tokens, read_vocabulary, spelled
from scoremode.errors import TokenizerError

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def vocabulary(tokens, merges=("a b",)):
    return read_vocabulary(metadata_of({"tokens": tokens, "merges": [*merges]}), "v.gguf")


def tokens_of(backend, text):
    return backend.encode(text).tokens


def test_a_byte_without_a_token_is_dropped_and_nothing_merges_over_it():
    alphabet = [c for c in ALPHABET if c not in ("x", "^")]
    backend = byte_level(vocabulary([*alphabet, "ab"]), SPLITS["gpt-2"])
    assert tokens_of(backend, "abxab axb x a^b") == ["ab", "ab", "Ġ", "a", "b", "Ġ", "Ġ", "a", "b"]


def test_a_whole_piece_is_a_token_whatever_the_merges_say():
    made = vocabulary([*ALPHABET, "ab", "abc"])
    assert tokens_of(byte_level(made, SPLITS["llama-bpe"]), "abc") == ["abc"]
    assert tokens_of(byte_level(made, SPLITS["gpt-2"]), "abc") == ["ab", "c"]
    missing = vocabulary([*(c for c in ALPHABET if c != "c"), "ab", "abc"])
    with pytest.raises(TokenizerError, match=r"token 'abc' has a byte \('c'\) that is no token"):
        byte_level(missing, SPLITS["llama-bpe"])


@pytest.mark.parametrize(
    ("merges", "unknown"), [(["a b", "q ab"], "qab"), (["qq a"], "qq"), (["a qq"], "qq")]
)
def test_a_merge_of_no_token_is_refused(merges, unknown):
    with pytest.raises(TokenizerError, match=f"v.gguf: merges .*, and '{unknown}' is no token"):
        byte_level(vocabulary([*ALPHABET, "ab"], merges), SPLITS["gpt-2"])


def test_the_first_of_two_equal_merges_counts():
    made = vocabulary([*ALPHABET, "ab", "bc"], ["a b", "b c", "a b"])
    assert tokens_of(byte_level(made, SPLITS["gpt-2"]), "abc") == ["ab", "c"]


def test_spelled_in_characters():
    tokens = [*BYTES, "▁", "a", "b", "ab", "▁a", "\n", "\n\n"]
    backend = spelled(vocabulary(tokens, ["a b", "▁ a", "\n \n"]), SPLITS["gemma4"])
    assert tokens_of(backend, "ab  aé\n\n\n") == [
        *("ab", "▁", "▁a", "<0xC3>", "<0xA9>", "\n\n", "\n")
    ]
    assert backend.decode(backend.encode("ab  aé\n\n\n").ids) == "ab  aé\n\n\n"


def test_line_ends_that_the_merges_do_not_make():
    tokens = [*BYTES, "▁", "a", "b", "ab", "\n", "\n\n"]
    with pytest.raises(
        TokenizerError, match="token 261 is 2 line ends, which its merges don't make"
    ):
        spelled(vocabulary(tokens), SPLITS["gemma4"])


def test_all_bytes_have_a_token():
    with pytest.raises(TokenizerError, match="has no token <0x00>"):
        byte_tokens(vocabulary(BYTES[1:]))
    byte_tokens(vocabulary(BYTES))
