"""A pass through the layers: one after the other for all windows, or within the model's own forward.

Layer after layer, a layer is decoded once for all micro-batches of a pass. A model that hands more from
layer to layer than a hidden state runs its own forward for each micro-batch instead, and every layer is
decoded when that comes to it: the same Slot, the same packed weights, and the same numbers, for more
decoding.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch

from scoremode.engines.torch.clock import DeviceClock
from scoremode.engines.torch.matmul.linears import Windows
from scoremode.engines.torch.model.forest import Ids
from scoremode.engines.torch.model.preamble import Preamble
from scoremode.engines.torch.model.separation import prove_separable
from scoremode.engines.torch.model.skeleton import FORWARD_ERRORS, Skeleton
from scoremode.engines.torch.model.stand_ins import Call, NotSeparable
from scoremode.engines.torch.passes.layers import Layers
from scoremode.errors import UnsupportedModel, words_of

__all__ = ["LayerByLayer", "Way", "WindowByWindow", "choose_way", "run_whole"]

# Called with a batch's place in the pass whenever it has gone through another layer.
Moved = Callable[[int], None]


class Way(Protocol):
    """A way of micro-batches through a model's layers.

    - `described`: for the record.
    - `token_bytes`: bytes of what a pass holds for each token between two layers.
    """

    @property
    def described(self) -> str: ...

    @property
    def token_bytes(self) -> int: ...

    def run(self, batches: Sequence[Ids], probes: int, moved: Moved) -> list[Any]:
        """Runs each batch of ids [B, T], and returns what `finish` makes its final states of.

        The first so many are `probes`, whose windows share what others have apart. Raises NotSeparable
        where a layer turns out to want more than it is given.
        """
        ...

    def finish(self, ids: Ids, out: Any) -> torch.Tensor:
        """The head's input [B, T, D] for ids [B, T] and what `run` has for them."""
        ...

    def own_logits(self, ids: Ids, out: Any = None) -> torch.Tensor:
        """The model's own logits [B, T, V'] by its whole forward; without `out` of any states."""
        ...


class LayerByLayer:
    """Each layer in turn for all batches. Raises NotSeparable for a model that this is wrong for.

    `preamble`: what comes before the layers.
    """

    described = "layer by layer"

    def __init__(self, skeleton: Skeleton, layers: Layers, windows: Windows, clock: DeviceClock):
        self._skeleton, self._layers = skeleton, layers
        self._windows, self._clock = windows, clock
        skeleton.learn_layer_output(self._run_first)
        prove_separable(skeleton)
        self.preamble = Preamble(skeleton)
        ids = torch.zeros(1, 2, dtype=torch.int64, device=skeleton.device)
        self.token_bytes = skeleton.record(ids).embedded.nbytes // ids.numel()

    def run(self, batches: Sequence[Ids], probes: int, moved: Moved) -> list[Any]:
        hidden: list[torch.Tensor] = []
        calls: list[list[Call]] = []
        with self._clock.stage("embed"):
            for ids in batches:
                recorded = self.preamble.run(ids)
                hidden.append(recorded.embedded)
                calls.append(recorded.calls)
                # It would hold the first layer's input for as long as the last one's.
                del recorded
        for i in range(len(self._layers)):
            with self._layers.at_work(i) as layer:
                others = self._layers.arguments(i)
                for b in range(len(hidden)):
                    with self._windows.together() if b < probes else nullcontext():
                        out = calls[b][i].run(layer, hidden[b], others)
                        self._skeleton.check_returned(out)
                        hidden[b] = out[0] if isinstance(out, tuple) else out
                    moved(b)
        return hidden

    def finish(self, ids: Ids, out: Any) -> torch.Tensor:
        return self._skeleton.finish(ids, out)

    def own_logits(self, ids: Ids, out: Any = None) -> torch.Tensor:
        if out is None:
            out = self._skeleton.record(ids).embedded
        return self._skeleton.own_logits(ids, out)

    def _run_first(self, call: Call, hidden: torch.Tensor) -> Any:
        with self._layers.at_work(0) as layer:
            return call.run(layer, hidden, self._layers.arguments(0))


class WindowByWindow:
    """The model's own forward for each batch, with each layer decoded when it is called.

    `reason`: why its layers can't be run apart. Raises UnsupportedModel where not even that runs.
    """

    def __init__(self, skeleton: Skeleton, layers: Layers, windows: Windows, reason: NotSeparable):
        self._skeleton, self._layers, self._windows = skeleton, layers, windows
        self.described = f"window by window: {reason}"
        # The states of a batch, and nothing of others but their final ones.
        self.token_bytes = skeleton.config.hidden_size * skeleton.model.dtype.itemsize

    def run(self, batches: Sequence[Ids], probes: int, moved: Moved) -> list[Any]:
        finals = []
        for b, ids in enumerate(batches):
            with self._windows.together() if b < probes else nullcontext():
                finals.append(self._run(ids, lambda b=b: moved(b)))
        return finals

    def finish(self, ids: Ids, out: Any) -> torch.Tensor:
        return out

    def own_logits(self, ids: Ids, out: Any = None) -> torch.Tensor:
        return self._skeleton.logits_whole(ids, self._layer)

    def _run(self, ids: Ids, moved: Callable[[], None]) -> torch.Tensor:
        reached = set()

        def run(index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            out = self._layer(index, args, kwargs)
            if index not in reached:
                reached.add(index)
                moved()
            return out

        return self._skeleton.run_whole(ids, run)

    def _layer(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._layers.at_work(index) as layer:
            return layer(*args, **kwargs | self._layers.arguments(index))


def choose_way(skeleton: Skeleton, layers: Layers, windows: Windows, clock: DeviceClock) -> Way:
    """Layer by layer where the model's forward allows it. Raises UnsupportedModel for one that runs
    in neither way."""
    try:
        return LayerByLayer(skeleton, layers, windows, clock)
    except NotSeparable as reason:
        return run_whole(skeleton, layers, windows, reason)


def run_whole(
    skeleton: Skeleton, layers: Layers, windows: Windows, reason: NotSeparable
) -> WindowByWindow:
    """The model's own forward with its layers, tried on two tokens."""
    way = WindowByWindow(skeleton, layers, windows, reason)
    ids = torch.zeros(1, 2, dtype=torch.int64, device=skeleton.device)
    name = type(skeleton.model).__name__
    try:
        (final,) = way.run([ids], 1, lambda _: None)
    except FORWARD_ERRORS as error:
        raise UnsupportedModel(
            f"{name}: {reason}, and its own forward does not run with a layer's weights at a time "
            f"({words_of(error, 160)})"
        ) from error
    if final.dim() != 3 or final.shape[:2] != ids.shape:
        raise UnsupportedModel(f"{name}: what its head gets is not one row a token")
    return way
