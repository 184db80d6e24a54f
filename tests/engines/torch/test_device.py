"""Devices as they are asked for: what of a GPU's memory a run may use, fixed before it starts."""

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from scoremode.engines.base import Schedule
from scoremode.engines.torch.device import Device, choose_device, join_segments
from scoremode.engines.torch.memory.budget import Memory
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


def test_a_gpu_is_shared_with_the_base_and_a_cpu_is_not():
    """`--max-memory` bounds both: what the base takes is missing in the model's schedule."""
    gpu = Device(torch.device("cuda", 0), "a GPU", 20 << 30)
    memory = Memory(gpu, fixed=1 << 30, batch_token=1 << 18, pass_token=1 << 13)
    # Of 3.75 GiB a 1/16 is lost, and what is fixed and a micro-batch of 4 windows take 3.
    for gib, wanted in ((0, (32, 8)), (14, (32, 8)), (16.25, (32, 4)), (16.5, (16, 4))):
        room = replace(memory, device=gpu.beside(int(gib * 2**30)))
        assert room.schedule(2048, None) == Schedule(*wanted)
    with pytest.raises(EngineError, match=r"takes 1552.000 MiB, more than the 0.000 MiB"):
        replace(memory, device=gpu.beside(30 << 30)).schedule(2048, None)
    cpu = Device(torch.device("cpu"), "a CPU", 20 << 30)
    assert cpu.beside(14 << 30) == cpu


@pytest.mark.parametrize(
    ("device", "calls"),
    [("cpu", []), ("cuda", ["emptied", "expandable_segments:True"])],
)
def test_a_gpus_freed_segments_are_joined(device, calls, monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append("emptied"))
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", seen.append)
    join_segments(torch.device(device))
    assert seen == calls


PRODUCTS = """
import torch
from scoremode.engines.torch.device import choose_device
choose_device("cpu", None, None)
torch.manual_seed(0)
rows, weights, room = torch.randn(3, 64), torch.randn(96, 64), torch.empty(96 * 64 + 64)
start = -room.data_ptr() // 4 % 16
products = []
for offset in range(16):
    moved = room[start + offset :][: 96 * 64].view(96, 64).copy_(weights)
    products.append([torch.nn.functional.linear(rows[:n], moved) for n in (1, 2, 3)])
print(all(torch.equal(a, b) for each in products for a, b in zip(each, products[0])))
"""


def test_a_product_has_the_same_bits_wherever_its_weights_lie():
    environment = {k: v for k, v in os.environ.items() if k != "MKL_CBWR"}
    program = [sys.executable, "-c", PRODUCTS]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_user_s_own_rounding_stays(monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    choose_device("cpu", None, None)
    assert os.environ["MKL_CBWR"] == "COMPATIBLE"
