"""The scoring pooler under the V2 runner's own pooling code, as far as the CPU build can run it."""

import subprocess
import sys
from pathlib import Path


def test_the_v2_runners_pooling_scores_chunks_and_preempted_prompts(engines):
    program = Path(__file__).with_name("drive_v2.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "ok"
