"""Devices as they are asked for: what of a GPU's memory a run may use, fixed before it starts."""

from types import SimpleNamespace

import pytest
import torch

from scoremode.engines.torch.device import choose_device
from scoremode.errors import EngineError, UsageError

GIB = 1 << 30
TOTAL = 80 * GIB
# What CUDA takes beside the tensors.
RUNTIME = 3 << 28


@pytest.fixture
def bounds(monkeypatch) -> list:
    """Two made GPUs; what the allocator is told to keep to."""
    told = []
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "get_device_properties": lambda device: SimpleNamespace(total_memory=TOTAL),
        "get_device_name": lambda device: f"made {device}",
        "set_per_process_memory_fraction": lambda share, device: told.append((share, device)),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return told


def test_a_gpu_is_taken_if_there_is_one_and_all_of_it(bounds):
    device = choose_device(None, None, None)
    assert device.torch == torch.device("cuda", 0) and device.is_cuda
    assert device.name == "made cuda:0" and device.memory == TOTAL - RUNTIME
    assert bounds == []


@pytest.mark.parametrize(
    ("most", "share", "memory"),
    [
        (10 * GIB, None, 10 * GIB),
        (None, 0.5, 40 * GIB),
        (10 * GIB, 0.5, 10 * GIB),
        (60 * GIB, 0.5, 40 * GIB),
        (999 * GIB, None, TOTAL),
    ],
)
def test_a_bound_is_told_to_the_allocator_too(most, share, memory, bounds):
    device = choose_device("cuda:1", most, share)
    assert device.memory == memory - RUNTIME
    assert bounds == [((memory - RUNTIME) / TOTAL, torch.device("cuda", 1))]
    assert device.to_json() == {
        "type": "cuda",
        "name": "made cuda:1",
        "memory_bytes": memory - RUNTIME,
        "threads": None,
    }


def test_a_gpu_that_is_not_there_is_refused(bounds, monkeypatch):
    with pytest.raises(EngineError, match="cuda:2: there are 2"):
        choose_device("cuda:2", None, None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EngineError, match="no CUDA device"):
        choose_device("cuda", None, None)
    assert choose_device(None, None, None).torch.type == "cpu"


def test_other_devices_are_refused():
    with pytest.raises(EngineError, match="only cpu and cuda"):
        choose_device("meta", None, None)
    with pytest.raises(UsageError, match="not a device"):
        choose_device("gpu", None, None)


def test_a_cpus_bound_is_only_counted_with(bounds):
    device = choose_device("cpu", 5 * GIB, 0.1)
    assert device.memory == min(5 * GIB, choose_device("cpu", None, None).memory)
    assert bounds == []
    assert device.to_json()["threads"] == torch.get_num_threads()
    assert device.peak_bytes() > 1 << 20


@pytest.mark.parametrize(("most", "share"), [(RUNTIME, None), (1 << 20, None), (None, 0.001)])
def test_a_bound_that_leaves_tensors_nothing_is_refused(most, share, bounds):
    with pytest.raises(EngineError, match=r"MiB of made cuda:0 .* \(768 MiB\): raise --max-memory"):
        choose_device("cuda", most, share)
    assert bounds == []
