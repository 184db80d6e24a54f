"""A recipe out of several quants of one base: the format of each part, for a size.

Every quant is attributed first. What its parts do alone is what it costs to choose them; the choice of
least sum within the size is exact, the sum is a prediction. So the choice is measured as well.

The choice is a multiple-choice knapsack (Kellerer, Pferschy and Pisinger, Knapsack Problems, 2004,
chapter 11): item after item, every reachable size is kept with the least cost that reaches it, unless a
smaller size costs no more. A model's linears have few sizes, so that few sums of them differ.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.model_files import ModelFiles, resolve_model
from scoremode.engines.torch.attribution.units import By, Unit
from scoremode.errors import UnsupportedFormat, UsageError
from scoremode.lib.files import write_text
from scoremode.lib.json import json_text
from scoremode.results.folders.paths import write_output
from scoremode.results.folders.store import seal_of
from scoremode.results.labels import Named, labels_of
from scoremode.results.record.definition import Record
from scoremode.results.record.sections import now
from scoremode.runs.attribute import Attributed, attribute
from scoremode.runs.measure import measure
from scoremode.runs.request import Request, Result, Swap, TotalProgress
from scoremode.schemes.resolve import resolve
from scoremode.startup.clock import StageClock, Tell


@dataclass(frozen=True)
class Option:
    """One way to store an item: bytes, and its cost."""

    size: int
    cost: float


@dataclass(frozen=True, eq=False)
class Front:
    """All choices that no other beats: `sizes` int64 [F] rising, their `costs` float64 [F] falling."""

    sizes: NDArray[np.int64]
    costs: NDArray[np.float64]
    # For each item the option of every state behind it, and the state before that.
    _options: list[NDArray[np.int16]]
    _before: list[NDArray[np.int64]]

    def within(self, size: int) -> int | None:
        """The place of the choice of least cost that is no larger than `size`; None if none is."""
        place = int(np.searchsorted(self.sizes, size, side="right")) - 1
        return place if place >= 0 else None

    def choice(self, place: int) -> list[int]:
        """The number of each item's option in the choice at `place`."""
        chosen = []
        for options, before in zip(reversed(self._options), reversed(self._before), strict=True):
            chosen.append(int(options[place]))
            place = int(before[place])
        return chosen[::-1]


def front_of(items: Sequence[Sequence[Option]]) -> Front:
    """The front of all choices of one option for each item. Of equal cost the smaller one stays, of
    equal size and cost the one with the earlier option."""
    sizes, costs = np.zeros(1, np.int64), np.zeros(1)
    chosen, came = [], []
    for options in items:
        reached = np.concatenate([sizes + option.size for option in options])
        cost = np.concatenate([costs + option.cost for option in options])
        number = np.repeat(np.arange(len(options), dtype=np.int16), len(sizes))
        before = np.tile(np.arange(len(sizes)), len(options))
        order = np.lexsort((number, cost, reached))
        reached, cost = reached[order], cost[order]
        # Cheaper than everything that is no larger.
        least = np.minimum.accumulate(np.concatenate([[np.inf], cost[:-1]]))
        kept = cost < least
        sizes, costs = reached[kept], cost[kept]
        chosen.append(number[order][kept])
        came.append(before[order][kept])
    return Front(sizes, costs, chosen, came)


SCHEMA, SCHEMA_VERSION = "scoremode/recipe", 1
# Points of the curve that are kept.
_POINTS = 200


@dataclass(frozen=True)
class Recipe:
    """The measured choice: its run's folder and record, and `value`, what lies beside it."""

    folder: Path
    record: Record
    value: dict[str, Any]


@dataclass(frozen=True)
class _Choosable:
    """One part of the model, and what it may be stored as: in the base first, then in each quant.

    `modules`: the checkpoints' names.
    """

    name: str
    parameters: int
    modules: list[list[str]]
    options: list[Option]
    formats: list[str]


@dataclass(frozen=True)
class _Whole:
    """A part in one checkpoint: stored bytes, the checkpoint's names of its modules, their formats."""

    bytes: int
    modules: list[str]
    format: str


def search(
    request: Request,
    others: Sequence[str],
    budget: float,
    by: By,
    *,
    write_recipe: Path | None = None,
    progress: TotalProgress | None = None,
    notify: Callable[[str], None] = lambda _: None,
    tell: Tell = lambda *_: None,
) -> Recipe:
    """Chooses and measures.

    - `request`: as for `attribute`, of the first quant; `others`: further ones of the same base.
    - `budget`: stored bits per weight of all parts that any quant quantizes.
    - `write_recipe`: a file for the recipe as llm-compressor reads it.
    - `tell`: gets each stage that begins, and of which quant, at the end of the choice.

    Raises UsageError for a budget that no choice meets, and as `attribute` does.
    """
    if request.swaps:
        raise UsageError(f"{request.swaps[0].flag}: a recipe chooses among checkpoints as they are")
    request = request.resolved()
    models = [resolve_model(model) for model in (request.model, *others)]
    if write_recipe is not None:
        if not write_recipe.parent.is_dir():
            raise UsageError(f"--write-recipe {write_recipe}: there is no such folder")
        check_expressible(models)
    if len(set(models)) < len(models):
        raise UsageError(f"--from: {next(m for m in models if models.count(m) > 1)} is given twice")

    def clock_of(part: str) -> StageClock:
        return StageClock(tell=lambda stage, _: tell(stage, part))

    found = []
    for number, model in enumerate(models, 1):
        found.append(
            attribute(
                # A label is the choice's.
                replace(request, model=model, label=None),
                by,
                progress=progress,
                notify=notify,
                clock=clock_of(f"{model} ({number} of {len(models)})"),
                directions=["alone"],
            )
        )
    parts = _choosable(found)
    front = front_of([part.options for part in parts])
    weights = sum(part.parameters for part in parts)
    place = front.within(int(budget * weights / 8))
    if place is None:
        # Rounded up, so that the number that is named is enough.
        least = math.ceil(8e4 * int(front.sizes[0]) / weights) / 1e4
        raise UsageError(f"--budget {budget}: the smallest choice has {least:g} bits per weight")
    chosen = front.choice(place)
    result = measure(
        replace(request, swaps=_swaps(request, models, parts, chosen)),
        progress=progress, notify=notify, clock=clock_of("the choice"),
    )  # fmt: skip
    recipe = _written(result, request, models, found, parts, chosen, front, place, budget)
    if write_recipe is not None:
        taken = {
            model: [
                name
                for part, at in zip(parts, chosen, strict=True)
                if at == number
                for name in part.modules[number]
            ]
            for number, model in enumerate(models, 1)
        }
        base = request.base_files()
        assert base is not None
        write_output(write_recipe, recipe_yaml(base, taken))
    return recipe


def _choosable(found: Sequence[Attributed]) -> list[_Choosable]:
    """The parts that any of the quants quantizes; what one leaves as the base has it is the base's.

    A part is of the same modules in each of them: all that any quantizes of it.
    """
    of_any: dict[str, dict[str, None]] = {}
    for each in found:
        for unit in each.units:
            of_any.setdefault(unit.name, {}).update(dict.fromkeys(unit.modules))
    named: dict[str, _Choosable] = {}
    for number, each in enumerate(found, 1):
        for unit, said in zip(each.units, each.attribution["units"], strict=True):
            own, base = _stored(unit, of_any[unit.name])
            part = named.get(unit.name)
            if part is None:
                count = len(found) + 1
                part = _Choosable(
                    unit.name,
                    sum(unit.stored[name].parameters for name in of_any[unit.name]),
                    modules=[base.modules] * count,
                    options=[Option(base.bytes, 0.0)] * count,
                    formats=[base.format] * count,
                )
                named[unit.name] = part
            part.options[number] = Option(own.bytes, said["alone"]["value"])
            part.modules[number] = own.modules
            part.formats[number] = own.format
    return list(named.values())


def _stored(unit: Unit, names: Iterable[str]) -> tuple[_Whole, _Whole]:
    """Modules of one part, in the quant and in the base."""
    stored = [unit.stored[name] for name in names]
    wholes = []
    for side, of_layer in enumerate((unit.sources, unit.base_sources)):
        own = dict.fromkeys(source for each in stored for source in each.sources[side])
        wholes.append(
            _Whole(
                sum(each.bytes[side] for each in stored),
                list(of_layer if unit.whole else own),
                ", ".join(dict.fromkeys(each.formats[side] for each in stored)),
            )
        )
    return wholes[0], wholes[1]


def _swaps(
    request: Request,
    models: Sequence[ModelFiles],
    parts: Sequence[_Choosable],
    chosen: Sequence[int],
) -> tuple[Swap, ...]:
    """Swaps that turn the first quant into the chosen mixture: a pattern for each other checkpoint."""
    assert request.reference is not None
    sources = [request.reference, *models]
    swaps = []
    for number, source in enumerate(sources):
        names = [
            name
            for part, n in zip(parts, chosen, strict=True)
            for name in part.modules[number]
            if n == number
        ]
        # The first quant's own modules are there already.
        if names and number != 1:
            pattern = "re:(?:" + "|".join(map(re.escape, names)) + r")(?:\.|$)"
            swaps.append(Swap(pattern, source, is_base=number == 0))
    return tuple(swaps)


def _written(
    result: Result,
    request: Request,
    models: Sequence[ModelFiles],
    found: Sequence[Attributed],
    parts: Sequence[_Choosable],
    chosen: Sequence[int],
    front: Front,
    place: int,
    budget: float,
) -> Recipe:
    weights = sum(part.parameters for part in parts)
    assert isinstance(request.reference, ModelFiles)
    base, *quants = (Named(m.source, str(m.path)) for m in (request.reference, *models))
    names = labels_of([base, *quants], base)

    def bits(size: int) -> float:
        return 8 * size / weights

    value: dict[str, Any] = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "created": now(),
        "run": result.record.sha256,
        "budget": budget,
        "bits_per_weight": bits(int(front.sizes[place])),
        "predicted": float(front.costs[place]),
        "measured": result.record.document["metrics"]["kld"],
        "candidates": [
            {
                "name": name,
                "source": each.record.checkpoint.source,
                "run": str(each.folder),
                "bits_per_weight": bits(sum(p.options[n].size for p in parts)),
                "predicted": sum(p.options[n].cost for p in parts),
                "measured": each.record.document["metrics"]["kld"],
            }
            for n, (name, each) in enumerate(zip(names[1:], found, strict=True), 1)
        ],
        "choices": [
            {
                "unit": part.name,
                "from": names[n],
                "format": part.formats[n],
                "bits_per_weight": 8 * part.options[n].size / part.parameters,
                "alone": part.options[n].cost,
            }
            for part, n in zip(parts, chosen, strict=True)
        ],
        "curve": [
            {"bits_per_weight": bits(int(front.sizes[i])), "predicted": float(front.costs[i])}
            for i in _spread(len(front.sizes))
        ],
    }
    value["sha256"] = seal_of(value)
    write_text(result.folder / "recipe.json", json_text(value))
    return Recipe(result.folder, result.record, value)


def _spread(count: int) -> list[int]:
    """Up to _POINTS places of so many, first and last among them."""
    if count <= _POINTS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (_POINTS - 1)) for i in range(_POINTS)})


_METHOD = "compressed-tensors"
# Fields of a group that say how, and not what.
_HOW = ("weights", "input_activations", "output_activations")


def check_expressible(models: Sequence[ModelFiles | str]) -> None:
    """Raises UnsupportedFormat for a quant whose format llm-compressor's recipes don't name."""
    for model in models:
        checkpoint = open_checkpoint(model)
        method = (checkpoint.quantization or {}).get("quant_method")
        if method != _METHOD or not (checkpoint.quantization or {}).get("config_groups"):
            raise UnsupportedFormat(
                f"--write-recipe: {checkpoint.source} is {method or 'not quantized'}, and a recipe "
                f"names the config groups of {_METHOD}'s checkpoints"
            )


def recipe_yaml(base: ModelFiles | str, chosen: Mapping[Any, Sequence[str]]) -> str:
    """The recipe's text.

    - `base`: the model to be quantized, all of whose other linears are to be ignored.
    - `chosen`: for each quant the names of its modules that were chosen.

    Raises CheckpointError, UnsupportedFormat.
    """
    import yaml

    groups: dict[str, dict[str, Any]] = {}
    taken: set[str] = set()
    for model, modules in chosen.items():
        checkpoint = open_checkpoint(model)
        named = resolve(checkpoint).groups
        config = (checkpoint.quantization or {})["config_groups"]
        for module in modules:
            if (group := named.get(module)) is None:
                continue
            how = {name: config[group].get(name) for name in _HOW}
            key = next((k for k, g in groups.items() if _same(g, how)), f"group_{len(groups)}")
            groups.setdefault(key, how | {"targets": []})["targets"].append(module)
            taken.add(module)
    modifier = {"config_groups": groups, "ignore": _others(open_checkpoint(base), taken)}
    stage = {"quantization_stage": {"quantization_modifiers": {"QuantizationModifier": modifier}}}
    head = (
        f"# Chosen by scoremode attribute --budget among {', '.join(map(str, chosen))}.\n"
        "# It says what each module is stored as. How its values are found is the modifier's: costs\n"
        "# were measured on the quants named above, so another algorithm than theirs will differ.\n"
    )
    return head + yaml.safe_dump(_plain(stage), sort_keys=False, width=10_000)


def _others(base: Checkpoint, taken: set[str]) -> list[str]:
    """The base's modules of matrices that are not quantized, which llm-compressor may take for
    linears."""
    matrices = (name for name, info in base.tensors.items() if len(info.shape) == 2)
    # A head that is tied has no tensor of its own, and is a linear all the same.
    modules = dict.fromkeys([*(name.rpartition(".")[0] for name in matrices), "lm_head"])
    return [module for module in modules if module not in taken]


def _same(group: Mapping[str, Any], how: Mapping[str, Any]) -> bool:
    return all(group[name] == how[name] for name in _HOW)


def _plain(value: Any) -> Any:
    """Without fields that are not set, which the library fills in itself."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    return [_plain(v) for v in value] if isinstance(value, list) else value
