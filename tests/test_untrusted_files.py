"""Reads of regular files alone, in bounded time."""

import os
import socket
from pathlib import Path

import pytest

from scoremode.untrusted_files import check_regular, read_regular


def test_a_file_is_read_whole_and_through_a_link(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert read_regular(tmp_path / "b", 3_000_000) == b"x" * 3_000_000
    with pytest.raises(OSError, match="has 3,000,000 bytes, more than 2 MiB"):
        read_regular(tmp_path / "b", 2 << 20)


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


def test_a_file_that_says_less_than_it_has_is_bounded():
    """Those of the system say 0 bytes."""
    with pytest.raises(OSError, match="has more than 10 bytes"):
        read_regular(Path("/proc/self/maps"), 10)
