"""Tokenizers of GGUF metadata: kinds, BOS and EOS, what is refused, llama.cpp's own vocabularies."""

import ast
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.gguf.vocabularies import CONTROL, NORMAL, metadata_of, write_gguf
from tokenizers import pre_tokenizers

from scoremode.checkpoint.gguf.header import read_gguf
from scoremode.checkpoint.gguf.tokenizer import has_vocabulary, tokenizer_of
from scoremode.checkpoint.tokenizer import checkpoint_tokenizer
from scoremode.errors import TokenizerError
from scoremode.text.token_class import token_table

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
PLAIN = {
    "model": "gpt2",
    "pre": "gpt-2",
    "tokens": [*ALPHABET, "ab", "<s>", "</s>"],
    "token_type": [NORMAL] * 257 + [CONTROL] * 2,
    "merges": ["a b"],
}
SPELLED = {
    "tokens": ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "▁a"],
    "token_type": [2, 3, 3, *[6] * 256, 1, 1, 1],
    "scores": [0.0] * 259 + [-3.0, -2.0, -1.0],
}


def made(vocabulary=PLAIN, **changes):
    return tokenizer_of(metadata_of(vocabulary, **changes), "v.gguf")


def ids(tokenizer, text, special_tokens=True):
    return tokenizer.encode(text, special_tokens=special_tokens).tolist()


def test_bos_and_eos_are_put_where_the_file_says():
    plain = ids(made(), "ab")
    assert plain == [256]
    given = {"bos_token_id": 257, "eos_token_id": 258}
    assert ids(made(**given), "ab") == plain
    assert ids(made(**given, add_bos_token=True), "ab") == [257, *plain]
    both = made(**given, add_bos_token=True, add_eos_token=True)
    assert ids(both, "ab") == [257, *plain, 258]
    assert (both.bos, both.added, both.size) == (257, ((257,), (258,)), 259)
    # Llama 3's kind puts BOS where nothing is said.
    assert ids(made(pre="llama-bpe", **given), "ab") == [257, *plain]
    assert ids(made(pre="llama-bpe", **given, add_bos_token=False), "ab") == plain
    with pytest.raises(TokenizerError, match="is to put BOS to a text, and has"):
        made(add_bos_token=True)


def test_a_scored_vocabulary_puts_token_1_before():
    tokenizer = made(SPELLED, model="llama")
    assert ids(tokenizer, "a") == [1, 261]
    assert ids(made(SPELLED, model="llama", add_bos_token=False), "a") == [261]
    # A special token that the text spells; what follows begins anew.
    assert ids(tokenizer, "a</s>a") == [1, 261, 2, 261]


def test_gemma_4_has_bos_whatever_it_says():
    changes = {"merges": ["▁ a"], "bos_token_id": 1}
    for says in (None, False, True):
        assert ids(made(SPELLED, model="gemma4", add_bos_token=says, **changes), " a") == [1, 261]


def test_the_bytes_of_tokens_are_known():
    table = token_table(made(SPELLED, model="llama"))
    assert table.pieces[259:262] == (b" ", b"a", b" a")
    assert table.pieces[3 + 0xC3] == b"\xc3"
    assert token_table(made()).pieces[256] == b"ab"


def test_a_file_that_does_not_say_how_it_splits_is_told():
    tokenizer = made(pre=None)
    (note,) = tokenizer.notes
    assert note.startswith("v.gguf: doesn't say how its tokenizer splits a text")
    assert ids(tokenizer, "a+=b12") == ids(made(pre="default"), "a+=b12")
    assert made().notes == ()
    assert made(SPELLED, model="llama").notes == ()


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "plamo2", "hybriddna", "whitespace", "x"])
def test_other_kinds_are_refused(kind):
    with pytest.raises(TokenizerError, match=f"of kind {kind!r}.* not read from GGUF"):
        made(model=kind)


def test_what_is_no_tokenizer():
    with pytest.raises(TokenizerError, match="of kind 'none'"):
        made(model=None)
    assert [has_vocabulary(metadata_of(PLAIN, model=m)) for m in ("gpt2", "bert")] == [True] * 2
    assert [has_vocabulary(metadata_of(PLAIN, model=m)) for m in ("none", None)] == [False] * 2


def test_its_sha256_is_of_what_makes_ids():
    one = made().sha256
    assert made(**{"general.name": "x"}).sha256 == one
    others = [
        made(pre="llama-bpe", add_bos_token=False).sha256,
        made(merges=["a b", "b c"], tokens=[*ALPHABET, "ab", "bc", "</s>"]).sha256,
        made(bos_token_id=257).sha256,
    ]
    assert len({one, *others}) == 4


def test_a_long_run_of_anything_takes_no_time():
    for pre in ("gpt-2", "deepseek-llm", "tekken", "exaone-moe"):
        tokenizer = made(pre=pre, add_bos_token=False)
        for text in (
            " " * 50_000 + "x",
            "1" * 50_000,
            "A" * 50_000,
            "\n" * 50_000 + "x",
            "é" * 50_000,
        ):
            assert len(ids(tokenizer, text)) >= 25_000


def llama_cpp() -> tuple[Path, Path]:
    folder = os.environ.get("SCOREMODE_LLAMA_CPP")
    if not folder:
        pytest.skip(
            "needs llama.cpp's source and tools: set SCOREMODE_LLAMA_CPP (tools/llama_cpp.py)"
        )
    return Path(folder) / "source" / "models", Path(folder) / "build" / "bin" / "llama-tokenize"


def answered(tool: Path, file: Path, text: str, *, special: bool) -> list[int]:
    command = [str(tool), "-m", str(file), "--stdin", "--ids", "--no-escape"]
    command += [] if special else ["--no-parse-special"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    return ast.literal_eval(done.stdout.decode().strip().splitlines()[-1])


NAMES = (
    *("aquila", "baichuan", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4"),
    *("gpt-2", "gpt-neox", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact"),
    "starcoder",
)


@pytest.mark.parametrize("name", NAMES)
def test_known_answers_and_wikitext_of_llama_cpps_vocabularies(name, data):
    models, tool = llama_cpp()
    file = models / f"ggml-vocab-{name}.gguf"
    tokenizer = checkpoint_tokenizer(str(file))
    assert tokenizer.source == str(file)
    answers = file.with_suffix(".gguf.out")
    if answers.exists():
        asked = file.with_suffix(".gguf.inp").read_bytes().decode()
        texts = asked.removesuffix("\n__ggml_vocab_test__\n").split("\n__ggml_vocab_test__\n")
        tokenizer.backend.encode_special_tokens = True
        for text, line in zip(texts, answers.read_text().splitlines(), strict=True):
            assert ids(tokenizer, text, False) == [*map(int, line.split())], repr(text)
    text = (data / "wikitext2" / "wiki.test.raw").read_bytes().decode()
    for special in (True, False):
        tokenizer.backend.encode_special_tokens = not special
        wanted = answered(tool, file, text, special=special)
        assert ids(tokenizer, text) == wanted


@pytest.mark.parametrize(("name", "pre"), [("gpt2", "gpt-2"), ("qwen2", "qwen2")])
def test_known_answers_of_published_tokenizers_as_metadata(name, pre, data, tmp_path):
    """A tokenizer.json's vocabulary, written as llama.cpp's converter does, gives llama.cpp's ids."""
    model = json.loads((data / "tokenizers" / name / "tokenizer.json").read_text())
    vocab = model["model"]["vocab"] | {a["content"]: a["id"] for a in model["added_tokens"]}
    tokens = [f"[PAD{i}]" for i in range(max(vocab.values()) + 1)]
    kinds = np.full(len(tokens), NORMAL, np.int32)
    for token, i in vocab.items():
        tokens[i] = token
    for added in model["added_tokens"]:
        kinds[added["id"]] = CONTROL
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["model"]["merges"]]
    metadata = metadata_of(
        {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds, "merges": merges}
    )
    file = write_gguf(tmp_path / "v.gguf", metadata)
    tokenizer = tokenizer_of(read_gguf(file).metadata, str(file))
    tokenizer.backend.encode_special_tokens = True
    answers = data / "tokenizers" / "known-answers" / f"ggml-vocab-{pre}.gguf"
    asked = answers.with_suffix(".gguf.inp").read_bytes().decode()
    texts = asked.removesuffix("\n__ggml_vocab_test__\n").split("\n__ggml_vocab_test__\n")
    lines = answers.with_suffix(".gguf.out").read_text().splitlines()
    for text, line in zip(texts, lines, strict=True):
        assert ids(tokenizer, text, False) == [*map(int, line.split())], repr(text)


@pytest.mark.parametrize("key", ["tokenizer.ggml.model", "tokenizer.ggml.pre"])
@pytest.mark.parametrize("value", [["gpt2"], np.array([1, 2]), 3, True, 0.5])
def test_names_that_are_none(key, value):
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.merges": [],
    }
    with pytest.raises(TokenizerError) as error:
        tokenizer_of(metadata | {key: value}, "x.gguf")
    assert str(error.value) == f"x.gguf: {key} is {value!r:.80}, no name"
    assert has_vocabulary(metadata | {key: value})
