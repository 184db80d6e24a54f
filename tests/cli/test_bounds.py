"""Files that never end, or that nobody writes to: refused in one line, in bounded time."""

import json
import os
import resource
import shutil
import socket
import time
from pathlib import Path

import pytest

from scoremode.cli.main import main

# Seconds; the first case to need them waits for imports.
LIMIT = 60.0


@pytest.fixture
def model(demo, tmp_path) -> Path:
    return Path(shutil.copytree(demo / "model", tmp_path / "model"))


def spoil(path: Path, kind: str) -> None:
    """Puts something else in a file's place."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            here = Path.cwd()
            # A socket's path has 108 bytes at most.
            os.chdir(path.parent)
            server.bind(path.name)
            os.chdir(here)
    else:
        with path.open("wb") as file:
            file.truncate(5 << 30)


def refused(capsys, *command: str) -> str:
    begin, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert main(command) == 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert time.process_time() - begin < LIMIT and grown < 1 << 20  # KiB
    err = capsys.readouterr().err
    assert err.startswith("scoremode: error: ") and err.count("\n") == 1
    return err


FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket", "huge"])
@pytest.mark.parametrize("name", [*FILES, "model.safetensors.index.json", "text.txt"])
def test_what_is_no_file_of_a_model_is_refused(model, tmp_path, capsys, name, kind):
    spoil(model / name, kind)
    text = ("-f", str(model / name)) if name == "text.txt" else ("--text", "a b c")
    if name == "text.txt" and kind == "folder":
        (model / name / "sub").mkdir()
    output = ("-o", str(tmp_path / "runs"), "--device", "cpu")
    err = refused(capsys, "ppl", str(model), *text, "-c", "8", *output)
    assert name in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "huge"])
def test_what_is_no_record_is_refused(tmp_path, capsys, kind):
    runs = tmp_path / "run", tmp_path / "other"
    for run in runs:
        run.mkdir()
        spoil(run / "record.json", kind)
    assert str(runs[0]) in refused(capsys, "compare", *map(str, runs))


def test_a_vocabulary_file_that_is_a_pipe_is_not_waited_for(model, capsys):
    (model / "tokenizer.json").unlink()
    os.mkfifo(model / "vocab.json")
    err = refused(capsys, "plan", str(model), "--text", "a b c", "-c", "8")
    assert "vocab.json: is a pipe" in err


def test_a_header_of_a_million_tensors_is_refused(model, capsys):
    entry = '"t%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    header = ",".join(map(entry.__mod__, range(1_000_000)))
    content = (len(header) + 2).to_bytes(8, "little") + f"{{{header}}}".encode()
    (model / "model.safetensors").write_bytes(content)
    err = refused(capsys, "inspect", str(model), "--device", "cpu")
    assert "1,000,000 tensors, more than 500,000" in err


@pytest.mark.parametrize("length", [1 << 63, 99_000_000])
def test_a_header_longer_than_its_file_is_refused(model, capsys, length):
    (model / "model.safetensors").write_bytes(length.to_bytes(8, "little") + b"{}")
    err = refused(capsys, "inspect", str(model), "--device", "cpu")
    assert "truncated or not safetensors" in err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"a": ' * 1000 + "1" + "}" * 1000, "nested too deeply"),
        ('{"vocab_size": 1, "vocab_size": 2}', "'vocab_size' is written twice"),
        ('{"vocab_size": NaN}', "vocab_size is nan"),
        ('{"hidden_size": Infinity}', "hidden_size is inf"),
        ('{"vocab_size": ' + "9" * 5000 + "}", "not JSON"),
        ('{"vocab_size": 1' + "0" * 50 + "}", "no model has more than 100,000,000"),
    ],
    ids=range(7),
)
def test_json_beyond_reason_is_refused(model, capsys, content, said):
    (model / "config.json").write_text(content)
    for command in (("inspect", "--device", "cpu"), ("plan", "--text", "a b c", "-c", "8")):
        assert said in refused(capsys, *command[:1], str(model), *command[1:])


def test_the_demo_itself_is_not_refused(model, capsys):
    assert main(["plan", str(model), "--text", "a b c", "-c", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["windows"] == 1
