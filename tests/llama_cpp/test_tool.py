"""llama-perplexity run by scoremode: where it is found, what it is given, and how it fails."""

import os
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.gguf.golden import make_pair
from support.llama_cpp.files import small

from scoremode.errors import EngineError, ProtocolError, ReferenceUnusable, RunFolderError
from scoremode.llama_cpp.file import LogitsFile
from scoremode.llama_cpp.tool import NAME, Tool, find_tool, write_predictions
from scoremode.runs.planning import plan_text
from scoremode.text.corpus import from_string
from scoremode.text.plan import Plan, make_plan
from scoremode.text.protocol import preset

SAYS = "echo 'version: 9 (build 1)' >&2"


def program(path: Path, *lines: str) -> Path:
    """A shell script in the tool's place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def made(tmp_path) -> tuple[Path, Plan]:
    """A file as the tool would write it, and the plan that it is of."""
    tokens, _ = small(tmp_path / "made.kld")
    protocol = preset("llama.cpp").override(context_length=9).resolve(None)
    return tmp_path / "made.kld", make_plan(tokens, protocol)


def written(tmp_path: Path, plan: Plan, *lines: str, text: str = "text", **more) -> list[str]:
    """The command of a tool that does `lines`, with `$out` the file that it is asked for, and `$f` its
    text."""
    words = "for w; do case $was in -f) f=$w;; --kl-divergence-base) out=$w;; esac; was=$w; done"
    tool = Tool(program(tmp_path / NAME, words, *lines), "9")
    model = tmp_path / "model.gguf"
    return write_predictions(tool, model, text, plan, tmp_path / "out.kld", **more)


@pytest.mark.parametrize("place", ["", "bin", "build/bin"])
def test_found_in_a_folder(tmp_path, place):
    path = program(tmp_path / place / NAME, SAYS)
    assert find_tool(tmp_path) == Tool(path, "9 (build 1)")


def test_found_on_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    path = program(tmp_path / NAME, SAYS)
    assert find_tool() == Tool(path, "9 (build 1)")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(EngineError, match="is not on PATH: --llama-cpp DIR"):
        find_tool()


def test_none_in_a_folder_and_one_that_is_another(tmp_path):
    with pytest.raises(EngineError, match=f"{tmp_path}: has no {NAME}"):
        find_tool(tmp_path)
    program(tmp_path / NAME, "echo fine; echo library not found: libggml.so >&2; exit 1")
    with pytest.raises(EngineError, match=r"says no version, but library not found: libggml\.so"):
        find_tool(tmp_path)


def test_what_it_is_given_and_what_it_leaves(tmp_path, made):
    file, plan = made
    seen, done = tmp_path / "seen", []
    command = written(
        tmp_path, plan, f'cp "$f" {shlex.quote(str(seen))}',
        "printf '[1]3.25,'; printf '[2]3.5,'", f'cp {shlex.quote(str(file))} "$out"',
        text="two\r\nlines\n", flags=["-ngl", "0"], progress=lambda *counts: done.append(counts),
    )  # fmt: skip
    # llama.cpp takes the last newline off.
    assert seen.read_bytes() == b"two\r\nlines\n\n"
    assert (tmp_path / "out.kld").read_bytes() == file.read_bytes()
    assert command[1:] == [
        *("-m", str(tmp_path / "model.gguf"), "-f", "TEXT", "-c", "9", "--chunks", "2"),
        *("-ngl", "0", "--kl-divergence-base", str(tmp_path / "out.kld")),
    ]
    assert sum(count for count, _ in done) == 2 and {of for _, of in done} == {2}


@pytest.mark.parametrize(
    ("lines", "error", "said"),
    [
        (["echo '0.00.1 I loading' >&2", "echo '0.00.2 E load: unable to load model' >&2", "exit 1"],
         EngineError, r"ended with 1 on .*model\.gguf: load: unable to load model$"),
        (["kill -9 $$"], EngineError, "ended with -9 on .*: nothing$"),
        (["printf _logits_1234 > $out", "echo 'f: you need at least 18 tokens' >&2"],
         ReferenceUnusable, r"ends in its header, after 12 bytes \(f: you need at least 18 tokens\)$"),
        (["true"], ReferenceUnusable, r"out\.kld: not a file of llama-perplexity"),
    ],
)  # fmt: skip
def test_failures_are_a_line_and_leave_nothing(tmp_path, made, lines, error, said):
    before = set(tmp_path.iterdir())
    with pytest.raises(error, match=said) as caught:
        written(tmp_path, made[1], *lines)
    assert "\n" not in str(caught.value) and "scoremode-tmp" not in str(caught.value)
    assert set(tmp_path.iterdir()) - before == {tmp_path / NAME}


def test_other_tokens_than_the_plans_are_refused(tmp_path, made):
    small(tmp_path / "other.kld", entries=7)
    copy = f'cp {shlex.quote(str(tmp_path / "other.kld"))} "$out"'
    tokens = made[1].tokens.copy()
    tokens[3] = (tokens[3] + 1) % 5
    plan = make_plan(tokens, made[1].protocol)
    with pytest.raises(ReferenceUnusable, match=r"out\.kld: has at place \d+ token"):
        written(tmp_path, plan, copy)
    assert not (tmp_path / "out.kld").exists()


def test_plans_and_places_that_no_file_can_be_of(tmp_path, made, monkeypatch):
    disjoint = preset("disjoint").override(context_length=9).resolve(None)
    plan = make_plan(made[1].tokens, disjoint)
    with pytest.raises(ProtocolError, match="holds what protocol llama"):
        written(tmp_path, plan)
    with pytest.raises(RunFolderError, match="cannot be written"):
        tool = Tool(tmp_path / NAME, "9")
        write_predictions(tool, tmp_path, "text", made[1], tmp_path / "none" / "out.kld")
    with pytest.raises(EngineError, match=f"{NAME}: does not start: No such file"):
        write_predictions(
            Tool(tmp_path / "none" / NAME, "9"), tmp_path, "", made[1], tmp_path / "f"
        )


def test_the_real_tool_writes_the_plan(tmp_path, demo):
    folder = os.environ.get("SCOREMODE_LLAMA_CPP") or pytest.skip("set SCOREMODE_LLAMA_CPP")
    _, gguf = make_pair(tmp_path, "llama")
    corpus = from_string((demo / "heldout.txt").read_text(encoding="utf-8")[:1500] + "\n\n")
    protocol = preset("llama.cpp").override(context_length=32)
    plan = plan_text(corpus, protocol, model=str(gguf)).plan
    tool = find_tool(folder)
    assert tool.version and shutil.which(tool.path)
    write_predictions(
        tool, gguf, corpus.text(protocol.text), plan, tmp_path / "f", flags=["-t", "1"]
    )
    file = LogitsFile(tmp_path / "f")
    assert file.chunks == len(plan) and np.isfinite(file.read_all().step)
