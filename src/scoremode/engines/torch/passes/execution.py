"""A pass through the layers: one after the other for all windows, or within the model's own forward.

Layer after layer, a layer is decoded once for all micro-batches of a pass. The model's own forward runs
up to the layers for every batch (`Preamble`). The masks and rotary tables that it makes are alike for
all batches of a shape, and kept once for all of them: a dense mask for each would outgrow everything
else.

That the layers may be run apart from the forward is proven before any has run (`prove_separable`). The
stand-ins see that the hidden state goes from layer to layer untouched. What they can't see is other use
of what a layer returns: by a later layer (a long skip), or after the last one. So the forward is run
with layers that seem to return something else, and everything else must stay as it is.

A model that hands more from layer to layer than a hidden state runs its own forward for each
micro-batch instead, and every layer is decoded when that comes to it: the same Slot, the same packed
weights, and the same numbers, for more decoding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from scoremode.engines.torch.device import DeviceClock
from scoremode.engines.torch.kv_cache.layer_caches import LayerCache
from scoremode.engines.torch.matmul.linears import Windows
from scoremode.engines.torch.memory.feeder import Feeds
from scoremode.engines.torch.model.layer_recorder import Call, NotSeparable, Unread
from scoremode.engines.torch.model.prefix_tree import ForestIds, Ids
from scoremode.engines.torch.model.skeleton import FORWARD_ERRORS, Recorded, Skeleton
from scoremode.engines.torch.weights.experts import Experts
from scoremode.engines.torch.weights.map import WeightMap
from scoremode.engines.torch.weights.slot import Slot
from scoremode.errors import UnsupportedModel, words_of

_TOKENS = 4
# Called with a batch's place in the pass whenever it has gone through another layer.
Moved = Callable[[int], None]


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


class Preamble:
    """A model's forward up to its layers, for batch after batch."""

    def __init__(self, skeleton: Skeleton):
        self._skeleton = skeleton
        # By the ids' shape: the calls of the first batch that had it.
        self._known: dict[torch.Size, list[Call]] = {}

    def run(self, ids: Ids) -> Recorded:
        """The first layer's input [B, T, D] for ids [B, T], and every layer's call."""
        recorded = self._skeleton.record(ids)
        if isinstance(ids, ForestIds):
            # No other rows have the same masks and positions.
            return Recorded(recorded.embedded, merge_calls(recorded.calls, recorded.calls))
        known = self._known.get(ids.shape)
        calls = merge_calls(recorded.calls, known or recorded.calls)
        if known is None:
            # Only the last shape is kept: the plan's windows are all alike but for a short tail.
            self._known = {ids.shape: calls}
        return Recorded(recorded.embedded, calls)


def merge_calls(calls: list[Call], known: list[Call]) -> list[Call]:
    """`calls`, with every tensor replaced by the equal one of `known`, or of an earlier layer.

    Compared by value: what depends on the ids stays apart.
    """
    merged: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def same(a: torch.Tensor, b: torch.Tensor) -> bool:
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)

    def merge(value: Any, other: Any) -> Any:
        if isinstance(value, torch.Tensor) and not isinstance(value, Unread):
            # Most layers get the very same tensor; each is compared once, which on a GPU is a wait.
            if id(value) not in merged:
                kept = [k for _, k in merged.values()]
                # `value` itself is known where these calls are the first ones.
                is_other = isinstance(other, torch.Tensor) and other is not value
                candidates = [other, *kept] if is_other else kept
                known_one = (c for c in candidates if c is value or same(c, value))
                merged[id(value)] = (value, next(known_one, value))
            return merged[id(value)][1]
        if isinstance(value, tuple):
            others = other if isinstance(other, tuple) and len(other) == len(value) else value
            return tuple(merge(v, o) for v, o in zip(value, others, strict=True))
        return value

    return [
        Call(
            merge(call.args, old.args),
            {k: merge(v, old.kwargs.get(k)) for k, v in call.kwargs.items()},
            call.at,
        )
        for call, old in zip(calls, known, strict=True)
    ]


def prove_separable(skeleton: Skeleton) -> None:
    """Raises NotSeparable, saying what does not hold; learns what the final norm can do without."""
    # Unlike each other, and states unlike the embedding's: Inkling 2 mixes both behind its layers,
    # and a mixture of two that are alike is either of them.
    ids = torch.arange(2 * _TOKENS, device=skeleton.device).view(2, _TOKENS) % 4
    recorded = skeleton.record(ids)
    drawn = torch.randn(recorded.embedded.shape, generator=torch.Generator().manual_seed(0))
    hidden = drawn.to(recorded.embedded)
    perturbed = skeleton.record(ids, perturb=True)
    for call, other in zip(recorded.calls, perturbed.calls, strict=True):
        ours, theirs = ([t for _, t in tensors_in((c.args, c.kwargs))] for c in (call, other))
        if len(ours) != len(theirs) or not all(map(_equal, ours, theirs)):
            raise NotSeparable("its layers use the output of other layers than the one before")
    final = skeleton.finish(ids, hidden)
    if final.dim() != 3 or final.shape[:2] != ids.shape:
        raise NotSeparable("what its head gets is not one row a token")
    if not _equal(final, skeleton.finish(ids, hidden, perturb=True)):
        raise NotSeparable("its forward uses the output of other layers than the last")
    # Embedding a pass again for its final norm costs as much as the norm itself, and more.
    skeleton.embeds_at_end = False
    try:
        without = skeleton.finish(ids, hidden)
    except FORWARD_ERRORS:
        # CPM-Ant embeds its prompts by the same table, and wants another shape of them.
        skeleton.embeds_at_end = True
    else:
        skeleton.embeds_at_end = not _equal(final, without)


def tensors_in(
    value: Any, at: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    """The tensors of a layer's arguments, each with the way to it."""
    if isinstance(value, Unread):
        return
    if isinstance(value, torch.Tensor):
        yield at, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_in(item, (*at, key))
    elif isinstance(value, (tuple, list)):
        for place, item in enumerate(value):
            yield from tensors_in(item, (*at, place))


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.allclose(a, b, rtol=0, atol=0, equal_nan=a.is_floating_point())
    )


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
