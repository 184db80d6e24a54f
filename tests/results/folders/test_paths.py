"""Outputs that a user has named: what is no regular file is written to, and stays what it is."""

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.comparisons import made, overlapping
from support.run_folders import CONTEXT, write_run

from scoremode.errors import RunFolderError, UsageError
from scoremode.results.folders.paths import check_folder, run_folders, write_output
from scoremode.results.folders.store import RunFolder
from scoremode.results.scores import Scores


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


PLACES = overlapping(600, CONTEXT, 64)
SCORES = made(**PLACES, full=False)
OWN = ("window", "position", "index", "target", "logprob", "top1", "top1_logprob")


@pytest.fixture
def folder(tmp_path):
    for name in ("b", "a", "deep/c", "too/deep/d"):
        (tmp_path / "runs" / name).parent.mkdir(parents=True, exist_ok=True)
        write_run(tmp_path / "runs" / name, SCORES)
    return tmp_path / "runs"


def with_status(run, status):
    record = json.loads((run / "record.json").read_text())
    (run / "record.json").write_text(json.dumps({**record, "status": status}))


def test_a_folder_stands_for_its_runs_by_name_two_levels_deep(folder):
    assert run_folders([folder]) == [folder / "a", folder / "b", folder / "deep" / "c"]
    assert run_folders([folder / "too"]) == [folder / "too" / "deep" / "d"]


def test_a_run_is_taken_once_where_it_was_named_first(folder, tmp_path):
    a, b = folder / "a", folder / "b"
    assert run_folders([b, folder / "deep", folder]) == [b, folder / "deep" / "c", a]
    assert run_folders([folder, b]) == [a, folder / "deep" / "c", b]
    assert run_folders([folder, folder])[:2] == [a, b]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link").symlink_to(a)
    assert run_folders([tmp_path / "other", folder])[0] == tmp_path / "other" / "link"
    assert len(run_folders([tmp_path / "other", folder])) == 3


def test_a_run_that_is_named_twice_is_refused(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder / "a")
    for other in (folder / "a", folder / "b" / ".." / "a", tmp_path / "link"):
        with pytest.raises(UsageError, match="the same run twice: "):
            run_folders([folder / "a", other])


def test_what_is_not_done_is_left_out_with_a_note_and_taken_where_named(folder):
    with_status(folder / "b", "running")
    (folder / "deep" / "c" / "record.json").write_text("{")
    notes = []
    assert run_folders([folder], notes.append) == [folder / "a"]
    assert notes[0] == f"left out: {folder / 'b'}: is not done: its status is 'running'"
    assert len(notes) == 2 and notes[1].startswith(f"left out: {folder / 'deep' / 'c'}")
    assert run_folders([folder / "b", folder]) == [folder / "b", folder / "a"]
    assert run_folders([folder], unfinished=True) == [folder / "a", folder / "b"]


def test_references_are_left_out_where_runs_are_against_one(tmp_path):
    base = Scores.from_columns({k: v for k, v in SCORES.columns().items() if k in OWN})
    write_run(tmp_path / "base", base, changes={"kept": {}})
    assert run_folders([tmp_path]) == [tmp_path / "base"]
    write_run(tmp_path / "quant", made(**PLACES, noise=0.1))
    assert run_folders([tmp_path]) == [tmp_path / "quant"]
    assert run_folders([tmp_path, tmp_path / "base"]) == [tmp_path / "quant", tmp_path / "base"]


def test_a_path_without_a_run_is_one_line(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    only = folder / "too" / "deep"
    with_status(only / "d", "invalid")
    for path, words in {
        tmp_path / "empty": "is no run, and holds no finished one",
        tmp_path / "file": "is no folder",
        tmp_path / "loop": "is no folder",
        tmp_path / "nothing": "is not there",
        tmp_path / ("x" * 300): "is not there",
        only: f"holds no finished one: {only / 'd'}: is not done: its status is 'invalid'",
    }.items():
        with pytest.raises(RunFolderError) as refused:
            run_folders([folder / "a", path])
        assert words in str(refused.value) and str(refused.value).startswith(str(path))


def test_a_sweep_s_manifest_beside_its_runs_is_none_of_them(folder):
    (folder / "sweep.json").write_text("{}")
    assert run_folders(sorted(folder.iterdir())) == [folder / "a", folder / "b", folder / "deep" / "c",
                                                     folder / "too" / "deep" / "d"]  # fmt: skip
    with pytest.raises(RunFolderError, match="is no folder"):
        run_folders([folder / "sweep.json"])
