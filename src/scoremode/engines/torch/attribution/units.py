"""Units of attribution: the parts of a model that its quantization changed, as small as asked for; and
their local errors, how far a module's output is from the base's before anything follows from it.

Two engines have the same class of model, so a module of one has its twin in the other, by its path.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn

from scoremode.engines.torch.engine import TorchEngine
from scoremode.engines.torch.weights.slot import Binding
from scoremode.errors import EngineError
from scoremode.schemes.summary import weight_tensors

By = Literal["layer", "module", "kind"]
# Elements of an output that are taken at a time.
_PIECE = 1 << 24


@dataclass(frozen=True)
class Place:
    """A module's place: a decoder layer, by its number, and the path within; of what lies in none the
    part, `embedding` or `head`, with -1."""

    layer: int
    path: str


@dataclass(frozen=True)
class Stored:
    """Formats that either model stores a module's weights in, and in how many bytes: the model first,
    then the base."""

    parameters: int
    formats: tuple[str, str]
    bytes: tuple[int, int]
    sources: tuple[tuple[str, ...], tuple[str, ...]]

    def __add__(self, other: "Stored") -> "Stored":
        """Both parts of a table that is embedding and head: of one name, and of one format."""
        own, base = (a + b for a, b in zip(self.bytes, other.bytes, strict=True))
        return replace(self, parameters=self.parameters + other.parameters, bytes=(own, base))


@dataclass
class Unit:
    """Modules whose divergence is attributed together.

    - `name`: the model's name for it, of a kind its last part; `places`: of all its modules.
    - `modules`: their full names.
    - `whole`: of a decoder layer, which is taken with all it has, norms included.
    - `formats`, `base_formats`: what either model stores the modules' weights in.
    - `sources`, `base_sources`: what either checkpoint calls its modules.
    - `parameters`, `bytes`, `base_bytes`: of these weights, stored.
    - `stored`: of each module that it may have, by name, those that both models store alike as well.
    """

    name: str
    places: list[Place] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    whole: bool = False
    formats: dict[str, None] = field(default_factory=dict)
    base_formats: dict[str, None] = field(default_factory=dict)
    sources: dict[str, None] = field(default_factory=dict)
    base_sources: dict[str, None] = field(default_factory=dict)
    parameters: int = 0
    bytes: int = 0
    base_bytes: int = 0
    stored: dict[str, Stored] = field(default_factory=dict)

    def paths(self, layer: int) -> list[str]:
        """Paths of its modules within one decoder layer."""
        return [place.path for place in self.places if place.layer == layer]

    def has(self, part: str) -> bool:
        """Tells whether the `embedding` or the `head` is of it."""
        return Place(-1, part) in self.places

    def to_json(self) -> dict[str, Any]:
        layers = {place.layer for place in self.places}
        is_in_one = len(layers) == 1 and layers != {-1}
        return {
            "name": self.name,
            "layer": next(iter(layers)) if is_in_one else None,
            "modules": len(self.modules),
            "formats": {"base": list(self.base_formats), "model": list(self.formats)},
            "parameters": self.parameters,
            "bytes": self.bytes,
            "base_bytes": self.base_bytes,
            "bits_per_weight": 8 * self.bytes / self.parameters,
        }


@dataclass(frozen=True)
class _Module:
    """A module with weights of one engine: all of an expert module's are one."""

    place: Place
    name: str
    label: str
    sources: tuple[str, ...]
    parameters: int
    bytes: int


def find_units(base: TorchEngine, model: TorchEngine, by: By) -> list[Unit]:
    """The units of `model` that it stores otherwise than `base` does, in the order of the layers, the
    embedding first and the head last. Raises EngineError where there is none."""
    ours, theirs = ({m.place: m for m in _modules(e)} for e in (model, base))
    units: dict[str, Unit] = {}
    stored: dict[str, dict[str, Stored]] = defaultdict(dict)
    for place, module in ours.items():
        twin = theirs.get(place)
        if twin is None:
            continue
        name, whole = _unit_of(module, model, by)
        _note(stored[name], module, twin)
        if twin.label == module.label:
            continue
        unit = units.setdefault(name, Unit(name, whole=whole))
        unit.places.append(place)
        if module.name not in unit.modules:
            unit.modules.append(module.name)
        unit.formats[module.label] = unit.base_formats[twin.label] = None
        unit.sources |= dict.fromkeys(module.sources)
        unit.base_sources |= dict.fromkeys(twin.sources)
        unit.parameters += module.parameters
        unit.bytes += module.bytes
        unit.base_bytes += twin.bytes
    if not units:
        raise EngineError(
            f"{model.parts.checkpoint.source}: stores every weight in the format that "
            f"{base.parts.checkpoint.source} has it in: there is nothing to attribute"
        )
    for unit in units.values():
        unit.stored = stored[unit.name]
        if unit.whole:
            (layer,) = {place.layer for place in unit.places}
            unit.sources = _sources(model, model.parts.weights.tensors_of_layers()[layer])
            unit.base_sources = _sources(base, base.parts.weights.tensors_of_layers()[layer])
    return list(units.values())


def _note(stored: dict[str, Stored], module: _Module, twin: _Module) -> None:
    """Adds what both models store a module as."""
    found = Stored(
        module.parameters,
        (module.label, twin.label),
        (module.bytes, twin.bytes),
        (module.sources, twin.sources),
    )
    before = stored.get(module.name)
    stored[module.name] = found if before is None else before + found


def _sources(engine: TorchEngine, tensors: Iterable[str]) -> dict[str, None]:
    """The checkpoint's modules that the tensors are of."""
    return dict.fromkeys(engine.parts.schemes.split(tensor)[0] for tensor in tensors)


def _unit_of(module: _Module, engine: TorchEngine, by: By) -> tuple[str, bool]:
    """The name of the unit that a module is of, and whether that is a whole decoder layer."""
    layer = module.place.layer
    if by == "kind":
        return module.name.rpartition(".")[2], False
    if by == "layer" and layer >= 0:
        return engine.parts.skeleton.layer_names[layer], True
    return module.name, False


def _modules(engine: TorchEngine) -> Iterator[_Module]:
    skeleton, weights = engine.parts.skeleton, engine.parts.weights
    stored = weight_tensors(engine.parts.checkpoint, engine.parts.schemes)
    names = {id(module): name for name, module in skeleton.model.named_modules()}
    tables = {"embedding": skeleton.embedding, "head": skeleton.head}

    bindings = {part: weights.binding_of(table, "weight") for part, table in tables.items()}
    embedding, head = bindings["embedding"], bindings["head"]
    assert embedding is not None
    name = names[id(tables["embedding"])]
    yield _module(engine, Place(-1, "embedding"), name, [embedding], stored)
    for number, layer in enumerate(skeleton.layers):
        by_path: dict[str, list[Binding]] = defaultdict(list)
        for binding in weights.layers[number]:
            if len(binding.scheme.shape) > 1:
                by_path[binding.role.rpartition(".")[0]].append(binding)
        for experts in weights.experts[number]:
            path = next(p for p, m in layer.named_modules() if m is experts.module)
            by_path[path] += experts.bindings()
        order = {path: place for place, (path, _) in enumerate(layer.named_modules())}
        for path in sorted(by_path, key=order.__getitem__):
            name = f"{skeleton.layer_names[number]}.{path}"
            yield _module(engine, Place(number, path), name, by_path[path], stored)
    if head is not None:
        # A tied head has the embedding's tensors, and changes with it.
        is_tied = head.tensor_names() == embedding.tensor_names()
        table = tables["embedding" if is_tied else "head"]
        module = _module(engine, Place(-1, "head"), names[id(table)], [head], stored)
        yield replace(module, parameters=0, bytes=0) if is_tied else module


def _module(
    engine: TorchEngine,
    place: Place,
    name: str,
    bindings: Iterable[Binding],
    stored: Mapping[str, list[str]],
) -> _Module:
    """`stored`: of each quantized module the tensors that count as its weight's."""
    labels: dict[str, None] = {}
    read: dict[str, None] = {}
    parameters = 0
    for binding in bindings:
        labels[binding.scheme.label] = None
        read |= dict.fromkeys(binding.tensor_names().values())
        parameters += math.prod(binding.scheme.shape)
    infos, split = engine.parts.checkpoint.tensors, engine.parts.schemes.split
    counted = {name for tensor in read for name in stored.get(split(tensor)[0], (tensor,))}
    size = sum(infos[tensor].bytes for tensor in counted)
    sources = tuple(_sources(engine, read))
    return _Module(place, name, ", ".join(labels), sources, parameters, size)


@dataclass
class Error:
    """Sums over all elements of an output: of the base's squares, and of the differences' squares.
    They stay on the outputs' device, where nothing waits for them, until they are asked for."""

    signal: float | torch.Tensor = 0.0
    noise: float | torch.Tensor = 0.0

    def add(self, base: torch.Tensor, other: torch.Tensor) -> None:
        """Adds outputs of the same shape: differences, squares and their sums over the last dimension
        in float32, the sums of these in float64."""
        # A piece at a time: what is computed on the way is wider than the outputs.
        for mine, theirs in zip(_pieces(base), _pieces(other), strict=True):
            wide = mine.float()
            self.signal = self.signal + wide.square().sum(-1).sum(dtype=torch.float64)
            apart = theirs.float() - wide
            self.noise = self.noise + apart.square_().sum(-1).sum(dtype=torch.float64)

    def to_json(self) -> dict[str, float | None]:
        """`relative_error` √(Σ(y' - y)² / Σy²), and `sqnr_db` 10 log₁₀ (Σy² / Σ(y' - y)²), None
        where there is no error at all or no signal."""
        signal, noise = float(self.signal), float(self.noise)
        if not signal:
            return {"relative_error": None, "sqnr_db": None}
        ratio = noise / signal
        decibels = -10 * math.log10(ratio) if ratio else None
        return {"relative_error": math.sqrt(ratio), "sqnr_db": decibels}

    def __add__(self, other: "Error") -> "Error":
        return Error(self.signal + other.signal, self.noise + other.noise)


class LayerErrors:
    """The errors of some modules of one decoder layer, by path.

    - `local`: of the model's module on what the base's is given.
    - `accumulated`: of the model's module on what it is given behind the model's own layers; of none
      where these do not run.
    """

    def __init__(self, paths: Sequence[str], *, accumulate: bool = True):
        self.local = {path: Error() for path in paths}
        self.accumulated = {path: Error() for path in paths if accumulate}
        # The base's outputs in one micro-batch, of which what follows may overwrite the tensors.
        self._outputs: dict[str, torch.Tensor] = {}

    @contextmanager
    def beside_base(
        self, base: nn.Module, model: nn.Module, known: Mapping[str, torch.Tensor]
    ) -> Iterator[None]:
        """While the base's layer runs: has each module's twin of the model given the same inputs, but
        for those by path whose output is `known`."""
        with ExitStack() as hooks:
            for path, error in self.local.items():
                twin = model.get_submodule(path)

                def compare(
                    _: nn.Module, args: Any, kwargs: Any, out: Any,
                    path: str = path, error: Error = error, twin: nn.Module = twin,
                ) -> None:  # fmt: skip
                    if path in self.accumulated:
                        self._outputs[path] = _tensor(out).clone()
                    other = known.get(path)
                    error.add(
                        _tensor(out), _tensor(twin(*args, **kwargs)) if other is None else other
                    )

                module = base.get_submodule(path)
                hooks.callback(module.register_forward_hook(compare, with_kwargs=True).remove)
            yield

    @contextmanager
    def behind_model(self, model: nn.Module) -> Iterator[None]:
        """While the model's layer runs on the same micro-batch, after the base's has."""
        with ExitStack() as hooks:
            for path, error in self.accumulated.items():

                def compare(
                    _: nn.Module, args: Any, out: Any, path: str = path, error: Error = error
                ) -> None:
                    error.add(self._outputs.pop(path), _tensor(out))

                module = model.get_submodule(path)
                hooks.callback(module.register_forward_hook(compare).remove)
            yield


def _pieces(out: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = out.flatten(0, -2)
    return rows.split(max(1, _PIECE // max(1, rows.shape[1])))


def _tensor(out: Any) -> torch.Tensor:
    return out[0] if isinstance(out, tuple) else out
