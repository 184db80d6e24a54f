"""Advice that is followed works: whole commands for a window too long, and for heads of two widths."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.programs import run

from scoremode.cli.main import _suggestion as suggestion
from scoremode.errors import ProtocolError

TEXT = "The same value is computed once and the result is used again. " * 20


def suggested(err: str) -> list[str]:
    (line,) = [line for line in err.splitlines() if "error" in line]
    program, *arguments = shlex.split(line.partition("; such as: ")[2])
    assert program == "scoremode"
    return arguments


@pytest.fixture(scope="module")
def wider(demo, tmp_path_factory):
    """The demo's model with 64 rows that no token has, and `added` tokens of its tokenizer's."""
    folder = tmp_path_factory.mktemp("models")

    def make(name: str, added: int) -> str:
        copy = shutil.copytree(demo / "model", folder / name)
        (file,) = copy.glob("*.safetensors")
        tensors = load_file(file)
        for key, weight in tensors.items():
            if len(weight) == 1024:
                rows = torch.zeros(64, *weight.shape[1:], dtype=weight.dtype)
                tensors[key] = torch.cat([weight, rows])
        save_file(tensors, file, metadata={"format": "pt"})
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps(config | {"vocab_size": 1088}))
        tokenizer = json.loads((copy / "tokenizer.json").read_text())
        first = tokenizer["added_tokens"][0]
        for i in range(added):
            tokenizer["added_tokens"].append(first | {"id": 1024 + i, "content": f"<pad{i}>"})
        (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
        return str(copy)

    return {"padded": make("padded", 0), "enlarged": make("enlarged", 8)}


def flags(output: Path) -> list[str]:
    text = output.parent / "text.txt"
    text.write_text(TEXT)
    return [
        *("--device", "cpu", "-f", str(text), "--protocol", "disjoint", "-c", "64"),
        *("--quiet", "-o", str(output)),
    ]


@pytest.mark.parametrize("name", ["padded", "enlarged"])
def test_what_is_said_of_two_widths_works_for_a_model_beside(name, wider, demo, capsys, tmp_path):
    command = ["kld", wider[name], "--reference", str(demo / "model"), *flags(tmp_path / "runs")]
    code, _, err = run(capsys, *command)
    assert code == 1 and "runs over 1024 entries, this model's over 1088: --vocabulary" in err
    advice = suggested(err)
    assert ("--tokenizer" in advice) == (name == "enlarged")
    assert run(capsys, *advice)[0] == 0
    # Turned around, the base is the wider one.
    command = ["kld", str(demo / "model"), "--reference", wider[name], *flags(tmp_path / "runs")]
    code, _, err = run(capsys, *command)
    assert code == 1
    assert run(capsys, *suggested(err))[0] == 0


@pytest.mark.parametrize("name", ["padded", "enlarged"])
def test_a_stored_base_of_another_width_is_kept_anew(name, wider, demo, capsys, tmp_path):
    keep = ["reference", str(demo / "model")]
    assert run(capsys, *keep, *flags(tmp_path / "ref"))[0] == 0
    command = ["kld", wider[name], *flags(tmp_path / "runs")]
    code, _, err = run(capsys, *command, "--reference", str(tmp_path / "ref"))
    assert code == 1 and "such as" not in err
    words = err.partition("keep the reference anew with ")[2].partition(", and give that here")[0]
    advice = shlex.split(words)
    assert advice[:2] == ["--vocabulary", "tokenizer"]
    assert run(capsys, *keep, *flags(tmp_path / "anew"), *advice)[0] == 0
    assert run(capsys, *command, "--reference", str(tmp_path / "anew"), *advice)[0] == 0
    if name == "enlarged":
        code, _, err = run(
            capsys, *command, "--reference", str(tmp_path / "anew"), "--vocabulary", "tokenizer"
        )
        assert code == 1
        assert run(capsys, *suggested(err))[0] == 0


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([], ["-c", "512"]),
        (["-c", "1k", "--stride", "256"], ["--stride", "256", "-c", "512"]),
        (["--context-length=4K", "--stride", "4k"], ["-c", "512", "--stride", "512"]),
        (["--protocol", "exl3", "-c", "1024"], ["-c", "512"]),
    ],
    ids=str,
)
def test_a_window_too_long_has_the_whole_command_beside(given, wanted, demo, capsys):
    command = ["plan", str(demo / "model"), "-f", str(demo / "heldout.txt"), *given]
    code, out, err = run(capsys, *command)
    assert (code, out) == (2, "") and "exceeds the model's 512 positions" in err
    advice = suggested(err)
    assert [word.replace("--context-length", "-c") for word in advice[-len(wanted) :]] == wanted
    assert len(set(advice)) == len(advice) or given[2:]
    assert run(capsys, *advice)[0] == 0


def test_what_can_not_be_copied_is_not_shown():
    error = ProtocolError("too long")
    error.instead = {"--context-length": "512"}
    assert suggestion(error, ["ppl", "m", "-c", "9"]).endswith(
        "scoremode ppl m --context-length 512"
    )
    assert suggestion(error, ["ppl", "m", "--text", "a\nb"]) == ""
    assert suggestion(error, ["ppl", "m", "--text", "a" * 1000]) == ""
    assert suggestion(ProtocolError("x"), ["ppl"]) == ""
