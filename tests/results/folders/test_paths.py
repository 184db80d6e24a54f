"""Outputs that a user has named: what is no regular file is written to, and stays what it is."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from scoremode.errors import RunFolderError
from scoremode.results.folders.paths import check_folder, write_output
from scoremode.results.folders.store import RunFolder


def test_a_file_is_replaced_and_a_link_to_it_stays_a_link(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("before")
    link.symlink_to(file)
    with file.open() as held:
        write_output(link, "after")
        assert held.read() == "before"
    assert link.is_symlink() and file.read_text() == "after"
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    write_output(tmp_path / "dangling", "made")
    assert (tmp_path / "new").read_text() == "made"
    assert {p.name for p in tmp_path.iterdir()} == {"file", "link", "dangling", "new"}


def test_a_folder_is_one_or_is_still_to_be_made(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    for path in (tmp_path, tmp_path / "link", tmp_path / "new" / "below", Path("new")):
        check_folder(path)
    long = tmp_path / ("x" * 300)
    check_folder(long)


def test_what_is_no_folder_is_named_and_nobody_is_told_to_remove_it(tmp_path):
    (tmp_path / "file").write_text("kept")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    cases = {
        "file": "is not a folder",
        "fifo": "is not a folder",
        "link": "is not a folder",
        "gone": "is a link, and its target nowhere is missing",
        "loop": f"is a link, and its target {tmp_path / 'loop'} is missing",
        "file/below": f"{tmp_path / 'file'} is not a folder",
        "file/below/it": f"{tmp_path / 'file'} is not a folder",
        "gone/below": f"{tmp_path / 'gone'} is a link, and its target nowhere is missing",
    }
    for name, words in cases.items():
        with pytest.raises(RunFolderError) as error:
            check_folder(tmp_path / name)
        assert str(error.value) == f"-o {tmp_path / name}: {words}"
        # Whoever makes one without asking first is told as much.
        with pytest.raises(RunFolderError) as error:
            RunFolder.create(tmp_path / name)
        assert "remove it" not in str(error.value) and str(tmp_path / name) in str(error.value)
    assert {p.name for p in tmp_path.iterdir()} == {"file", "fifo", "link", "gone", "loop"}
    assert (tmp_path / "file").read_text() == "kept"


def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_output(pipe, "through")
    reader.join(10)
    assert read == ["through"] and stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")  # noqa: PTH110
def test_a_device_that_takes_nothing_says_so_and_stays_a_device(tmp_path):
    # By a link: should it be replaced after all, that is the test's own.
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    with pytest.raises(RunFolderError, match="No space left on device"):
        write_output(link, "x")
    assert link.is_symlink() and stat.S_ISCHR(os.stat("/dev/full").st_mode)  # noqa: PTH116


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_a_folder_is_no_file(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunFolderError, match="Is a directory"):
        write_output(tmp_path / name, "x")
    assert not list(tmp_path.iterdir())


def test_what_stdout_leads_to_keeps_what_it_has(tmp_path):
    program = (
        "from pathlib import Path; from scoremode.results.folders.paths import write_output; "
        "write_output(Path('/dev/stdout'), 'second\\n')"
    )
    file = tmp_path / "log"
    file.write_text("first\n")
    with file.open("a") as log:
        subprocess.run([sys.executable, "-c", program], stdout=log, check=True)
    assert file.read_text() == "first\nsecond\n"
