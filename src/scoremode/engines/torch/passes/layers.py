"""The decoder layers, each with its weights while it is at work."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from scoremode.engines.torch.clock import DeviceClock
from scoremode.engines.torch.memory.feeder import Feeds
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.weights.experts import Experts
from scoremode.engines.torch.weights.kv_cache import LayerCache
from scoremode.engines.torch.weights.map import WeightMap
from scoremode.engines.torch.weights.slot import Slot

__all__ = ["Layers"]


class Layers:
    """A skeleton's layers in order, one of them in the Slot at a time.

    `caches`: one a layer, none where keys and values stay as they are.
    """

    def __init__(
        self,
        skeleton: Skeleton,
        weights: WeightMap,
        slot: Slot,
        experts: Experts,
        feeds: Feeds,
        caches: list[LayerCache],
        clock: DeviceClock,
    ):
        self._modules, self._bindings = skeleton.layers, weights.layers
        self._slot, self._experts, self._feeds = slot, experts, feeds
        self._caches, self._clock = caches, clock

    def __len__(self) -> int:
        return len(self._modules)

    @contextmanager
    def at_work(self, index: int) -> Iterator[nn.Module]:
        """The layer, which has its weights within."""
        with self._clock.stage("load"):
            self._feeds.begin(index)
        with self._clock.stage("decode"):
            self._slot.fill(self._bindings[index])
            self._experts.fill(index)
        try:
            with self._clock.stage("layers"):
                yield self._modules[index]
        finally:
            # After an error, too, nothing may run on this layer's weights.
            self._slot.empty(self._bindings[index])
            self._experts.empty(index)
        self._feeds.end(index)

    def arguments(self, index: int) -> dict[str, Any]:
        """Arguments that the layer is called with beside what the model's forward gives it."""
        return self._caches[index].arguments() if self._caches else {}
