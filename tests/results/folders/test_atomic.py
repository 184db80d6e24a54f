"""Files that are whole, or as they were."""

import errno
import os

import pytest

from scoremode.errors import RunFolderError
from scoremode.results.folders.atomic import atomic, write_text


def test_a_file_is_replaced_when_it_is_whole(tmp_path):
    path = tmp_path / "record.json"
    path.write_text("old")
    with atomic(path) as tmp:
        tmp.write_text("new")
        assert path.read_text() == "old" and tmp.parent == tmp_path
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "record.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic(path) as tmp:
        tmp.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_what_the_system_refuses_is_told_in_a_line(tmp_path, monkeypatch):
    with pytest.raises(RunFolderError, match="none/x: cannot be written: No such file"):
        write_text(tmp_path / "none" / "x", "")

    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match="x: cannot be written: No space left on device"):
        write_text(tmp_path / "x", "")
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_no_utf8_stands_escaped(tmp_path):
    write_text(tmp_path / "x", "a\udcffb")
    assert (tmp_path / "x").read_text() == "a\\udcffb"
