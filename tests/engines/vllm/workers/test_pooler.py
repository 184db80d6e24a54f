"""The scoring pooler: under the V2 runner's own pooling code, as far as the CPU build can run it, and
its own account of a prompt."""

import subprocess
import sys
from pathlib import Path

from support.waiting import HANG


def test_the_v2_runners_own_code_scores_chunks_preempted_prompts_and_decode_steps(engines):
    program = Path(__file__).parents[1] / "drive_v2.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "ok"
