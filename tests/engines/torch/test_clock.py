"""Seconds a stage: on a CPU as they pass, on a GPU from events that are read when they are over."""

import time

import pytest
import torch
from support.gpu_waits import waits

from scoremode.engines.torch import device as clock
from scoremode.engines.torch.device import DeviceClock


def test_a_cpus_stages_count_what_ran_inside(monkeypatch):
    times = iter([10.0, 12.0, 20.0, 20.5, 30.0, 31.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(times))
    watch = DeviceClock(torch.device("cpu"))
    for name in ("layers", "head", "layers"):
        with watch.stage(name):
            pass
    watch.add("load", 0.25)
    watch.add("head", 1.0)
    assert watch.seconds() == {"layers": 3.0, "head": 1.5, "load": 0.25}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_stage_that_fails_counts_too(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", MadeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(MadeEvent, "over", 1 << 30)
    watch = DeviceClock(torch.device(device))
    with pytest.raises(KeyError), watch.stage("layers"):
        raise KeyError
    assert set(watch.seconds()) == {"layers"}


class MadeEvent:
    """One whose time is its number; it must be over before it is asked, and may not be waited for."""

    made = 0
    over = 0

    def __init__(self, enable_timing=False):
        assert enable_timing
        MadeEvent.made += 1
        self.at = MadeEvent.made

    def record(self, stream):
        pass

    def query(self):
        return self.at <= MadeEvent.over

    def elapsed_time(self, end):
        assert end.query()
        return 1000.0 * (end.at - self.at)


def test_a_gpu_is_not_waited_for_and_what_is_over_counts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", MadeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(MadeEvent, "made", 0)
    monkeypatch.setattr(MadeEvent, "over", 0)
    monkeypatch.setattr(clock, "_PENDING", 4)
    watch = DeviceClock(torch.device("cuda"))

    def stages(count):
        for _ in range(count):
            with watch.stage("layers"):
                pass

    stages(4)
    assert watch.seconds() == {}
    # Two events each: the first two stages and half of the third.
    MadeEvent.over = 5
    assert watch.seconds() == {"layers": 2.0}
    assert watch.seconds() == {"layers": 2.0}
    # Those that are over are let go without being asked for, when many are pending.
    MadeEvent.over = 8
    stages(3)
    assert len(watch._pending) == 3
    MadeEvent.over = 14
    assert watch.seconds() == {"layers": 7.0}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_real_gpus_stages_are_its_own_time():
    device = torch.device("cuda", 0)
    torch.empty(1, device=device)
    watch = DeviceClock(device)
    begin = time.perf_counter()
    with waits() as waited:
        with watch.stage("layers"):
            torch.cuda._sleep(200_000_000)
        with watch.stage("head"):
            pass
    assert not waited
    torch.cuda.synchronize(device)
    seconds = watch.seconds()
    whole = time.perf_counter() - begin
    assert seconds["layers"] > 0.02 and 0 <= seconds["head"] < seconds["layers"]
    assert sum(seconds.values()) <= whole + 0.001
