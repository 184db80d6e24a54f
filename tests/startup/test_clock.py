"""The seconds of stages, and of the whole process."""

import json
import subprocess
import sys
import time

import pytest

from scoremode.startup.clock import StageClock, since_exec


def test_stages_add_up_to_the_total():
    told = []
    clock = StageClock(before=2.0, tell=lambda stage, of: told.append((stage, of)))
    clock.begin("plan")
    time.sleep(0.02)
    clock.begin("score")
    clock.begin("write")
    clock.begin("score")
    time.sleep(0.02)
    seconds = clock.to_json()
    assert list(seconds) == ["start", "plan", "score", "write", "total"]
    assert told == [("plan", ""), ("score", ""), ("write", ""), ("score", "")]
    assert 2.0 <= seconds["start"] < 2.01
    assert 0.02 <= seconds["plan"] < 1 and 0.02 <= seconds["score"] < 1
    assert seconds["total"] == pytest.approx(sum(list(seconds.values())[:-1]), abs=0.003)


def test_seconds_since_exec_are_the_process_s():
    program = (
        "import time; begin = time.time(); time.sleep(0.5)\n"
        "from scoremode.startup.clock import since_exec; print(since_exec(), time.time() - begin)"
    )
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    passed = time.time() - began
    since, at_least = map(float, done.stdout.split())
    if sys.platform == "linux":
        assert at_least - 0.02 <= since <= passed + 0.02  # ticks of 10 ms
    assert since_exec() > 0


def test_the_record_and_the_table_tell_what_the_user_waited(demo, tmp_path):
    """From exec to the end, imports included, but for what follows the record's last stage: it is
    written, the table is made, the process ends."""
    arguments = ["ppl", str(demo / "model"), "-f", str(demo / "heldout.txt"), "-c", "128"]
    arguments += ["--limit", "2", "--device", "cpu", "-o", str(tmp_path), "-v"]
    begin = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "scoremode", *arguments], capture_output=True, text=True
    )
    passed = time.time() - begin
    assert done.returncode == 0 and "leaked" not in done.stderr, done.stderr
    (path,) = tmp_path.glob("*/record.json")
    seconds = json.loads(path.read_text())["seconds"]
    total = seconds.pop("total")
    always = ("start", "text", "open", "plan", "import", "engine", "score", "write", "finish")
    assert [stage for stage in seconds if stage in always] == list(always)
    assert seconds["start"] > 0
    assert sum(seconds.values()) == pytest.approx(total, rel=0.02)
    assert passed / 2 < total < passed + 0.02
    _check_row(done.stdout, total)


def _check_row(table: str, total: float) -> None:
    """The table's stages add up to its total, but for the rounding of each."""
    (row,) = (line for line in table.splitlines() if line.startswith("seconds"))
    shown, _, stages = row.removeprefix("seconds").partition(" in all: ")
    parts = [float(part.split()[-1]) for part in stages.partition(";")[0].split(", ")]
    assert float(shown) == pytest.approx(total, abs=0.006)
    assert sum(parts) == pytest.approx(total, abs=0.06)
