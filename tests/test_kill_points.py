"""A kill at any touch of the disk: the run goes on, and ends with the same bits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("support") / "kill_points.py"
# Every so many touches; 1 takes minutes.
STEP = int(os.environ.get("SCOREMODE_KILL_STEP", "20"))


@pytest.mark.parametrize("kind", ["ppl", "reference", "stopped", "shard", "merge"])
def test_a_run_killed_at_any_touch_of_the_disk_ends_with_the_same_bits(kind, tmp_path):
    command = [sys.executable, str(PROGRAM), str(tmp_path), kind, str(STEP)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    *wrong, last = ended.stdout.splitlines() or [""]
    assert not wrong and ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    least = 20 if kind == "merge" else 60
    assert last.endswith(" points") and int(last.split()[0]) * STEP > least
