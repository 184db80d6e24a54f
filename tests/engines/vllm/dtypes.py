"""The dtype that tests serve models in: bfloat16, where vLLM can.

On some CPUs with AMX vLLM's own bf16 attention dies by SIGILL, stock vLLM's as well, and with it
every test that starts it. Where there is AMX all models are served in float32 instead, which leaves
out what is about bf16's rounding, and quantized weights. A machine on which it doesn't die runs all
tests with SCOREMODE_VLLM_DTYPE=bfloat16.

vLLM's build for CPUs without AVX-512 has no kernel for 4-bit weights, nor float8 caches. What needs one
of them is skipped there. And without AVX-512 BF16 its kernels cut float32 off to bfloat16 instead of
rounding it, which is a bias: 0.0012 nats of the demo's model.
"""

import os
from pathlib import Path

import pytest

_CPU = Path("/proc/cpuinfo")


def served_on(cpu: str) -> str:
    """The dtype for a machine with such a /proc/cpuinfo."""
    return "float32" if "amx_tile" in cpu.split() else "bfloat16"


_TEXT = _CPU.read_text() if _CPU.exists() else ""
SERVED = os.environ.get("SCOREMODE_VLLM_DTYPE") or served_on(_TEXT)
HAS_AVX512 = "avx512f" in _TEXT.split()
ROUNDS = "avx512_bf16" in _TEXT.split()

# On tests of what bf16 rounds.
of_bf16 = pytest.mark.skipif(
    SERVED != "bfloat16", reason="serves bf16, by which vLLM's attention may die on a CPU with AMX"
)

# On tests of 4-bit weights and float8 caches.
of_avx512 = pytest.mark.skipif(
    not HAS_AVX512, reason="vLLM's build for CPUs without AVX-512 lacks the kernel"
)
