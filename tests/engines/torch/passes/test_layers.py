"""A layer at work: its weights are there from its beginning to its end, and no other's."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scoremode.engines.torch.device import DeviceClock
from scoremode.engines.torch.passes.execution import Layers


class Noted:
    """Notes what is called on it, by its own name."""

    def __init__(self, name: str, calls: list[tuple[str, Any]]):
        self._name, self._calls = name, calls

    def __getattr__(self, method: str):
        return lambda given: self._calls.append((f"{self._name}.{method}", given))


def layers(calls: list[tuple[str, Any]], caches: list[Any]) -> Layers:
    skeleton: Any = SimpleNamespace(layers=["first", "second"])
    weights: Any = SimpleNamespace(layers=["weights 0", "weights 1"])
    slot, experts, feeds = (Noted(name, calls) for name in ("slot", "experts", "feeds"))
    parts: Any = skeleton, weights, slot, experts, feeds, caches
    return Layers(*parts, DeviceClock(torch.device("cpu")))


def test_no_layer_keeps_its_weights_after_an_error():
    calls: list[tuple[str, Any]] = []
    with pytest.raises(MemoryError), layers(calls, []).at_work(0):
        calls.clear()
        raise MemoryError
    assert calls == [("slot.empty", "weights 0"), ("experts.empty", 0)]
