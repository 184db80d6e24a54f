"""Regular expressions of a tokenizer.json that never end, or end in a panic: refused in one line."""

import json
import time
from pathlib import Path

import pytest
import tokenizers

from scoremode.cli.main import main
from scoremode.errors import TokenizerError
from scoremode.text import rehearsal
from scoremode.text import tokenizer as tokenizer_module
from scoremode.text.tokenizer import load_tokenizer

BOMBS = {
    # Oniguruma gives up, and the library panics.
    "nested": ("(a+)+$", "a" * 60 + "!"),
    "alternatives": ("(a|aa|a|aa)+$", "a" * 60 + "!"),
    # Each start is soon given up, and there are many.
    "quadratic": (r"a*[^a]", "a" * 300_000),
}


@pytest.fixture
def folder(demo, tmp_path):
    """Makes the demo model's tokenizer with a pattern of its own in front."""

    def make(pattern: str) -> Path:
        file = json.loads((demo / "model" / "tokenizer.json").read_text())
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
        parts = [split | {"invert": False}, file["pre_tokenizer"]]
        file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}
        (tmp_path / "tokenizer.json").write_text(json.dumps(file))
        return tmp_path

    return make


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_in_bounded_time(folder, bomb, monkeypatch, capfd):
    monkeypatch.setattr(rehearsal, "_START", 3.0)
    monkeypatch.setattr(rehearsal, "_RATE", 1 << 30)
    pattern, text = BOMBS[bomb]
    tokenizer = load_tokenizer(folder(pattern))
    begin = time.monotonic()
    with pytest.raises(TokenizerError) as error:
        tokenizer.encode(text, special_tokens=False)
    assert time.monotonic() - begin < 10
    assert str(tokenizer.source) in str(error.value)
    assert ("3 s for a text of" if bomb == "quadratic" else "retry-limit") in str(error.value)
    assert capfd.readouterr().err == ""


def test_the_command_says_it_in_one_line(folder, capfd):
    pattern, text = BOMBS["nested"]
    assert main(["plan", "--tokenizer", str(folder(pattern)), "--text", text, "-c", "8"]) == 1
    err = capfd.readouterr().err
    assert err.startswith("scoremode: error: ") and err.count("\n") == 1


def test_a_pattern_that_does_not_compile_is_refused(folder):
    with pytest.raises(TokenizerError, match=r"not a tokenizer: .*unmatched parenthesis"):
        load_tokenizer(folder("(x"))


def test_a_rehearsal_changes_no_id(folder, demo):
    text = (demo / "heldout.txt").read_text()[:20_000]
    made = folder(r" ?\p{L}+|\S|\s+")
    ours = load_tokenizer(made)
    plain = tokenizers.Tokenizer.from_file(str(made / "tokenizer.json"))
    assert ours.rehearses
    assert ours.encode(text, special_tokens=False).tolist() == (
        plain.encode(text, add_special_tokens=False).ids
    )


def test_published_tokenizers_need_none(data, demo):
    folders = [data / "stories260K", demo / "model", data / "tokenizers" / "qwen2"]
    assert not any(load_tokenizer(f).rehearses for f in folders)


def test_an_id_beyond_every_vocabulary_is_refused(demo, tmp_path, capsys):
    file = json.loads((demo / "model" / "tokenizer.json").read_text())
    file["model"]["vocab"]["zzz"] = 99_999_999
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    assert main(["plan", "--tokenizer", str(tmp_path), "--text", "a b c", "-c", "8"]) == 1
    assert "token 'zzz' has id 99999999" in capsys.readouterr().err


def test_many_texts_are_rehearsed_together(folder, monkeypatch):
    tokenizer = load_tokenizer(folder(r"[^\r\n]+|[\r\n]+"))
    assert tokenizer.rehearses
    texts = [f"a text of some words, the {i}th" for i in range(40)] + ["", "a"]
    wanted = [tokenizer.encode(text, special_tokens=False).tolist() for text in texts[-3:]]
    children = []
    run = rehearsal.subprocess.run
    monkeypatch.setattr(
        rehearsal.subprocess, "run", lambda *a, **how: children.append(1) or run(*a, **how)
    )
    found = [ids.tolist() for ids in tokenizer.encode_each(texts)]
    assert len(children) == 1 and len(found) == 42 and found[-3:] == wanted
    monkeypatch.setattr(tokenizer_module, "_TOGETHER", 400)
    assert [ids.tolist() for ids in tokenizer.encode_each(iter(texts))] == found
    assert 3 < len(children) < 12
    assert list(tokenizer.encode_each([])) == []


def test_one_bad_text_among_many_is_refused(folder, monkeypatch):
    monkeypatch.setattr(rehearsal, "_START", 3.0)
    pattern, text = BOMBS["nested"]
    tokenizer = load_tokenizer(folder(pattern))
    with pytest.raises(TokenizerError, match="retry-limit"):
        list(tokenizer.encode_each(["some words", text, "more words"]))
