"""Texts of several files, of folders and of standard input."""

import io
import os
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from scoremode.errors import CorpusError, UsageError
from scoremode.text.corpus import STDIN, from_file, from_files

A, B = "Erste Zeile.\nÄ ".encode(), b"no newline at the end"


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "b.txt").write_bytes(A)
    (tmp_path / "a.md").write_bytes(B)
    return tmp_path


def stdin(monkeypatch, data: bytes):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def listed(corpus) -> list[tuple[str, str, int]]:
    return [(f["source"], f["sha256"], f["bytes"]) for f in corpus.to_json()["files"]]


def test_one_file_is_what_it_always_was(folder):
    one = from_files([folder / "b.txt"])
    assert one == from_file(folder / "b.txt")
    assert set(one.to_json()) == {"name", "source", "source_sha256", "rows", "row_limit"}
    assert one.text("rows").encode() == A


@pytest.mark.parametrize("order", [("b.txt", "a.md"), ("a.md", "b.txt"), ("a.md", "a.md")])
def test_several_files_are_joined_as_cat_does(folder, order):
    paths = [folder / name for name in order]
    corpus = from_files(paths)
    contents = [path.read_bytes() for path in paths]
    assert corpus.text("rows").encode() == b"".join(contents)
    assert corpus.source_sha256 == sha256(b"".join(contents)).hexdigest()
    assert listed(corpus) == [
        (str(p), sha256(c).hexdigest(), len(c)) for p, c in zip(paths, contents, strict=True)
    ]
    assert corpus.to_json()["joined"] == "concatenated"


def test_a_folder_is_its_files_by_name_without_hidden_ones(folder):
    (folder / ".DS_Store").write_bytes(b"\0")
    corpus = from_files([folder])
    assert corpus.text("rows").encode() == B + A
    assert corpus.to_json()["skipped"] == [str(folder / ".DS_Store")]
    assert [f[0] for f in listed(corpus)] == [str(folder / "a.md"), str(folder / "b.txt")]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("c.jsonl", b"{}\n", "c.jsonl: a .jsonl file is a data set"),
        ("c.bin", b"\x00\x01", "c.bin: not a text: byte 0 is NUL"),
        ("c.txt", b"\xff", "c.txt: not utf-8 at byte 0"),
        ("c", None, "c: a folder in a folder"),
    ],
)
def test_what_is_no_text_in_a_folder_is_named(folder, name, content, said):
    path = folder / name
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(CorpusError) as error:
        from_files([folder])
    assert said in str(error.value)


def test_an_empty_folder_is_no_text(tmp_path):
    (tmp_path / ".hidden").write_text("x")
    with pytest.raises(CorpusError, match="a folder without text files"):
        from_files([tmp_path])


def test_standard_input_is_a_text(monkeypatch, folder):
    stdin(monkeypatch, A)
    corpus = from_files([STDIN])
    assert corpus.text("rows").encode() == A
    assert corpus.to_json() == from_file(folder / "b.txt").to_json() | {
        "name": "stdin",
        "source": "stdin",
    }
    stdin(monkeypatch, A)
    assert from_files([folder / "a.md", STDIN]).text("rows").encode() == B + A


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"text": "a"}\n{"text": "b"}\n', "lines are JSON objects.*--dataset-file"),
        (b"a\0", "stdin: not a text: byte 1 is NUL"),
        (b"\xff", "stdin: not utf-8 at byte 0"),
    ],
)
def test_standard_input_must_be_a_text_too(monkeypatch, data, said):
    stdin(monkeypatch, data)
    with pytest.raises(CorpusError, match=said):
        from_files([STDIN])


def test_standard_input_is_read_once_and_must_be_open(monkeypatch):
    with pytest.raises(UsageError, match="given twice"):
        from_files([STDIN, STDIN])
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(CorpusError, match="stdin: is closed"):
        from_files([STDIN])


def test_no_more_is_read_than_a_text_may_have(monkeypatch, folder):
    monkeypatch.setattr("scoremode.text.corpus.MOST_TEXT", len(A))
    assert from_files([folder / "b.txt"])
    with pytest.raises(CorpusError, match=r"a\.md: has 21 bytes, more than"):
        from_files([folder / "a.md"])
    with pytest.raises(CorpusError, match=r"b\.txt: with the files before it"):
        from_files([folder / "b.txt", folder / "b.txt"])
    with Path("/dev/zero").open("rb") as zero:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(zero))
        with pytest.raises(CorpusError, match="stdin: has more than"):
            from_files([STDIN])


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorpusError, match=r"pipe: is a pipe, not a file: .*-f -"):
        from_files([tmp_path / "pipe"])
