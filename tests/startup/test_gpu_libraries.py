"""A GPU's first kernels."""

import pytest
import torch

from scoremode.lib.tasks import Task
from scoremode.startup.warmup import warmer


def test_without_a_gpu_nothing_is_warmed():
    assert warmer(9999, {}) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("config", [{"hidden_size": 4096}, {"hidden_size": [1]}, {}])
def test_a_gpu_is_warmed_by_another_thread_and_nothing_stays(config):
    before = torch.cuda.memory_allocated(0)
    warm = warmer(0, config)
    assert warm is not None
    Task(warm).result()
    # But cuBLAS's workspace, which is every later product's too.
    assert torch.cuda.memory_allocated(0) - before <= 64 << 20
