"""Processes that start vLLM end well, and so does everything that they have started."""

import pytest
from engines.vllm.dtypes import served_on
from engines.vllm.harness import Leftover, finish
from engines.vllm.processes import PROCESSES, processes


@processes(*PROCESSES)
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


def test_the_harness_ends_what_hangs(engines):
    program = engines.start(["-c", "import time; time.sleep(1000)"])
    with pytest.raises(AssertionError, match="hangs after"):
        finish(program, timeout=0.5)


def test_amx_is_known_by_the_cpus_flags():
    assert served_on("flags\t\t: fpu avx512_bf16 amx_bf16 amx_tile amx_int8") == "float32"
    assert served_on("flags\t\t: fpu avx512_bf16") == served_on("") == "bfloat16"
