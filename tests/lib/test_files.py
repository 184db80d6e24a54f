"""Files where others may have written: opened, created, replaced, locked and removed."""

import errno
import fcntl
import os
import re
import socket
import threading
import time
from pathlib import Path

import pytest

from scoremode.errors import RunFolderError
from scoremode.lib.files import (
    Partial,
    atomic,
    check_regular,
    is_held,
    make_folder,
    open_lock,
    open_regular,
    read_regular,
    remove_folder,
    write_text,
)
from scoremode.results.folders.store import LOCK, RunFolder

LEFT = ".{}.0123456789abcdef.scoremode-tmp"


def test_a_file_is_read_whole_and_through_a_link(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert read_regular(tmp_path / "b", 3_000_000) == b"x" * 3_000_000
    with pytest.raises(OSError, match="has 3,000,000 bytes, more than 2 MiB"):
        read_regular(tmp_path / "b", 2 << 20)
    with pytest.raises(OSError, match="is a link, not a file"):
        read_regular(tmp_path / "b", 3_000_000, links=False)


def special(folder: Path, kind: str) -> Path:
    path = folder / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(path))
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
def test_anything_else_is_named_and_not_opened(tmp_path, kind):
    path = special(tmp_path, kind)
    for check in (check_regular, lambda p: read_regular(p, 9)):
        with pytest.raises(OSError, match=f"is a {kind}, not a file"):
            check(path)
    kind = "link" if path.is_symlink() else kind
    for check in (open_lock, lambda p: open_regular(p, links=False, write=True)):
        with pytest.raises(OSError, match=f"is a {kind}, not a file"):
            check(path)


def test_a_pointer_of_git_lfs_is_told_from_its_file(tmp_path):
    pointer, other = tmp_path / "model.gguf", tmp_path / "other"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    with pytest.raises(OSError, match="a Git LFS pointer, not the file itself: fetch it with git"):
        check_regular(pointer)
    other.write_text("version https://git-lfs.github.com/spec/v1\n" + "a page about it " * 99)
    check_regular(other)


def test_what_takes_a_files_place_after_it_was_looked_at_is_not_opened(tmp_path, monkeypatch):
    """A pipe without a writer would be waited for, and a link followed."""
    (tmp_path / "target").write_text("mine")
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr("scoremode.lib.files.check_regular", lambda *_, **__: None)
    with pytest.raises(OSError, match="is a pipe, not a file"):
        open_regular(tmp_path / "pipe")
    for opened in (open_lock, lambda p: open_regular(p, links=False)):
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            opened(tmp_path / "link")
    assert (tmp_path / "target").read_text() == "mine"


def test_a_file_that_says_less_than_it_has_is_bounded():
    """Those of the system say 0 bytes."""
    with pytest.raises(OSError, match="has more than 10 bytes"):
        read_regular(Path("/proc/self/maps"), 10)


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


def test_nobodys_file_is_written_over(tmp_path):
    """A user's own `x.tmp`, and links that wait under every name but the last."""
    (tmp_path / "outside").write_text("mine")
    (tmp_path / "x.tmp").write_text("mine")
    (tmp_path / "x").symlink_to("outside")
    write_text(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "new" and not (tmp_path / "x").is_symlink()
    assert {(tmp_path / name).read_text() for name in ("outside", "x.tmp")} == {"mine"}


def test_what_a_killed_process_left_of_a_file_is_removed_by_the_next(tmp_path):
    left, link = (tmp_path / LEFT.format(name) for name in ("x", "y"))
    left.write_text("half")
    (tmp_path / "outside").write_text("mine")
    link.symlink_to("outside")
    others = [
        tmp_path / name for name in ("x.tmp", ".x.tmp", ".x.0.scoremode-tmp", "x.scoremode-tmp")
    ]
    for path in (*others, tmp_path / LEFT.format("xx")):
        path.write_text("mine")
    before = {path.name for path in tmp_path.iterdir()}
    for name in ("x", "y"):
        write_text(tmp_path / name, "whole")
    assert {path.name for path in tmp_path.iterdir()} == before - {left.name} | {"x", "y"}


def test_what_another_process_is_writing_stays(tmp_path):
    first, second = (Partial(tmp_path / "x") for _ in range(2))
    assert first.path.exists() and second.path.exists()
    second.file.write(b"second")
    second.settle()
    first.file.write(b"first")
    first.settle()
    assert (tmp_path / "x").read_text() == "first" and len(list(tmp_path.iterdir())) == 1


def test_a_new_file_that_was_taken_for_a_left_one_is_made_again(tmp_path, monkeypatch):
    """Between making and locking it, another process may remove it."""
    flock, taken = fcntl.flock, []

    def late(file, how):
        if not taken:
            taken.extend(tmp_path.iterdir())
            taken[0].unlink()
        return flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    write_text(tmp_path / "x", "whole")
    assert taken and [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_name_as_long_as_names_can_be(tmp_path):
    for name in ("a" * 255, "ä" * 127):
        (tmp_path / LEFT.format(os.fsdecode(os.fsencode(name)[:200]))).write_text("half")
        write_text(tmp_path / name, "whole")
        assert [path.name for path in tmp_path.iterdir()] == [name]
        (tmp_path / name).unlink()


def test_a_folder_is_made_below_another_and_through_no_link(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "here").symlink_to("outside")
    make_folder(tmp_path / "here" / "a" / "b", below=tmp_path / "here")
    make_folder(tmp_path / "here" / "a" / "b", below=tmp_path / "here")
    assert (tmp_path / "outside" / "a" / "b").is_dir()
    (tmp_path / "a").symlink_to("outside")
    (tmp_path / "file").touch()
    for name, kind in (("a", "link"), ("file", "file")):
        with pytest.raises(OSError, match=f"is a {kind}, not a folder"):
            make_folder(tmp_path / name / "b", below=tmp_path)
    assert not (tmp_path / "outside" / "b").exists()


def test_of_a_folder_only_what_is_named_is_removed(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "1").touch()
    inside = tmp_path / "inside"
    inside.mkdir()
    for name in ("1", "2", LEFT.format("3"), "notes", "1.tmp", LEFT.format("notes")):
        (inside / name).touch()
    (inside / "4").symlink_to(tmp_path / "outside" / "1")
    is_own = re.compile(r"\d").fullmatch
    remove_folder(inside, lambda name: is_own(name) is not None)
    assert sorted(p.name for p in inside.iterdir()) == [LEFT.format("notes"), "1.tmp", "notes"]
    (tmp_path / "link").symlink_to("outside")
    remove_folder(tmp_path / "link", lambda name: is_own(name) is not None)
    assert not (tmp_path / "link").is_symlink() and (tmp_path / "outside" / "1").exists()
    remove_folder(tmp_path / "outside", lambda name: is_own(name) is not None)
    assert not (tmp_path / "outside").exists()


def test_a_run_is_held_while_somebody_works_on_it(tmp_path):
    assert not is_held(tmp_path / LOCK)
    folder, lock = RunFolder.create(tmp_path / "run"), tmp_path / "run" / LOCK
    assert is_held(lock) and is_held(lock)
    with pytest.raises(RunFolderError, match="another process is writing"):
        RunFolder.open(tmp_path / "run")
    folder.close()
    assert not is_held(lock)


def test_a_lock_that_a_kill_left_holds_nobody(tmp_path):
    (tmp_path / LOCK).write_text("kept")
    assert not is_held(tmp_path / LOCK)
    assert [p.name for p in tmp_path.iterdir()] == [LOCK]
    with open_lock(tmp_path / LOCK) as lock:
        assert lock.read() == b"kept"
    RunFolder.open(tmp_path).close()


def test_looking_again_and_again_turns_nobody_away(tmp_path):
    end = threading.Event()

    def look():
        while not end.is_set():
            is_held(tmp_path / "run" / LOCK)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    RunFolder.create(tmp_path / "run").close()
    for looker in lookers:
        looker.start()
    try:
        until = time.monotonic() + 1
        while time.monotonic() < until:
            RunFolder.open(tmp_path / "run").close()
    finally:
        end.set()
        for looker in lookers:
            looker.join()
