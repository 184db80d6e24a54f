"""Token ids against transformers', known answers, and where a BOS goes."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from transformers import AutoTokenizer

from scoremode.errors import TokenizerError
from scoremode.text.protocol import Protocol
from scoremode.text.tokenizer import load_tokenizer, naming, tokenize

TEXTS = [
    "Once upon a time, there was a girl.",
    " = Robert Boulter = \n\n Robert Boulter is an English film actor .",
    "<s>quoted</s> <unk> <|endoftext|> <|im_start|>user",
    "ünï 🦙\r\n\t  x\n\n\n 1234567 …",
    " ",
    "\n",
    "",
]
FOLDERS = {
    "stories260K": "stories260K",
    "gpt2": "tokenizers/gpt2",
    "gpt2-with-truncation": "tokenizers/gpt2-with-truncation",
    "qwen2": "tokenizers/qwen2",
}
COUNTS = {
    "gpt2": 286_221,
    "gpt2-with-truncation": 286_221,
    "qwen2": 299_078,
    "stories260K": 809_289,
}


@pytest.fixture(scope="module")
def wikitext(data) -> str:
    return (data / "wikitext2" / "wiki.test.raw").read_bytes().decode()


@pytest.fixture
def variant(data, tmp_path):
    """Makes stories260K's tokenizer with other settings, or with an edited tokenizer.json."""

    def make(settings: Any = None, edit: dict[str, Any] | None = None) -> Path:
        base = data / "stories260K"
        file = json.loads((base / "tokenizer.json").read_text()) | (edit or {})
        (tmp_path / "tokenizer.json").write_text(json.dumps(file))
        if settings is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        return tmp_path

    return make


def ids(folder: Path, text: str = "once", special_tokens: bool = True) -> list[int]:
    return load_tokenizer(folder).encode(text, special_tokens=special_tokens).tolist()


@pytest.mark.parametrize("special_tokens", [True, False])
@pytest.mark.parametrize("name", FOLDERS)
def test_ids_are_those_of_transformers(name, special_tokens, data, wikitext):
    ours = load_tokenizer(data / FOLDERS[name])
    theirs = AutoTokenizer.from_pretrained(data / FOLDERS[name])
    for text in [*TEXTS, wikitext[:20_000]]:
        wanted = theirs(text, add_special_tokens=special_tokens, truncation=False, padding=False)
        assert ours.encode(text, special_tokens=special_tokens).tolist() == wanted["input_ids"]
    assert ours.size == len(theirs)


@pytest.mark.parametrize(("name", "file"), [("gpt2", "gpt-2"), ("qwen2", "qwen2")])
def test_known_answers(name, file, data):
    answers = data / "tokenizers" / "known-answers"
    inputs = (answers / f"ggml-vocab-{file}.gguf.inp").read_text().split("\n__ggml_vocab_test__\n")
    outputs = (answers / f"ggml-vocab-{file}.gguf.out").read_text().split("\n")[: len(inputs)]
    tokenizer = load_tokenizer(data / FOLDERS[name])
    got = [tokenizer.encode(text, special_tokens=False).tolist() for text in inputs]
    assert got == [[int(i) for i in line.split()] for line in outputs]
    assert len(got) > 40


@pytest.mark.parametrize("name", COUNTS)
def test_wikitext_has_as_many_tokens_as_it_should(name, data, wikitext):
    encoded = load_tokenizer(data / FOLDERS[name]).encode(wikitext, special_tokens=False)
    assert encoded.dtype == np.int32
    assert len(encoded) == COUNTS[name]


def test_truncation_and_padding_of_the_file_are_off(variant):
    truncation = {"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    padding = {
        "strategy": {"Fixed": 40},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<unk>",
    }
    plain = variant()
    wanted = [ids(plain, text) for text in TEXTS]
    folder = variant(edit={"truncation": truncation, "padding": padding})
    untouched = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert len(untouched.encode(TEXTS[0]).ids) == 40
    assert [ids(folder, text) for text in TEXTS] == wanted


@pytest.mark.parametrize(
    ("settings", "front", "behind"),
    [
        (None, [1], []),  # the post-processor of tokenizer.json
        ({}, [1], []),
        ({"add_bos_token": None, "add_eos_token": None}, [1], []),
        ({"add_bos_token": True}, [1], []),
        ({"add_bos_token": False}, [], []),
        ({"add_eos_token": True}, [1], [2]),
        ({"add_bos_token": True, "add_eos_token": True}, [1], [2]),
        ({"add_bos_token": True, "add_eos_token": False}, [1], []),
        ({"add_bos_token": False, "add_eos_token": True}, [], [2]),
        ({"add_bos_token": True, "bos_token": {"content": "</s>", "special": True}}, [2], []),
        # Nothing to add by name: the post-processor's.
        ({"add_bos_token": True, "bos_token": None}, [1], []),
        ({"add_eos_token": True, "eos_token": None}, [1], []),
        ({"add_bos_token": False, "bos_token": None}, [], []),
    ],
)
def test_settings_that_change_ids(settings, front, behind, variant):
    if settings is not None:
        settings = {"bos_token": "<s>", "eos_token": "</s>"} | settings
    tokenizer = load_tokenizer(variant(settings))
    bare = tokenizer.encode("once", special_tokens=False).tolist()
    assert tokenizer.added == (tuple(front), tuple(behind))
    assert tokenizer.encode("once", special_tokens=True).tolist() == front + bare + behind
    assert tokenizer.adds_bos == bool(front)
    assert tokenizer.to_json()["adds"] == {"front": front, "behind": behind}
    # A second text, for a template made from the first would not show.
    other = tokenizer.encode("a girl", special_tokens=False).tolist()
    assert tokenizer.encode("a girl", special_tokens=True).tolist() == front + other + behind


def test_size_counts_added_tokens(variant, data):
    added = json.loads((data / "stories260K" / "tokenizer.json").read_text())["added_tokens"]
    extra = added[0] | {"id": 600, "content": "<far>"}
    folder = variant(edit={"added_tokens": [*added, extra]})
    size = load_tokenizer(folder).size
    assert size == 1 + max(
        tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab().values()
    )
    assert size == 513  # the library numbers an added token itself, right behind the others


def test_the_hash_changes_with_what_changes_ids(variant, data):
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    settings = [
        named | {"add_bos_token": True},
        named | {"add_bos_token": False},
        named | {"add_bos_token": True, "add_eos_token": True},
        named | {"bos_token": "</s>", "add_bos_token": True},
    ]
    hashes = [load_tokenizer(variant(s)).sha256 for s in settings]
    hashes.append(load_tokenizer(variant(settings[0], edit={"normalizer": None})).sha256)
    assert len(set(hashes)) == len(hashes)


def test_the_hash_does_not_change_with_what_does_not(variant):
    plain = load_tokenizer(variant({"bos_token": "<s>"})).sha256
    chatty = {"bos_token": {"content": "<s>"}, "chat_template": "…", "model_max_length": 5}
    assert load_tokenizer(variant(chatty)).sha256 == plain


def test_a_tokenizer_json_can_be_given_itself(variant):
    folder = variant({"bos_token": "<s>", "add_bos_token": False})
    assert ids(folder / "tokenizer.json") == ids(folder)


def test_a_bos_that_only_the_post_processor_knows(variant):
    tokenizer = load_tokenizer(variant())
    assert (tokenizer.bos, tokenizer.adds_bos) == (1, True)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("tokenizer.json", None, "tokenizer.json: No such file"),
        ("tokenizer.json", "{", "not a tokenizer"),
        ("tokenizer.json", '{"model": {}}', "not a tokenizer"),
        ("tokenizer_config.json", "{", "not readable JSON"),
        ("tokenizer_config.json", "[]", "holds a list, not an object"),
        (
            "tokenizer_config.json",
            '{"bos_token": "<none>", "add_bos_token": true}',
            "bos_token '<none>' is not in its vocabulary",
        ),
        (
            "tokenizer_config.json",
            '{"eos_token": "<none>", "add_eos_token": true}',
            "eos_token '<none>' is not in its vocabulary",
        ),
    ],
)
def test_a_bad_tokenizer_is_named_in_one_line(file, content, said, variant):
    folder = variant({})
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(TokenizerError, match=said) as refused:
        load_tokenizer(folder)
    assert str(folder) in str(refused.value)
    assert "\n" not in str(refused.value)


TEXT = "Once upon a time there was a little girl."
ADDS = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True}
ADDS_NOT = ADDS | {"add_bos_token": False, "add_eos_token": False}


@pytest.mark.parametrize(
    ("settings", "bos", "bos_at", "front", "behind", "written"),
    [
        (ADDS, "auto", "special-tokens", [1], [2], None),
        (ADDS, "auto", "stream", [1], [], None),
        (ADDS, "auto", "windows", [1], [], 1),
        (ADDS, "never", "special-tokens", [], [], None),
        (ADDS, "never", "stream", [], [], None),
        (ADDS, "never", "windows", [], [], None),
        (ADDS, "always", "special-tokens", [1], [], None),
        (ADDS_NOT, "auto", "special-tokens", [], [], None),
        (ADDS_NOT, "auto", "stream", [], [], None),
        (ADDS_NOT, "auto", "windows", [], [], None),
        (ADDS_NOT, "always", "special-tokens", [1], [], None),
        (ADDS_NOT, "always", "stream", [1], [], None),
        (ADDS_NOT, "always", "windows", [1], [], 1),
    ],
)
def test_where_the_bos_goes(settings, bos, bos_at, front, behind, written, variant):
    tokenizer = load_tokenizer(variant(settings))
    protocol = Protocol("test", bos=bos, bos_at=bos_at, context_length=6, tail="keep").resolve(None)
    plan = tokenize(TEXT, tokenizer, protocol)
    bare = tokenizer.encode(TEXT, special_tokens=False).tolist()
    assert plan.tokens.tolist() == front + bare + behind
    assert plan.window_bos == written
    assert plan.stream_bos == (1 if front else None)
    assert len(plan) > 1
    first = [int(window.inputs[0]) for window in plan]
    assert first == [written or int(plan.tokens[begin]) for begin in plan.start]


def test_a_bos_demanded_of_a_tokenizer_without_one(data):
    tokenizer = load_tokenizer(data / "tokenizers" / "qwen2")
    protocol = Protocol("test", bos="always", context_length=6).resolve(None)
    with pytest.raises(TokenizerError, match="BOS demanded") as refused:
        tokenize(TEXT, tokenizer, protocol)
    assert "qwen2" in str(refused.value)


def test_a_folder_may_be_called_like_a_file(data, tmp_path):
    folder = tmp_path / "model.json"
    shutil.copytree(data / "stories260K", folder)
    assert ids(folder) == ids(data / "stories260K")


def test_an_id_beyond_every_vocabulary_is_refused(demo, tmp_path):
    file = json.loads((demo / "model" / "tokenizer.json").read_text())
    file["model"]["vocab"]["zzz"] = 99_999_999
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    with pytest.raises(TokenizerError, match="token 'zzz' has id 99999999"):
        _ = load_tokenizer(tmp_path).size


def _file(demo: Path, folder: Path, **parts: Any) -> Path:
    """The demo model's tokenizer in `folder`, with other `parts`."""
    file = json.loads((demo / "model" / "tokenizer.json").read_text())
    file["model"] |= parts.pop("model", {})
    (folder / "tokenizer.json").write_text(json.dumps(file | parts))
    return folder


def test_one_that_draws_its_tokens_is_refused(demo, tmp_path):
    folder = _file(demo, tmp_path, model={"dropout": 0.1})
    # It does give other tokens from time to time.
    drawn = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert len({tuple(drawn.encode("Once upon a time").ids) for _ in range(50)}) > 1
    with pytest.raises(
        TokenizerError, match="drawn at random, as for training: its model has drop"
    ):
        load_tokenizer(folder)
    load_tokenizer(_file(demo, tmp_path, model={"dropout": 0.0}))


# A table of 64 entries that all lead out of it.
_TABLE = base64.b64encode((256).to_bytes(4, "little") + 256 * b"\xff").decode()
_GARBAGE = {"type": "Precompiled", "precompiled_charsmap": _TABLE}
_GIVES_UP = {
    "type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"normalizer": _GARBAGE}, "cannot encode the text: "),
        (
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AA"}},
            "not a tokenizer: ",
        ),
        ({"pre_tokenizer": _GIVES_UP}, "cannot encode the text: "),
        ({"pre_tokenizer": _GIVES_UP | {"pattern": {"Regex": "(x"}}}, "not a tokenizer: "),
        ({"normalizer": {"type": "Elephant"}}, "not a tokenizer: "),
    ],
)
def test_whatever_the_library_raises_is_one_line_with_the_files_name(parts, words, demo, tmp_path):
    folder = _file(demo, tmp_path, **parts)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(folder).encode(60 * "a" + "!", special_tokens=False)
    assert str(caught.value).startswith(f"{folder}") and words in str(caught.value)
    # Its panics are no Exceptions.
    with pytest.raises(TokenizerError), naming("x", "y"):
        raise type("PanicException", (BaseException,), {})("index out of bounds")
    with pytest.raises(KeyboardInterrupt), naming("x", "y"):
        raise KeyboardInterrupt


def test_half_a_surrogate_pair_is_no_token(variant):
    with pytest.raises(TokenizerError, match=r"bos_token '\\ud800': "):
        load_tokenizer(variant({"bos_token": "\ud800"}))
