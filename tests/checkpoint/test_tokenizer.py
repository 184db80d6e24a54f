"""Tokenizers that have to be converted, and where a tokenizer is looked for."""

import json

import pytest

from scoremode.checkpoint.model_files import resolve_model
from scoremode.checkpoint.tokenizer import checkpoint_tokenizer
from scoremode.errors import CheckpointError, TokenizerError

TEXTS = ["Hello world", " ünï 🦙\r\n\t  x\n\n\n 1234567", "<|endoftext|>quoted", ""]


@pytest.fixture
def slow_gpt2(data, tmp_path):
    """GPT-2's tokenizer as it was first published: vocab.json and merges.txt."""
    file = json.loads((data / "tokenizers" / "gpt2" / "tokenizer.json").read_text())
    merges = [m if isinstance(m, str) else " ".join(m) for m in file["model"]["merges"]]
    (tmp_path / "vocab.json").write_text(json.dumps(file["model"]["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    return tmp_path


def test_vocab_and_merges_give_the_ids_of_the_fast_file(slow_gpt2, data):
    converted = checkpoint_tokenizer(str(slow_gpt2))
    fast = checkpoint_tokenizer(str(data / "tokenizers" / "gpt2"))
    text = (data / "wikitext2" / "wiki.test.raw").read_text()[:50_000]
    for special_tokens in (True, False):
        for sample in [*TEXTS, text]:
            ours = converted.encode(sample, special_tokens=special_tokens)
            assert ours.tolist() == fast.encode(sample, special_tokens=special_tokens).tolist()
    assert converted.size == fast.size
    assert converted.bos == 50256
    assert not converted.adds_bos


def test_the_settings_beside_them_hold(slow_gpt2):
    settings = {
        "tokenizer_class": "GPT2Tokenizer",
        "add_bos_token": True,
        "bos_token": "<|endoftext|>",
    }
    (slow_gpt2 / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = checkpoint_tokenizer(str(slow_gpt2))
    assert tokenizer.encode("Hello", special_tokens=True).tolist() == [50256, 15496]
    assert tokenizer.adds_bos


def test_the_hash_of_a_conversion_can_be_made_again(slow_gpt2):
    assert len({checkpoint_tokenizer(str(slow_gpt2)).sha256 for _ in range(2)}) == 1


def test_what_cannot_be_converted_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"has no tokenizer\.json, and none can be made") as no:
        checkpoint_tokenizer(str(tmp_path))
    assert str(tmp_path) in str(no.value)
    assert "\n" not in str(no.value)


def test_a_folder_without_any_tokenizer(tmp_path):
    with pytest.raises(TokenizerError, match=r"has no tokenizer\.json, .* or vocab\.txt; give"):
        checkpoint_tokenizer(str(tmp_path))


@pytest.mark.parametrize("name", ["tekken.json", "tiktoken.model", "qwen.tiktoken", "spiece.model"])
def test_a_tokenizer_that_can_not_be_read_is_named(tmp_path, name):
    """Of tekken.json transformers 5.23 makes a tokenizer of five tokens, which gives no ids at all."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / name).write_text("{}")
    with pytest.raises(TokenizerError, match=rf"only {name}, which can't be read here; give a"):
        checkpoint_tokenizer(str(tmp_path))


def test_a_file_is_taken_itself(data):
    path = data / "stories260K" / "tokenizer.json"
    assert checkpoint_tokenizer(str(path)).bos == 1


def test_a_revision_of_a_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="--revision v1 has no meaning"):
        checkpoint_tokenizer(resolve_model(str(tmp_path), "v1"))
