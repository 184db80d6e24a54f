"""Processes that start vLLM end well, and so does everything that they have started."""

import pytest
from engines.vllm.harness import Leftover, finish
from engines.vllm.processes import MATRIX, PROCESSES


@pytest.mark.parametrize(
    "process",
    [pytest.param(p, marks=pytest.mark.matrix) if p in MATRIX else p for p in PROCESSES],
)
def test_a_process_ends_well_and_leaves_none(process, ran):
    """The harness raises where one fails, hangs, or leaves another behind."""
    for name in PROCESSES[process]:
        assert ran(process, name).facts


def test_the_harness_sees_what_is_left_behind(engines):
    """A child in a session of its own, as a server's would be."""
    child = "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    program = engines.start(["-c", child])
    with pytest.raises(Leftover, match="sleep 1000"):
        finish(program, patience=0.5)


def test_the_harness_ends_what_takes_too_long(engines):
    program = engines.start(["-c", "import time; time.sleep(1000)"])
    with pytest.raises(AssertionError, match="still running after"):
        finish(program, timeout=0.5)
