"""A sweep that is killed, wherever it is, and called again."""

import os
import subprocess
import sys
from pathlib import Path

POINTS = 3


def test_wherever_it_is_killed_the_same_call_ends_alike(tmp_path):
    program = Path(__file__).parents[2] / "support" / "sweep_kill_points.py"
    words = [sys.executable, str(program), str(tmp_path), str(POINTS)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{POINTS} points"]
