"""Run folders: whole, or not there."""

import errno
import json
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.hostile_files import KINDS, put, snapshot
from support.waiting import HANG

from scoremode.errors import RunFolderError
from scoremode.lib import files as locks
from scoremode.results.folders import store
from scoremode.results.folders.store import (
    SCORES,
    RunFolder,
    find_runs,
    read_columns,
    read_record,
    read_scores,
    seal_of,
)
from scoremode.results.scores import Scores, concatenate


def random_scores(seed: int, rows: int = 50) -> Scores:
    rng = np.random.default_rng(seed)
    ints = [rng.integers(0, 1000, rows).astype(np.int32) for _ in range(5)]
    logprob, top1_logprob = -rng.exponential(size=(2, rows))
    return Scores(*ints[:4], logprob, ints[4], top1_logprob)


def assert_equal(a: Scores, b: Scores) -> None:
    for name, column in a.columns().items():
        np.testing.assert_array_equal(column, b.columns()[name])
        assert column.dtype == b.columns()[name].dtype


def sealed(record: dict) -> dict:
    return record | {"sha256": seal_of(record)}


def parts_of(run: RunFolder) -> list[Scores]:
    return [run.read_part(number) for number in range(part_files(run))]


def part_files(run: RunFolder) -> int:
    return len(list((run.path / "parts").glob("*.parquet")))


def files(path: Path) -> set[str]:
    return {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}


def nothing(part: Scores) -> dict:
    return {}


@pytest.fixture
def run(tmp_path):
    folder = RunFolder.create(tmp_path / "runs" / "one")
    yield folder
    folder.close()


@contextmanager
def largest_file(size: int):
    """No file may grow beyond `size` bytes inside the block, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_is_written_is_read(run):
    run.write_record({"status": "running", "text": "ünï"})
    run.write_part(0, random_scores(0))
    assert read_record(run.path) == sealed({"status": "running", "text": "ünï"})
    assert_equal(run.read_part(0), random_scores(0))
    run.write_record({"status": "done"})
    assert read_record(run.path) == sealed({"status": "done"})
    assert files(run.path) == {".lock", "record.json", "parts/00000.parquet"}


def test_merge_is_the_parts_in_order(run):
    parts = [random_scores(seed, rows) for seed, rows in enumerate((50, 1, 70))]
    for number, part in enumerate(parts):
        run.write_part(number, part)
    run.merge(parts_of(run), nothing)
    assert_equal(read_scores(run.path), concatenate(parts))
    assert read_columns(run.path / SCORES)[1] == {}
    run.drop_parts()
    assert run.is_empty is False and files(run.path) == {".lock", "scores.parquet"}
    assert_equal(read_scores(run.path), concatenate(parts))
    run.close()
    assert files(run.path) == {"scores.parquet"}


def test_merge_takes_further_columns(run):
    parts = [random_scores(seed) for seed in range(2)]
    for number, part in enumerate(parts):
        run.write_part(number, part)
    run.merge(parts_of(run), lambda part: {"weight": part.nll * 2})
    assert_equal(read_scores(run.path), concatenate(parts))
    extras = read_columns(run.path / SCORES)[1]
    assert list(extras) == ["weight"]
    np.testing.assert_array_equal(extras["weight"], concatenate(parts).nll * 2)
    assert pq.read_schema(run.path / "scores.parquet").names[-1] == "weight"


def test_an_exception_while_writing_leaves_what_was_there(run, monkeypatch):
    run.write_record({"status": "running"})
    run.write_part(0, random_scores(0))
    before = files(run.path)

    def half(path, data):
        with path.open("wb") as file:
            file.write(data[:4])
        raise KeyboardInterrupt

    monkeypatch.setattr(store.Path, "write_bytes", half)
    for number in (0, 1):
        with pytest.raises(KeyboardInterrupt):
            run.write_part(number, random_scores(9))
    with pytest.raises(ValueError, match="not JSON compliant"):
        run.write_record({"ppl": float("nan")})
    assert files(run.path) == before
    assert part_files(run) == 1
    assert_equal(run.read_part(0), random_scores(0))
    assert read_record(run.path) == sealed({"status": "running"})


def test_a_failing_merge_leaves_the_parts(run):
    for number in range(2):
        run.write_part(number, random_scores(number))
    before = files(run.path)

    def fail_at_the_second(part):
        if part.target[0] == random_scores(1).target[0]:
            raise RuntimeError("no")
        return {}

    with pytest.raises(RuntimeError):
        run.merge(parts_of(run), fail_at_the_second)
    assert files(run.path) == before


def test_a_full_disk_is_an_error_and_leaves_nothing_half_written(run):
    run.write_record({"status": "running"})
    run.write_part(0, random_scores(0))
    before = files(run.path)
    with largest_file(2000):
        with pytest.raises(RunFolderError, match=r"00001\.parquet: cannot be written") as part:
            run.write_part(1, random_scores(1, 5000))
        with pytest.raises(RunFolderError, match=r"scores\.parquet: cannot be written"):
            run.merge(parts_of(run), nothing)
        with pytest.raises(RunFolderError, match=r"record\.json: cannot be written: File too"):
            run.write_record({"status": "x" * 5000})
    assert "\n" not in str(part.value)
    assert files(run.path) == before
    assert read_record(run.path) == sealed({"status": "running"})
    run.merge(parts_of(run), nothing)
    assert_equal(read_scores(run.path), random_scores(0))


def test_a_failing_sync_is_an_error_and_leaves_nothing(run, monkeypatch):
    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"record\.json: cannot be written: No space left"):
        run.write_record({})
    assert files(run.path) == {".lock"}


def test_opening_clears_what_a_kill_left(run):
    run.write_part(0, random_scores(0))
    run.close()
    (run.path / ".record.json.0123456789abcdef.scoremode-tmp").write_text("{")
    (run.path / "parts" / ".00001.parquet.0123456789abcdef.scoremode-tmp").write_bytes(b"PAR1")
    again = RunFolder.open(run.path)
    try:
        assert files(run.path) == {".lock", "parts/00000.parquet"}
        assert part_files(again) == 1
    finally:
        again.close()
    assert files(run.path) == {"parts/00000.parquet"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [".lock", "parts"])
def test_what_is_no_lock_and_no_folder_of_parts_is_refused(name, kind, run, tmp_path):
    """Nothing is written through it, made in it or removed from it."""
    run.write_part(0, random_scores(0))
    run.close()
    put(run.path / name, kind, tmp_path / "outside")
    before = snapshot(tmp_path / "outside")
    if (name, kind) == (".lock", "sparse"):
        # A file, whatever it holds.
        RunFolder.open(run.path).close()
    else:
        with pytest.raises(RunFolderError, match=r"is a \w+, not a f"):
            RunFolder.open(run.path)
    assert snapshot(tmp_path / "outside") == before


def test_of_a_folder_only_what_a_run_writes_is_removed(run, tmp_path):
    run.write_part(0, random_scores(0))
    run.write_record({"status": "running"})
    mine = {"notes", "scores.parquet.tmp", "parts/mine.tmp", "states/mine", "attribution.json"}
    theirs = {"states/00000.safetensors", "head.safetensors", "tokens.i32", "attribution-kind.json"}
    (run.path / "states").mkdir()
    for name in mine | theirs:
        (run.path / name).write_text("x")
    run.drop_parts()
    assert files(run.path) == mine | theirs | {".lock", "record.json"}
    run.discard()
    assert files(run.path) == mine
    for name in mine:
        (run.path / name).unlink()
    (run.path / "parts").rmdir(), (run.path / "states").rmdir()
    RunFolder.open(run.path).discard()
    assert not run.path.exists()


HOLD = """
import sys
from pathlib import Path
from scoremode.results.folders.store import RunFolder
run = RunFolder.open(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_one_process_at_a_time(run):
    run.close()
    command = [sys.executable, "-c", HOLD, str(run.path)]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        (run.path / "parts" / ".00000.parquet.0123456789abcdef.scoremode-tmp").write_bytes(
            b"its own"
        )
        with pytest.raises(RunFolderError, match="another process is writing this run"):
            RunFolder.open(run.path)
        # What the other is writing is not a leftover.
        assert (run.path / "parts" / ".00000.parquet.0123456789abcdef.scoremode-tmp").exists()
        other.kill()
    again = RunFolder.open(run.path)
    again.close()
    assert files(run.path) == set()


def test_a_lock_file_that_was_removed_meanwhile_locks_nobody_out(run, monkeypatch):
    """Between opening the lock file and locking it, its holder may end and remove it."""
    flock = locks.fcntl.flock

    def late(file, how):
        run.close()
        flock(file, how)

    monkeypatch.setattr(locks.fcntl, "flock", late)
    with pytest.raises(RunFolderError, match="another process is writing this run"):
        RunFolder.open(run.path)


def test_a_file_system_without_locks_is_called_that(run, monkeypatch):
    def unsupported(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", unsupported)
    with pytest.raises(RunFolderError, match="cannot be locked: No locks available"):
        RunFolder.open(run.path)


def test_a_folder_that_is_there_is_not_made_again(run):
    with pytest.raises(RunFolderError, match="cannot make the run's folder: File exists"):
        RunFolder.create(run.path)


@pytest.mark.parametrize("inside", ["", "runs/one"])
def test_a_file_in_the_folders_place(inside, tmp_path):
    place = tmp_path / "place"
    place.write_text("mine")
    with pytest.raises(RunFolderError, match=str(place)):
        RunFolder.create(place / inside)
    with pytest.raises(RunFolderError, match="cannot open the run's folder: "):
        RunFolder.open(place / inside)
    assert place.read_text() == "mine"


def test_opening_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(RunFolderError, match="cannot open the run's folder: No such file"):
        RunFolder.open(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"scores\.parquet: not readable"),
        (b"", r"scores\.parquet: not readable"),
        (b"PAR1 no more PAR1", r"scores\.parquet: not readable"),
    ],
)
def test_scores_that_cannot_be_read(content, said, tmp_path):
    if content is not None:
        (tmp_path / "scores.parquet").write_bytes(content)
    with pytest.raises(RunFolderError, match=said) as refused:
        read_scores(tmp_path)
    assert "\n" not in str(refused.value)


def test_scores_without_a_column(run):
    run.write_part(0, random_scores(0))
    part = run.path / "parts" / "00000.parquet"
    pq.write_table(pq.read_table(part).drop_columns("top1"), part)
    with pytest.raises(RunFolderError, match="top1"):
        run.read_part(0)


@pytest.mark.parametrize(
    ("content", "said"), [(None, "no readable record: No such file"), ("{", "not JSON")]
)
def test_a_record_that_cannot_be_read(content, said, tmp_path):
    if content is not None:
        (tmp_path / "record.json").write_text(content)
    with pytest.raises(RunFolderError, match=said):
        read_record(tmp_path)


def test_runs_are_found_newest_first(tmp_path):
    for name in ("2026-01-01_a", "2026-03-01_b", "2026-02-01_c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(json.dumps({"name": name}))
    (tmp_path / "2026-04-01_unfinished").mkdir()
    found = list(find_runs(tmp_path))
    assert [path.name for path, _ in found] == ["2026-03-01_b", "2026-02-01_c", "2026-01-01_a"]
    assert all(record == {"name": path.name} for path, record in found)


def test_reading_waits_for_no_thread_that_can_not_start(run):
    """Where the address space has no room for a thread's stack; Arrow's own may then wait for ever."""
    run.write_part(0, random_scores(0))
    run.merge(parts_of(run), nothing)
    program = """
import resource, sys
from pathlib import Path
import pyarrow.dataset, pyarrow.parquet
from scoremode.errors import RunFolderError
from scoremode.results.folders.store import read_scores
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (12 << 20),) * 2)
try: print(len(read_scores(Path(sys.argv[1]))))
except RunFolderError as error: print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(run.path)], capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 0 and done.stdout.count("\n") == 1, done.stderr


def test_beginnings_that_nobody_holds_are_removed(tmp_path):
    """A run killed before its first record; one that is alive; one with a record; other things."""
    killed, alive, other = (RunFolder.create(tmp_path / n) for n in ("killed", "alive", "other"))
    (killed.path / ".record.json.0123456789abcdef.scoremode-tmp").write_text("{")
    killed._lock.close()
    other.write_record({"status": "running"})
    other._lock.close()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".lock").touch()
    (tmp_path / "mine" / "notes").touch()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "run")
    elsewhere = RunFolder.create(tmp_path / "elsewhere" / "run")
    elsewhere._lock.close()
    store.drop_beginnings(tmp_path)
    names = ["alive", "elsewhere", "link", "mine", "other"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names and (tmp_path / "link").exists()
    (tmp_path / "mine" / "notes").unlink()
    (tmp_path / "mine" / ".lock").unlink()
    os.mkfifo(tmp_path / "mine" / ".lock")
    with pytest.raises(RunFolderError, match=r"mine/\.lock: is a pipe, not a file"):
        store.drop_beginnings(tmp_path)
    alive.close()
