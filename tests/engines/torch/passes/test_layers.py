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


def test_weights_come_before_the_layer_and_go_after_it():
    calls: list[tuple[str, Any]] = []
    made = layers(calls, [])
    with made.at_work(1) as layer:
        assert layer == "second"
        assert calls == [("feeds.begin", 1), ("slot.fill", "weights 1"), ("experts.fill", 1)]
        calls.clear()
    assert calls == [("slot.empty", "weights 1"), ("experts.empty", 1), ("feeds.end", 1)]
    assert len(made) == 2


def test_no_layer_keeps_its_weights_after_an_error():
    calls: list[tuple[str, Any]] = []
    with pytest.raises(MemoryError), layers(calls, []).at_work(0):
        calls.clear()
        raise MemoryError
    assert calls == [("slot.empty", "weights 0"), ("experts.empty", 0)]


def test_a_layer_is_called_with_its_own_cache():
    caches = [SimpleNamespace(arguments=lambda i=i: {"cache": i}) for i in range(2)]
    assert [layers([], caches).arguments(i) for i in range(2)] == [{"cache": 0}, {"cache": 1}]
    assert layers([], []).arguments(1) == {}
