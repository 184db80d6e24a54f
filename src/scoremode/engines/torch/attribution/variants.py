"""Variants of two models: the base with one unit of the quantized model, and that with one of the base.

Both models go through the layers side by side. In front of each layer stand the states that either has
there; a unit of this layer branches off two variants from them, and only what follows is computed once
more: this layer, those behind it, and the head. What lies before is shared, so that a variant costs
half a pass on average. It has the bits of the mixture of the two checkpoints that it stands for, in the
same micro-batches.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from scoremode.engines.base import Schedule
from scoremode.engines.torch.attribution.errors import Error, LayerErrors
from scoremode.engines.torch.attribution.units import Unit
from scoremode.engines.torch.engine import TorchEngine
from scoremode.engines.torch.passes.inputs import Inputs, inputs_of
from scoremode.engines.torch.passes.ways import LayerByLayer
from scoremode.engines.work import Work
from scoremode.errors import EngineError
from scoremode.head.project import HeadLogits, score_pairs, tile_of
from scoremode.results.scores import expected
from scoremode.text.plan import Plan

__all__ = ["DIRECTIONS", "Direction", "Found", "Variants"]

# `alone`: the base with one unit of the model; `without`: the model with one unit of the base.
Direction = Literal["alone", "without"]
DIRECTIONS: tuple[Direction, ...] = ("alone", "without")
# Units whose variants go through the layers side by side, so that each is decoded once for all.
_TOGETHER = 4
# Of the states that a pass was made for, what one set may take: those of both models, the base's final
# ones, what a layer makes, and the variants.
_SETS = 4 + 2 * _TOGETHER


@dataclass
class Found:
    """What was found of one unit.

    - `kld`: KL(base‖variant) of both variants, float64 [N], for each set of windows in turn.
    - `local`, `accumulated`: the errors of its modules or its layer (`errors.py`).
    """

    kld: dict[Direction, list[NDArray[np.float64]]] = field(
        default_factory=lambda: {direction: [] for direction in DIRECTIONS}
    )
    local: Error = field(default_factory=Error)
    accumulated: Error = field(default_factory=Error)


@dataclass
class _Branch:
    """A variant on its way: states [B, T, D] of each micro-batch."""

    unit: Unit
    direction: Direction
    hidden: list[torch.Tensor]


class _Side:
    """One of the two models, layer by layer. Raises EngineError where its layers can't be run apart,
    or more than its weights is quantized."""

    def __init__(self, engine: TorchEngine):
        self.engine, self.parts = engine, engine.parts
        source = engine.parts.checkpoint.source
        if not isinstance(engine.way, LayerByLayer):
            raise EngineError(
                f"{source}: can't be attributed to layers, which run {engine.way.described}"
            )
        if engine.parts.caches:
            raise EngineError(f"{source}: attribution is of weights, and a cache is quantized")
        self.way = engine.way

    def embed(self, inputs: Sequence[Inputs]) -> tuple[list[torch.Tensor], list[list[Any]]]:
        """The first layer's input of each micro-batch, and what every layer is called with."""
        recorded = [self.way.preamble.run(each.ids) for each in inputs]
        return [r.embedded for r in recorded], [r.calls for r in recorded]

    def states(self, inputs: Inputs, hidden: torch.Tensor) -> torch.Tensor:
        """[N, D]: what the head is given for a micro-batch's targets."""
        final = self.way.finish(inputs.ids, hidden)
        if self.parts.head_input is not None:
            final = self.parts.head_input(final)
        return inputs.chosen(final)


@dataclass
class _Pass:
    """Some micro-batches on their way through both models.

    - `inputs`, `calls`, `targets`: of each micro-batch; `wanted`: the base's final states of it.
    - `base`, `model`: the states that either has in front of the layer at hand.
    """

    inputs: list[Inputs]
    targets: list[torch.Tensor]
    wanted: list[torch.Tensor]
    calls: dict[int, list[list[Any]]]
    hidden: dict[int, list[torch.Tensor]]


class Variants:
    """Two models that are mixed in some `directions`: `base` and `model`, of one class. Raises
    EngineError."""

    def __init__(
        self,
        base: TorchEngine,
        model: TorchEngine,
        units: Sequence[Unit],
        directions: Sequence[Direction] = DIRECTIONS,
    ):
        self._base, self._model, self._units = _Side(base), _Side(model), units
        base_first, model_first = (self._base, self._model), (self._model, self._base)
        # Of each direction the side whose layers run, and the one that a unit is taken from.
        self._sides: dict[Direction, tuple[_Side, _Side]] = {
            "alone": base_first,
            "without": model_first,
        }
        self._directions = directions
        self._layers = len(base.parts.layers)
        self._found = {unit.name: Found() for unit in units}

    @property
    def passes(self) -> float:
        """Passes of one model over the plan that all of it takes, for progress."""
        own = sum(self._layers - max(0, self._first(unit)) for unit in self._units)
        return 4 + len(self._directions) * own / self._layers

    def run(
        self, plan: Plan, schedule: Schedule, moved: Callable[[float], None] = lambda _: None
    ) -> dict[str, Found]:
        """All variants over the whole plan, by their units' names; `moved` gets the passes that were
        done since, in fractions."""
        whole, is_first = int(plan.lengths.sum()), True
        # Micro-batches are those of a run; how many of them are in memory together moves no bit.
        most = max(schedule.batch_windows, schedule.pass_windows // _SETS)
        with torch.no_grad():
            for work in Work.passes(plan, schedule):
                for part in work.cut(most):
                    if is_first:
                        # What has to be proven of the model before a score of it counts.
                        self._model.engine.final_states(part.part(part.batches[0]))
                        is_first = False
                    share = part.tokens / whole
                    self._run(part, lambda passes, share=share: moved(passes * share))
        return self._found

    def _run(self, work: Work, moved: Callable[[float], None]) -> None:
        base, model = self._base, self._model
        wanted = base.engine.final_states(work)
        moved(1)
        send, row = base.engine.sent, work.schedule.row_tokens
        inputs = [inputs_of(work.plan, batch, row, send) for batch in work.batches]
        targets = [send(expected(work.plan, batch)["target"]) for batch in work.batches]
        (mine, my_calls), (theirs, their_calls) = base.embed(inputs), model.embed(inputs)
        calls = {id(base): my_calls, id(model): their_calls}
        now = _Pass(inputs, targets, wanted, calls, {id(base): mine, id(model): theirs})
        self._note_embeddings(now)
        for layer in range(-1, self._layers + 1):
            units = [unit for unit in self._units if self._first(unit) == layer]
            for begin in range(0, len(units), _TOGETHER):
                self._follow(now, units[begin : begin + _TOGETHER], layer, moved)
            if 0 <= layer < self._layers:
                self._advance(now, layer)
                moved(3 / self._layers)

    def _first(self, unit: Unit) -> int:
        """The layer from which on its variants are not the models themselves: -1 from the embedding,
        the number of layers in the head alone."""
        if unit.has("embedding"):
            return -1
        return min((p.layer for p in unit.places if p.layer >= 0), default=self._layers)

    def _follow(
        self, now: _Pass, units: Sequence[Unit], first: int, moved: Callable[[float], None]
    ) -> None:
        """Takes both variants of each unit from layer `first` on to their KL divergence."""
        branches = []
        for unit in units:
            for direction in self._directions:
                own, other = self._sides[direction]
                begins = other if unit.has("embedding") else own
                branches.append(_Branch(unit, direction, list(now.hidden[id(begins)])))
        for layer in range(max(0, first), self._layers):
            with ExitStack() as at_work:
                modules = {
                    id(side): at_work.enter_context(side.parts.layers.at_work(layer))
                    for side in (self._base, self._model)
                }
                for branch in branches:
                    own, other = self._sides[branch.direction]
                    pair = modules[id(own)], modules[id(other)]
                    with _mixed(*pair, branch.unit, layer) as module:
                        self._step(now, own, module, layer, branch.hidden)
            moved(len(branches) / self._layers)
        for branch in branches:
            self._found[branch.unit.name].kld[branch.direction].append(self._judge(now, branch))

    def _step(
        self, now: _Pass, side: _Side, module: nn.Module, layer: int, hidden: list[torch.Tensor]
    ) -> None:
        """Puts each micro-batch's states through a layer, in place of the list's."""
        others = side.parts.layers.arguments(layer)
        for batch, calls in enumerate(now.calls[id(side)]):
            out = calls[layer].run(module, hidden[batch], others)
            hidden[batch] = out[0] if isinstance(out, tuple) else out

    def _advance(self, now: _Pass, layer: int) -> None:
        """Takes both models' own states through a layer, and compares its modules' outputs."""
        base, model = self._base, self._model
        paths = {path: unit for unit in self._units for path in _paths(unit, layer)}
        errors = LayerErrors(list(paths))
        mine, theirs = now.hidden[id(base)], now.hidden[id(model)]
        with base.parts.layers.at_work(layer) as a, model.parts.layers.at_work(layer) as b:
            for batch in range(len(mine)):
                one = _Pass(
                    [now.inputs[batch]], [], [], {k: [c[batch]] for k, c in now.calls.items()}, {}
                )
                own, other = [mine[batch]], [theirs[batch]]
                with errors.beside_base(a, b):
                    self._step(one, base, a, layer, own)
                with errors.behind_model(b):
                    self._step(one, model, b, layer, other)
                mine[batch], theirs[batch] = own[0], other[0]
        for path, unit in paths.items():
            found = self._found[unit.name]
            found.local += errors.local[path]
            found.accumulated += errors.accumulated[path]

    def _note_embeddings(self, now: _Pass) -> None:
        for unit in self._units:
            if unit.has("embedding"):
                found = self._found[unit.name]
                pairs = zip(*(now.hidden[id(s)] for s in (self._base, self._model)), strict=True)
                for mine, theirs in pairs:
                    for error in (found.local, found.accumulated):
                        error.add(mine, theirs)

    def _judge(self, now: _Pass, branch: _Branch) -> NDArray[np.float64]:
        """float64 [N]: KL(base‖variant) at the targets of all micro-batches."""
        own, other = self._sides[branch.direction]
        side = other if branch.unit.has("head") else own
        device, found = side.engine.device.torch, []
        tile, base = tile_of(device), self._base.engine.head
        for batch, inputs in enumerate(now.inputs):
            states = side.states(inputs, branch.hidden[batch])
            pair = score_pairs(
                now.targets[batch],
                base.vocabulary,
                model=HeadLogits(side.engine.head, states, tile),
                base=HeadLogits(base, now.wanted[batch], tile),
                tile=tile,
            )
            found.append(pair.kld.cpu().numpy())
        return np.concatenate(found)


def _paths(unit: Unit, layer: int) -> list[str]:
    """Paths of its modules in a layer, of a unit that is the whole layer the layer's own."""
    paths = unit.paths(layer)
    return [""] if unit.whole and paths else paths


@contextmanager
def _mixed(own: nn.Module, other: nn.Module, unit: Unit, layer: int) -> Iterator[nn.Module]:
    """One model's layer with the unit's modules of the other's, which is the other's own layer where
    the unit is all of it."""
    paths = unit.paths(layer)
    if unit.whole and paths:
        yield other
        return
    before: list[tuple[nn.Module, str, nn.Module]] = []
    try:
        for path in paths:
            parent, _, name = path.rpartition(".")
            holder = own.get_submodule(parent)
            before.append((holder, name, holder.get_submodule(name)))
            # Not by setattr, which would look at the module's parameters and hooks.
            holder._modules[name] = other.get_submodule(path)
        yield own
    finally:
        for holder, name, module in before:
            holder._modules[name] = module
