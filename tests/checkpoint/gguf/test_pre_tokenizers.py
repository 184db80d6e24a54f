"""Every way of splitting that llama.cpp has, against the ids of its own llama-tokenize."""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from support.gguf.vocabularies import TEXTS, metadata_of
from tokenizers import Regex, pre_tokenizers

from scoremode.checkpoint.gguf.pre_tokenizers import SPLITS, UNREAD
from scoremode.checkpoint.gguf.tokenizer import tokenizer_of
from scoremode.errors import TokenizerError

GOLDEN = Path(__file__).parents[2] / "golden" / "gguf_tokenizers" / "answers.json.xz"
ANSWERS: dict[str, Any] = json.loads(lzma.decompress(GOLDEN.read_bytes()))
CASES = {f"{case['vocabulary']}-{case['pre']}": case for case in ANSWERS["cases"]}


@pytest.mark.parametrize("name", CASES)
def test_ids_are_llama_cpps(name):
    case = CASES[name]
    changes = {"pre": case["pre"]}
    if case["vocabulary"] == "gemma4":
        changes["model"] = "gpt2"
    metadata = metadata_of(ANSWERS["vocabularies"][case["vocabulary"]], **changes)
    tokenizer = tokenizer_of(metadata, "vocabulary")
    for plain in (False, True):
        tokenizer.backend.encode_special_tokens = plain
        for text, wanted in zip(TEXTS, case["plain" if plain else "special"], strict=True):
            assert tokenizer.encode(text, special_tokens=True).tolist() == wanted, repr(text)


def test_every_way_of_splitting_has_an_answer():
    assert {*SPLITS.values()} == {SPLITS[c["pre"] or "default"] for c in ANSWERS["cases"]}


@pytest.mark.parametrize("name", ["superbpe", "afmoe", "tiny_aya"])
def test_digits_by_three_from_the_right(name):
    splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in SPLITS[name].patterns]
    pieces = pre_tokenizers.Sequence(splits).pre_tokenize_str("1234567890")  # pyright: ignore[reportArgumentType]
    assert [piece for piece, _ in pieces] == ["1", "234", "567", "890"]


@pytest.mark.parametrize("name", [*UNREAD, "of tomorrow", ""])
def test_another_name_is_refused(name):
    metadata = metadata_of(ANSWERS["vocabularies"]["gpt2"], pre=name)
    with pytest.raises(TokenizerError, match=rf"v\.gguf: its tokenizer splits a text as {name!r} "):
        tokenizer_of(metadata, "v.gguf")
