"""Variants of two models: the base with one unit of the quantized model, and that with one of the base.

Both models go through the layers side by side. In front of each layer stand the states that either has
there; a unit of this layer branches off two variants from them, and only what follows is computed once
more: this layer, those behind it, and the head. What lies before is shared, so that a variant costs
half a pass on average. Variants of a few units go through the layers together, so that a layer's
weights are made ready once for all of them, and the base's logits once. A variant has the bits of the
mixture of the two checkpoints that it stands for, in the same micro-batches.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from scoremode.engines.base import Schedule, Work
from scoremode.engines.torch.attribution.units import Error, LayerErrors, Unit
from scoremode.engines.torch.device import make_current
from scoremode.engines.torch.engine import TorchEngine
from scoremode.engines.torch.memory.budget import out_of_memory
from scoremode.engines.torch.model.attention import attention_backends
from scoremode.engines.torch.model.layer_recorder import Call
from scoremode.engines.torch.passes.execution import LayerByLayer
from scoremode.engines.torch.passes.microbatch import Inputs, inputs_of
from scoremode.errors import EngineError
from scoremode.head.project import HeadLogits, divergences, tile_of
from scoremode.reference.base import Span
from scoremode.results.scores import expected
from scoremode.text.plan import Plan

# `alone`: the base with one unit of the model; `without`: the model with one unit of the base.
Direction = Literal["alone", "without"]
DIRECTIONS: tuple[Direction, ...] = ("alone", "without")
# Variants that go through the layers together, where there is memory for their states.
_TOGETHER = 8
# Sets of states beside the variants': those of both models, the base's final ones, what a layer makes.
_OWN_SETS = 4


@dataclass
class Found:
    """Measurements of one unit.

    - `kld`: KL(base‖variant) of both variants, float64 [N], for each set of windows in turn; `tv`: the
      total variation of base and variant of `alone`.
    - `local`, `accumulated`: the errors of its modules or its layer (`LayerErrors`); the second is None
      where the model's own layers do not run, which `alone` has no need of.
    """

    kld: dict[Direction, list[NDArray[np.float64]]] = field(
        default_factory=lambda: {direction: [] for direction in DIRECTIONS}
    )
    tv: list[NDArray[np.float64]] = field(default_factory=list)
    local: Error = field(default_factory=Error)
    accumulated: Error | None = None


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

    def embed(self, inputs: Sequence[Inputs]) -> tuple[list[torch.Tensor], list[list[Call]]]:
        """The first layer's input of each micro-batch, and what every layer is called with."""
        recorded = [self.way.preamble.run(each.ids) for each in inputs]
        return [r.embedded for r in recorded], [r.calls for r in recorded]

    def step(
        self, module: nn.Module, layer: int, calls: list[Call], hidden: torch.Tensor
    ) -> torch.Tensor:
        """A micro-batch's states [B, T, D] behind `module`, which is this layer or stands for it."""
        out = calls[layer].run(module, hidden, self.parts.layers.arguments(layer))
        return out[0] if isinstance(out, tuple) else out

    def head_input(self, final: torch.Tensor) -> torch.Tensor:
        """States as the head multiplies them: quantized where its input is."""
        given = self.parts.head_input
        return final if given is None else given(final)


@dataclass
class _Pass:
    """Some micro-batches on their way through both models.

    - `inputs`, `targets`: of each micro-batch; `wanted`: the base's final states of it.
    - `layer`: the number of the layer in front of which the models stand.
    - `calls`, `hidden`: of either model by its id, of each micro-batch.
    """

    inputs: list[Inputs]
    targets: list[torch.Tensor]
    wanted: list[torch.Tensor]
    calls: dict[int, list[list[Call]]]
    hidden: dict[int, list[torch.Tensor]]
    layer: int = 0


class Variants:
    """Two models that are mixed in some `directions`: `base` and `model`, of one class.

    - `final`: the base's final states [N, D] of micro-batches, by their rows among the plan's targets,
      where they are known already.

    Raises EngineError.
    """

    def __init__(
        self,
        base: TorchEngine,
        model: TorchEngine,
        units: Sequence[Unit],
        directions: Sequence[Direction] = DIRECTIONS,
        final: Mapping[Span, torch.Tensor] | None = None,
    ):
        self._base, self._model, self._units = _Side(base), _Side(model), units
        base_first, model_first = (self._base, self._model), (self._model, self._base)
        # Of each direction the side whose layers run, and the one that a unit is taken from.
        self._sides: dict[Direction, tuple[_Side, _Side]] = {
            "alone": base_first,
            "without": model_first,
        }
        self._directions = directions
        # The model's own states are where `without` begins.
        self._runs_model = "without" in directions
        self._final = final or {}
        self._layers = len(base.parts.layers)
        self._found = {
            unit.name: Found(accumulated=Error() if self._runs_model else None) for unit in units
        }

    @property
    def passes(self) -> float:
        """Passes of one model over the plan that all of it takes, for progress."""
        own = sum(self._layers - self._first(unit) for unit in self._units)
        once = (not self._final) + self._advancing
        return once + len(self._directions) * own / self._layers

    def run(
        self, plan: Plan, schedule: Schedule, moved: Callable[[float], None] = lambda _: None
    ) -> dict[str, Found]:
        """All variants over the whole plan, by their units' names; `moved` gets the passes that were
        done since, in fractions. Raises OutOfMemory."""
        whole = int(plan.lengths.sum())
        most, together = self._room(plan, schedule)
        device = self._base.engine.device.torch
        make_current(device)
        try:
            with torch.no_grad(), attention_backends(device):
                for work in Work.passes(plan, schedule):
                    for part in work.cut(most):
                        if not self._model.engine.is_proven:
                            # What has to be shown of it before a score counts.
                            self._model.engine.final_states(part.part(part.batches[0]))
                        share = part.tokens / whole
                        self._run(part, together, lambda passes, share=share: moved(passes * share))
        except torch.cuda.OutOfMemoryError as error:
            raise out_of_memory(error) from None
        return self._found

    @property
    def _advancing(self) -> int:
        """Passes that the models themselves take, local errors among them: these take none where a
        layer's variant makes the same outputs."""
        is_free = "alone" in self._directions and all(unit.whole for unit in self._units)
        return 1 + self._runs_model + (not is_free)

    def _room(self, plan: Plan, schedule: Schedule) -> tuple[int, int]:
        """Windows and units that go through the layers together. Micro-batches are those of a run, and
        how many of them are in memory moves no bit."""
        batch = schedule.batch_windows
        memory, longest = self._model.parts.memory, int(plan.lengths.max())
        most = memory.most_windows(longest, batch, schedule.chunk_tokens)
        count = len(self._directions)
        windows = min(most // (_OWN_SETS + _TOGETHER), schedule.pass_windows)
        if windows >= batch:
            return windows, _TOGETHER // count
        variants = min(_TOGETHER, most // batch - _OWN_SETS)
        return batch, max(1, variants // count)

    def _run(self, work: Work, together: int, moved: Callable[[float], None]) -> None:
        base, model = self._base, self._model
        if all(span in self._final for span in work.spans):
            wanted = [self._final[span] for span in work.spans]
        else:
            wanted = base.engine.final_states(work)
            moved(1)
        send, row = base.engine.sent, work.schedule.row_tokens
        inputs = [inputs_of(work.plan, batch, row, send) for batch in work.batches]
        targets = [send(expected(work.plan, batch)["target"]) for batch in work.batches]
        (mine, my_calls), (theirs, their_calls) = base.embed(inputs), model.embed(inputs)
        calls = {id(base): my_calls, id(model): their_calls}
        now = _Pass(inputs, targets, wanted, calls, {id(base): mine, id(model): theirs})
        self._note_embeddings(now)
        units = sorted(self._units, key=self._first)
        for begin in range(0, len(units), together):
            behind = units[begin + together :]
            stop = self._first(behind[0]) if behind else self._layers
            self._follow(now, units[begin : begin + together], stop, moved)

    def _first(self, unit: Unit) -> int:
        """The layer in front of which its variants branch off: behind the last one for the head's."""
        if unit.has("embedding"):
            return 0
        return min((p.layer for p in unit.places if p.layer >= 0), default=self._layers)

    def _follow(
        self, now: _Pass, units: Sequence[Unit], stop: int, moved: Callable[[float], None]
    ) -> None:
        """Takes all variants of the units to their KL divergence, and both models to layer `stop`,
        where the next units branch off."""
        branches: list[_Branch] = []
        for layer in range(now.layer, self._layers):
            branches += self._branches(now, units, layer)
            with ExitStack() as at_work:
                modules = {
                    id(side): at_work.enter_context(side.parts.layers.at_work(layer))
                    for side in (self._base, self._model)
                }
                for branch in branches:
                    self._step(now, branch, modules, layer)
                moved(len(branches) / self._layers)
                if layer < stop:
                    self._advance(now, branches, modules, layer)
                    moved(self._advancing / self._layers)
        branches += self._branches(now, units, self._layers)
        for branch, (kld, tv) in zip(branches, self._judge(now, branches), strict=True):
            found = self._found[branch.unit.name]
            found.kld[branch.direction].append(kld)
            if branch.direction == "alone":
                found.tv.append(tv)

    def _branches(self, now: _Pass, units: Sequence[Unit], layer: int) -> list[_Branch]:
        """The variants of those of the units that branch off in front of a layer."""
        found = []
        for unit in units:
            if self._first(unit) != layer:
                continue
            for direction in self._directions:
                own, other = self._sides[direction]
                begins = other if unit.has("embedding") else own
                found.append(_Branch(unit, direction, list(now.hidden[id(begins)])))
        return found

    def _step(
        self, now: _Pass, branch: _Branch, modules: Mapping[int, nn.Module], layer: int
    ) -> None:
        """Takes a variant through a layer."""
        own, other = self._sides[branch.direction]
        with _mixed(modules[id(own)], modules[id(other)], branch.unit, layer) as module:
            for batch, calls in enumerate(now.calls[id(own)]):
                branch.hidden[batch] = own.step(module, layer, calls, branch.hidden[batch])

    def _advance(
        self,
        now: _Pass,
        branches: Sequence[_Branch],
        modules: Mapping[int, nn.Module],
        layer: int,
    ) -> None:
        """Takes the models' own states through a layer that the `branches` have gone through, and
        compares its modules' outputs."""
        base, model = self._base, self._model
        paths = {path: unit for unit in self._units for path in _paths(unit, layer)}
        errors = LayerErrors(list(paths), accumulate=self._runs_model)
        # The base with the model's layer has what that makes of the base's inputs.
        alone = [b for b in branches if b.unit is paths.get("") and b.direction == "alone"]
        mine, theirs = now.hidden[id(base)], now.hidden[id(model)]
        of_base, of_model = modules[id(base)], modules[id(model)]
        for batch in range(len(mine)):
            known = {"": alone[0].hidden[batch]} if alone else {}
            with errors.beside_base(of_base, of_model, known):
                mine[batch] = base.step(of_base, layer, now.calls[id(base)][batch], mine[batch])
            if self._runs_model:
                with errors.behind_model(of_model):
                    calls = now.calls[id(model)][batch]
                    theirs[batch] = model.step(of_model, layer, calls, theirs[batch])
        for path, unit in paths.items():
            found = self._found[unit.name]
            found.local += errors.local[path]
            if found.accumulated is not None:
                found.accumulated += errors.accumulated[path]
        now.layer = layer + 1

    def _note_embeddings(self, now: _Pass) -> None:
        for unit in self._units:
            if unit.has("embedding"):
                found = self._found[unit.name]
                pairs = zip(*(now.hidden[id(s)] for s in (self._base, self._model)), strict=True)
                for mine, theirs in pairs:
                    for error in (found.local, found.accumulated):
                        if error is not None:
                            error.add(mine, theirs)

    def _judge(self, now: _Pass, branches: Sequence[_Branch]) -> list[NDArray[np.float64]]:
        """KL(base‖variant) and total variation, float64 [2, N], of each variant at the targets of all
        micro-batches."""
        base = self._base.engine.head
        tile = tile_of(self._base.engine.device.torch)
        found: list[list[NDArray[np.float64]]] = [[] for _ in branches]
        for batch, inputs in enumerate(now.inputs):
            logits: dict[int, HeadLogits] = {}
            models = []
            for branch in branches:
                own, other = self._sides[branch.direction]
                side = other if branch.unit.has("head") else own
                final = own.way.finish(inputs.ids, branch.hidden.pop(0))
                states = inputs.chosen(side.head_input(final))
                if id(side) not in logits:
                    logits[id(side)] = HeadLogits(side.engine.head, states, tile)
                models.append(logits[id(side)].beside(states))
            pairs = divergences(
                now.targets[batch],
                base.vocabulary,
                base=HeadLogits(base, now.wanted[batch], tile),
                models=models,
                tile=tile,
            )
            for columns, pair in zip(found, pairs, strict=True):
                assert pair.tv is not None
                columns.append(torch.stack([pair.kld, pair.tv]).cpu().numpy())
        return [np.concatenate(columns, 1) for columns in found]


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
