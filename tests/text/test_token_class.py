"""Bytes and kinds of tokens: against the text they came from, and the library's own decoding."""

import re

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from scoremode.errors import TokenizerError
from scoremode.text.token_class import TOKEN_CLASSES, TokenTable, token_table
from scoremode.text.tokenizer import Tokenizer, load_tokenizer

REAL = {
    "gpt2": "tokenizers/gpt2",
    "qwen2": "tokenizers/qwen2",
    "stories260K": "stories260K",
}
# SentencePiece's kind puts a space in front of the text.
PREFIX = {"stories260K": 1}


def made(backend: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer("made", backend, None, "0" * 64)


def byte_level(*added: AddedToken | str, **vocabulary: int) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)} | vocabulary
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    for token in added:
        if isinstance(token, AddedToken):
            backend.add_tokens([token])
        else:
            backend.add_special_tokens([token])
    return made(backend)


def named(tokenizer: Tokenizer, token: str) -> str:
    i = tokenizer.backend.token_to_id(token)
    assert i is not None
    return TOKEN_CLASSES[token_table(tokenizer).classes[i]]


def assert_bytes_add_up(tokenizer: Tokenizer, text: str, prefix: int = 0) -> None:
    ids = tokenizer.encode(text, special_tokens=False)
    table = token_table(tokenizer)
    assert table.byte_counts.dtype == np.uint16
    assert table.classes.dtype == np.uint8
    assert len(table.byte_counts) == len(table.classes) == len(table.pieces) == tokenizer.size
    assert int(table.byte_counts[ids].sum(dtype=np.int64)) == len(text.encode()) + prefix
    assert table.text(ids)[prefix:] == text


@pytest.mark.parametrize("name", REAL)
def test_bytes_of_wikitext_add_up(name, data):
    text = (data / "wikitext2" / "wiki.test.raw").read_text(encoding="utf-8")[:200_000]
    assert_bytes_add_up(load_tokenizer(data / REAL[name]), text, PREFIX.get(name, 0))


def test_bytes_of_the_demo_s_text_add_up(demo):
    text = (demo / "heldout.txt").read_text(encoding="utf-8")
    tokenizer = load_tokenizer(demo / "model")
    assert_bytes_add_up(tokenizer, text)
    # A BOS in front stands for no text.
    full = tokenizer.encode(text, special_tokens=True)
    assert full[0] == tokenizer.bos
    assert int(token_table(tokenizer).byte_counts[full].sum(dtype=np.int64)) == len(text.encode())


@pytest.mark.parametrize("name", REAL)
def test_odd_texts_add_up(name, data):
    text = " ünï 🦙\r\n\t  x\n\n\n 1234567 … नमस्ते 你好 don't (the) \x00\x7f a\u200db"
    assert_bytes_add_up(load_tokenizer(data / REAL[name]), text, PREFIX.get(name, 0))


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "stories260K", "demo"])
def test_pieces_are_what_the_library_decodes(name, data, demo):
    tokenizer = load_tokenizer(demo / "model" if name == "demo" else data / REAL[name])
    table = token_table(tokenizer)
    a = tokenizer.encode("a", special_tokens=False).tolist()
    before = len(tokenizer.backend.decode(a, skip_special_tokens=False))
    for i in range(0, tokenizer.size, 1 + tokenizer.size // 5000):
        wanted = tokenizer.backend.decode([*a, i], skip_special_tokens=False)[before:]
        if "\ufffd" not in wanted:
            assert table.text([i]) == wanted


def test_a_normalizer_changes_the_text_that_is_counted(data):
    tokenizer = load_tokenizer(data / REAL["qwen2"])
    ids = tokenizer.encode(
        "e\u0301", special_tokens=False
    )  # composed to U+00E9: two bytes of three
    assert int(token_table(tokenizer).byte_counts[ids].sum()) == 2


def test_added_tokens():
    run_of_spaces = AddedToken("    ", special=False)
    accented = AddedToken("<é>", special=False)
    tokenizer = byte_level(run_of_spaces, accented, "<|end|>")
    table = token_table(tokenizer)
    ids = tokenizer.encode("a    <é>b<|end|>", special_tokens=False)
    assert table.byte_counts[ids].tolist() == [1, 4, 4, 1, 0]
    assert [TOKEN_CLASSES[c] for c in table.classes[ids]] == [
        "word inside", "white space", "other", "word inside", "special",
    ]  # fmt: skip
    assert table.text(ids) == "a    <é>b<|end|>"
    assert table.texts(ids).tolist() == ["a", "    ", "<é>", "b", "<|end|>"]


def test_ids_that_no_token_has():
    tokenizer = byte_level(gap=400)
    table = token_table(tokenizer)
    assert len(table.pieces) == 401
    assert (table.byte_counts[300], TOKEN_CLASSES[table.classes[300]]) == (0, "special")
    assert table.text([300, 400, 9999, -1]) == "<id 300>gap<id 9999><id -1>"
    alone = table.texts(np.array([300, 400, 9999, -1, 400]))
    assert alone.tolist() == ["<id 300>", "gap", "<id 9999>", "<id -1>", "gap"]


def test_bytes_that_are_no_character_by_themselves_are_named():
    """A quotation mark of three bytes, and what vocabularies of bytes join to some of them."""
    table = TokenTable(
        (b"\xe2", b" \xe2\x80", "“".encode(), b"a\xffb", b"", None),
        np.zeros(6, np.uint16),
        np.zeros(6, np.uint8),
    )
    assert table.texts(np.arange(6)).tolist() == [
        *("<0xE2>", " <0xE2><0x80>", "“", "a<0xFF>b", "", "<id 5>"),
    ]


@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
def test_texts_spell_the_text_again(name, data):
    """By the library's own decoder: texts of whole characters joined are the text."""
    tokenizer = load_tokenizer(data / "tokenizers" / name)
    ids = tokenizer.encode("The naïve “test”: 東京, 12 🙂", special_tokens=False)
    table = token_table(tokenizer)
    joined = "".join(table.texts(ids))
    spelled = re.sub(
        "(?:<0x[0-9A-F]{2}>)+",
        lambda run: bytes.fromhex(run[0].replace("<0x", "").replace(">", "")).decode(),
        joined,
    )
    assert spelled.strip() == "The naïve “test”: 東京, 12 🙂" and "<0x" in joined


@pytest.mark.parametrize(
    ("token", "kind"),
    [
        ("Ġthe", "word start"),
        ("the", "word inside"),
        ("ing", "word inside"),
        ("'s", "word inside"),
        ("Ġdon't", "word start"),
        ("ĊThe", "word start"),
        ("Ã¼ber", "word inside"),
        ("2", "number"),
        ("Ġ1999", "number"),
        (".", "punctuation"),
        ("'", "punctuation"),
        ("Ġ(", "punctuation"),
        (".Ċ", "punctuation"),
        ("Ġ=", "punctuation"),
        ("ĠĠ", "white space"),
        ("Ċ", "white space"),
        ("Ã", "other"),
        ("(the", "other"),
        ("a1", "other"),
        ("Ġ2nd", "other"),
    ],
)
def test_kinds(token, kind):
    tokenizer = byte_level()
    known = tokenizer.backend.get_vocab()
    if token not in known:
        tokenizer = byte_level(**{token: len(known)})
    assert named(tokenizer, token) == kind


def sentencepiece(decoder) -> Tokenizer:
    vocab = [
        ("<unk>", 0.0),
        ("▁", -1.0),
        ("▁the", -1.0),
        ("the", -1.0),
        ("<0xC3>", -9.0),
        ("<0x0a>", -9.0),
    ]
    backend = tokenizers.Tokenizer(models.Unigram(vocab, 0, byte_fallback=True))
    backend.decoder = decoder
    backend.add_special_tokens(["<unk>"])
    return made(backend)


def test_sentencepiece_s_space_and_byte_fallback():
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    for decoder in (
        decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Sequence([decoders.Metaspace()])]),
    ):
        table = token_table(sentencepiece(decoder))
        assert table.byte_counts.tolist() == [0, 1, 4, 3, 1, 1]
        assert [TOKEN_CLASSES[c] for c in table.classes] == [
            "special", "white space", "word start", "word inside", "other", "white space",
        ]  # fmt: skip
    # Without a fallback to bytes such a token is its own six characters.
    assert token_table(sentencepiece(decoders.Metaspace())).byte_counts[4] == 6


@pytest.mark.parametrize(
    ("decoder", "said"),
    [
        (None, "none"),
        (decoders.WordPiece(), "WordPiece"),
        (decoders.BPEDecoder(), "BPEDecoder"),
        (decoders.Strip(" ", 1, 0), "Strip"),
        (decoders.Replace(tokenizers.Regex("_+"), " "), "Replace by a pattern"),
        (decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()]), "none"),
    ],
)
def test_decoders_that_do_not_tell_are_refused(decoder, said):
    tokenizer = sentencepiece(decoders.Metaspace())
    tokenizer.backend.decoder = decoder
    with pytest.raises(TokenizerError, match=rf"made: .* are not known .*\({said}\)"):
        token_table(tokenizer)


def test_a_token_that_is_too_long_to_count_is_refused():
    tokenizer = byte_level(AddedToken("a" * 65_536, special=False))
    with pytest.raises(TokenizerError, match="token 256 has 65536 bytes"):
        token_table(tokenizer)


def test_metaspace_of_a_prefix_is_one_byte_more():
    """The documented exception: the space that the tokenizer puts in front is counted."""
    tokenizer = sentencepiece(decoders.Metaspace())
    tokenizer.backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    ids = tokenizer.encode("the the", special_tokens=False)
    assert int(token_table(tokenizer).byte_counts[ids].sum()) == len("the the") + 1
