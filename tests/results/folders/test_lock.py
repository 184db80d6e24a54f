"""Who works on a run: seen without being in anybody's way."""

import threading
import time

import pytest

from scoremode.errors import RunFolderError
from scoremode.results.folders.lock import LOCK, is_held
from scoremode.results.folders.store import RunFolder


def test_a_run_is_held_while_somebody_works_on_it(tmp_path):
    assert not is_held(tmp_path)
    folder = RunFolder.create(tmp_path / "run")
    assert is_held(tmp_path / "run") and is_held(tmp_path / "run")
    with pytest.raises(RunFolderError, match="another process is writing"):
        RunFolder.open(tmp_path / "run")
    folder.close()
    assert not is_held(tmp_path / "run")


def test_a_lock_that_a_kill_left_holds_nobody(tmp_path):
    (tmp_path / LOCK).touch()
    assert not is_held(tmp_path)
    before = sorted(p.name for p in tmp_path.iterdir())
    RunFolder.open(tmp_path).close()
    assert before == [LOCK]


def test_looking_again_and_again_turns_nobody_away(tmp_path):
    end = threading.Event()

    def look():
        while not end.is_set():
            is_held(tmp_path / "run")

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
