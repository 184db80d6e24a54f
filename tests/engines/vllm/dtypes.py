"""The dtype that tests serve models in: bfloat16, where vLLM can.

On some CPUs with AMX vLLM's own bf16 attention dies by SIGILL, stock vLLM's as well, and with it
every test that starts it. Where there is AMX all models are served in float32 instead, which leaves
out what is about bf16's rounding, and quantized weights. A machine on which it doesn't die runs all
tests with SCOREMODE_VLLM_DTYPE=bfloat16.
"""

import os
from pathlib import Path

import pytest

__all__ = ["SERVED", "of_bf16", "served_on"]

_CPU = Path("/proc/cpuinfo")


def served_on(cpu: str) -> str:
    """The dtype for a machine with such a /proc/cpuinfo."""
    return "float32" if "amx_tile" in cpu.split() else "bfloat16"


SERVED = os.environ.get("SCOREMODE_VLLM_DTYPE") or served_on(
    _CPU.read_text() if _CPU.exists() else ""
)

# On tests of what bf16 rounds.
of_bf16 = pytest.mark.skipif(
    SERVED != "bfloat16", reason="serves bf16, by which vLLM's attention may die on a CPU with AMX"
)
