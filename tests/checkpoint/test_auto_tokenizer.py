"""What AutoTokenizer makes of published settings: our ids, or a line that says where they differ."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from scoremode.checkpoint.tokenizer import checkpoint_tokenizer, compare_tokens, difference_lines
from scoremode.engines.torch.options import TorchOptions
from scoremode.runs.measure import measure
from scoremode.runs.request import Request
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset

FOLDERS = {"stories260K": "stories260K", "gpt2": "tokenizers/gpt2", "qwen2": "tokenizers/qwen2"}
NAMED = {
    "stories260K": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "gpt2": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    "qwen2": {"bos_token": None, "eos_token": "<|endoftext|>"},
}
EXTRA = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
# Model type and settings, as published models have them.
SETTINGS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "nothing": (None, {}),
    "Llama 3": ("llama", {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up": True}),
    "Llama 2": (
        "llama",
        {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": True}
        | {"add_eos_token": False, "sp_model_kwargs": {}, "use_default_system_prompt": False},
    ),
    "Mistral": ("mistral", {"tokenizer_class": "LlamaTokenizerFast", "legacy": True}),
    "SmolLM2": ("llama", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}),
    "Qwen3": (
        "qwen3",
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "add_bos_token": False,
            "split_special_tokens": False,
        },
    ),
    "a Qwen2 fine-tune": ("qwen2", {"tokenizer_class": "LlamaTokenizerFast"}),
    "DeepSeek": (
        "llama",
        {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "legacy": True}
        | {"pad_token": {"__type": "AddedToken", "content": "<|pad|>", **EXTRA}},
    ),
    "OPT": ("opt", {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}),
    "Gemma": ("gemma3_text", {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True}),
    "both ends": (None, {"add_bos_token": True, "add_eos_token": True}),
    "an image token": (None, {"extra_special_tokens": {"image_token": "<image>"}}),
    "tokens to add": (
        "llama",
        {"additional_special_tokens": ["Boulter"]}
        | {"added_tokens_decoder": {"900": {"content": "film", "special": False, **EXTRA}}},
    ),
    "special tokens as text": (None, {"split_special_tokens": True}),
    "an unknown class": ("llama", {"tokenizer_class": "NoSuchTokenizerFast"}),
}
# Qwen2's takes a second to load, three times a case.
FEWER = ("Qwen3", "a Qwen2 fine-tune", "tokens to add")
CASES = [(n, s) for n in FOLDERS for s in SETTINGS if n != "qwen2" or s in FEWER]
AUTO, NEVER = preset("disjoint"), preset("disjoint").override(bos="never")


@pytest.fixture(scope="module")
def rows(data) -> str:
    text = (data / "wikitext2" / "wiki.test.raw").read_bytes().decode()[:4000]
    return text + "  1987 <s>quoted</s> <|endoftext|>\n"


@pytest.fixture
def published(data, tmp_path):
    """Makes a folder of a real tokenizer.json with other settings beside it."""

    def make(name: str, model_type: str | None, settings: dict[str, Any]) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        shutil.copyfile(data / FOLDERS[name] / "tokenizer.json", folder / "tokenizer.json")
        settings = NAMED[name] | settings
        if settings.get("add_bos_token") and settings["bos_token"] is None:
            settings["bos_token"] = settings["eos_token"]
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        if model_type is not None:
            (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        return folder

    return make


def lines(folder: Path, text: str, protocol=AUTO, read: int = 10**9) -> list[str]:
    tokenizer = checkpoint_tokenizer(str(folder))
    return difference_lines(compare_tokens(tokenizer, text), tokenizer, protocol, read)


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_ids_are_autotokenizers_or_the_difference_is_named(name, settings, published, rows):
    folder = published(name, *SETTINGS[settings])
    ours = checkpoint_tokenizer(str(folder))
    said = [line for line in lines(folder, rows) if "fix_mistral_regex" not in line]
    try:
        theirs = AutoTokenizer.from_pretrained(folder)
        wanted = [theirs(rows, add_special_tokens=s)["input_ids"] for s in (False, True)]
    # Anything may come from a class that the file's vocabulary doesn't suit.
    except Exception:  # noqa: BLE001
        assert len(said) == 1 and "can't load" in said[0]
        return
    got = [ours.encode(rows, special_tokens=s).tolist() for s in (False, True)]
    assert bool(said) == (got != wanted), said
    if got[0] != wanted[0]:
        assert f"({len(wanted[0]):,} and {len(got[0]):,} tokens)" in said[0]


def test_a_class_that_rebuilds_the_tokenizer_is_named_with_where(published, rows):
    folder = published("stories260K", "llama", {"tokenizer_class": "LlamaTokenizer"})
    (said,) = lines(folder, "\n" + rows)
    assert "AutoTokenizer (LlamaTokenizer) splits this text otherwise" in said
    assert "--tokenizer" in said
    # What no window reaches is nobody's trouble.
    first = int(said.partition("from token ")[2].partition(" ")[0].replace(",", ""))
    assert not lines(folder, "\n" + rows, read=first)
    assert lines(folder, "\n" + rows, read=first + 1) == [said]
    # What is advised does what is said.
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder / "saved")
    assert lines(folder / "saved", "\n" + rows) == []


def test_a_bos_that_autotokenizer_would_add_counts_where_the_protocol_asks(published, rows):
    folder = published("stories260K", None, {"add_bos_token": False})
    (said,) = lines(folder, rows)
    assert "puts [1] before and nothing behind a text" in said
    assert "obeyed, nothing before and nothing behind" in said
    assert lines(folder, rows, NEVER) == []


def test_the_wrong_pattern_of_mistral_is_named(published):
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    assert any(
        "fix_mistral_regex" in line for line in lines(published("qwen2", "mistral", config), "a")
    )


def test_the_pattern_of_mistral_is_told_of_no_other_model(published, capfd):
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    folder = published("qwen2", None, config)
    (folder / "config.json").unlink(missing_ok=True)
    assert not any("fix_mistral_regex" in line for line in lines(folder, "a"))
    assert "fix_mistral_regex" not in capfd.readouterr().err


def test_a_tokenizer_of_the_checkpoints_own_code_is_not_compared(published, rows):
    own = {"auto_map": {"AutoTokenizer": ["tok.Tok", None]}, "tokenizer_class": "Tok"}
    (said,) = lines(published("stories260K", None, own), rows)
    assert "can't load" in said and "weren't compared" in said


def test_a_run_says_it_and_its_record_keeps_it(demo, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(demo / "model", folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "GPT2Tokenizer"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    text = "  indented\n\n\n1987 ünï it's\n" * 20
    request = Request(
        model=str(folder),
        corpus=from_string(text),
        protocol=preset("disjoint").override(context_length=32),
        options=TorchOptions(device="cpu", dtype="float32"),
        output=tmp_path / "runs",
    )
    said: list[str] = []
    found = measure(request, notify=said.append).record.document["tokenizer"]["auto_tokenizer"]
    theirs = AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)["input_ids"]
    assert found["class"] == "GPT2Tokenizer"
    assert found["tokens"][0] == len(theirs)
    assert (found["first_difference"] is not None) == any(
        "reads this text" in line for line in said
    )
    own = Request(**{**vars(request), "model": str(demo / "model")})
    said.clear()
    found = measure(own, notify=said.append).record.document["tokenizer"]["auto_tokenizer"]
    assert found["first_difference"] is None and not any("reads this text" in x for x in said)
