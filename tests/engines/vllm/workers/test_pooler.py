"""The scoring pooler: under the V2 runner's own pooling code, as far as the CPU build can run it, and
its own account of a prompt."""

import subprocess
import sys
from pathlib import Path

from support.waiting import HANG


def test_the_v2_runners_pooling_scores_chunks_and_preempted_prompts(engines):
    program = Path(__file__).parents[1] / "drive_v2.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "ok"


def test_a_step_that_skips_or_repeats_tokens_is_an_error(engines):
    """The pooler's own account of a prompt, against what a scheduler should never do."""
    program = """
import numpy as np
import torch
from scoremode.engines.vllm.prompts import ScoreRequest
from scoremode.engines.vllm.workers.pooler import _collect, _Span

ids = torch.arange(10)

def steps(*spans, first=0, chosen=None):
    kept, out = [], None
    for begin, end in spans:
        span = _Span(0, begin, end, 10, ScoreRequest(first=first, chosen=chosen), ids)
        # A step's states are numbered by the tokens that they are of.
        states = span.rows_of(torch.arange(begin, end)[:, None])
        assert states[:, 0].tolist() == span.places.tolist()
        out = _collect(kept, span, torch.from_numpy(span.targets.astype("float32"))[:, None])
    return out[:, 0].tolist()

wanted = [float(i) for i in range(1, 10)]
assert steps((0, 10)) == wanted
assert steps((0, 4), (4, 5), (5, 10)) == wanted
# Preempted after four, from the start again.
assert steps((0, 4), (0, 6), (6, 10)) == wanted
assert steps((0, 4), (4, 10), first=6) == wanted[6:]
# With gaps between what is scored.
some = np.array([0, 2, 3, 7], np.int32)
for spans in [((0, 10),), ((0, 3), (3, 6), (6, 7), (7, 10)), ((0, 4), (0, 6), (6, 10))]:
    assert steps(*spans, chosen=some) == [1.0, 3.0, 4.0, 8.0]
for wrong in [((0, 4), (5, 10)), ((0, 4), (3, 10)), ((4, 10),), ((0, 4), (4, 8), (4, 10))]:
    try:
        steps(*wrong)
    except RuntimeError as error:
        assert "skipped some or repeated them" in str(error)
    else:
        raise SystemExit(f"{wrong} passed")
print("done")
"""
    code, out, err = engines.run(["-c", program])
    assert (code, out) == (0, "done\n"), err
