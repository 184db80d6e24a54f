"""Where a model's chat template lies, and which tokens end its turns."""

import json
import shutil
from pathlib import Path

import pytest
from support.gguf.vocabularies import write_gguf
from transformers import AutoTokenizer

from scoremode.checkpoint.chat_template import chat_template, special_tokens, turn_ends
from scoremode.checkpoint.model_files import resolve_tokenizer
from scoremode.checkpoint.tokenizer import checkpoint_tokenizer
from scoremode.errors import TokenizerError
from scoremode.text.tokenizer import Tokenizer

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]


def jinja(name: str) -> str:
    return (
        f"{{{{ bos_token }}}}{name}{{% for m in messages %}}{{{{ m.content }}}}{{{{ eos_token }}}}"
        "{% endfor %}"
    )


@pytest.fixture
def folder(demo, tmp_path) -> Path:
    return Path(shutil.copytree(demo / "model", tmp_path / "model"))


@pytest.fixture
def tokenizer(folder) -> Tokenizer:
    return checkpoint_tokenizer(str(folder))


def settings(folder: Path, **changes: object) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def text(folder: Path, tokenizer: Tokenizer) -> str:
    found = chat_template([resolve_tokenizer(folder)], tokenizer)
    assert found is not None
    return found.render(MESSAGES).text


def test_without_any_there_is_none(folder, tokenizer):
    assert chat_template([resolve_tokenizer(folder)], tokenizer) is None


def test_of_several_places_transformers_first(folder, tokenizer):
    settings(folder, chat_template=jinja("config"))
    places = {
        "config": lambda: None,
        "json": lambda: (folder / "chat_template.json").write_text(
            json.dumps({"chat_template": jinja("json")})
        ),
        "jinja": lambda: (folder / "chat_template.jinja").write_text(jinja("jinja")),
    }
    for name, write in places.items():
        write()
        theirs = AutoTokenizer.from_pretrained(folder)
        wanted = theirs.apply_chat_template(MESSAGES, tokenize=False)
        # transformers reads chat_template.json for processors alone.
        if name != "json":
            assert text(folder, tokenizer) == wanted
        assert text(folder, tokenizer) == f"<s>{name}Hi</s>Yes</s>"


def test_of_several_names_the_default(folder, tokenizer):
    both = [{"name": n, "template": jinja(n)} for n in ("tool_use", "default")]
    settings(folder, chat_template=both)
    assert text(folder, tokenizer) == "<s>defaultHi</s>Yes</s>"
    settings(folder, chat_template=both[:1])
    with pytest.raises(
        TokenizerError, match="has chat templates tool_use, and none is the default"
    ):
        text(folder, tokenizer)


def test_a_template_that_is_no_text(folder, tokenizer):
    settings(folder, chat_template=3)
    with pytest.raises(TokenizerError, match="chat_template is int, not text"):
        text(folder, tokenizer)


def test_special_tokens_may_be_objects_or_lie_in_a_map(folder, tokenizer):
    settings(folder, chat_template=jinja(""), bos_token={"content": "<s>", "lstrip": False})
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "</s>"}}')
    assert text(folder, tokenizer) == "<s>Hi</s>Yes</s>"


def test_a_file_given_has_the_models_special_tokens(folder, tokenizer, tmp_path):
    (tmp_path / "t.jinja").write_text(jinja("given"))
    places = [resolve_tokenizer(folder)]
    usual = special_tokens(places[0], tokenizer)
    assert usual == {"bos_token": "<s>", "eos_token": "</s>"}
    found = chat_template(places, tokenizer, tmp_path / "t.jinja")
    assert found.render(MESSAGES).text == "<s>givenHi</s>Yes</s>"
    with pytest.raises(TokenizerError, match="No such file"):
        chat_template(places, tokenizer, tmp_path / "none.jinja")
    (tmp_path / "t.jinja").write_bytes(b"a\xff")
    with pytest.raises(TokenizerError, match="not utf-8 at byte 1"):
        chat_template(places, tokenizer, tmp_path / "t.jinja")


def test_turns_end_with_what_generation_ends_with(folder, tokenizer):
    assert turn_ends([resolve_tokenizer(folder)], tokenizer) == {1}
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 5, 7]}')
    assert turn_ends([resolve_tokenizer(folder)], tokenizer) == {1, 5, 7}
    # No token of this tokenizer's.
    (folder / "generation_config.json").write_text('{"eos_token_id": 99999}')
    assert turn_ends([resolve_tokenizer(folder)], tokenizer) == {1}
    (folder / "generation_config.json").write_text('{"eos_token_id": "x"}')
    with pytest.raises(TokenizerError, match="the id of a token that ends a turn is 'x'"):
        turn_ends([resolve_tokenizer(folder)], tokenizer)


def test_a_gguf_file_says_all_of_it_itself(tmp_path, tokenizer):
    metadata = {
        "general.architecture": "llama",
        "tokenizer.chat_template": jinja("gguf"),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.eot_token_id": 9,
    }
    file = write_gguf(tmp_path / "m.gguf", metadata)
    assert text(file, tokenizer) == "<s>ggufHi</s>Yes</s>"
    assert turn_ends([resolve_tokenizer(file)], tokenizer) == {1, 9}
    without = write_gguf(tmp_path / "n.gguf", {"general.architecture": "llama"})
    assert chat_template([resolve_tokenizer(without)], tokenizer) is None
