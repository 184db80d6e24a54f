"""ModelOpt's config: `quantization_config` of config.json, or `hf_quant_config.json` beside it.

The older file nests all in an object `quantization`; the newer form is flat, has `ignore` for
`exclude_modules`, `kv_cache_scheme` for `kv_cache_quant_algo`, and `config_groups` in the words of
compressed-tensors. What decides is `quant_algo`, under MIXED_PRECISION the one that `quantized_layers`
has for a layer: groups follow from it, and not always rightly (Qwen3.6-35B-A3B's say that inputs are
quantized of what is W4A16_NVFP4). As in vLLM they decide in one case alone: an NVFP4 none of whose
groups quantizes inputs is W4A16_NVFP4.

The columns of an AWQ group are said in any of four places: beside `quant_algo`, in `config_groups`, and
in either of the file beside config.json, which alone has them in the newer form of W4A16_AWQ. Those
that say it must agree, and where none does the scales' shape tells.

Which linears are quantized is told by their tensors. The lists of others are not to be relied on:
Nemotron-3-Super-FP8's and Ultra-NVFP4's are missing, and routers are on none that was written with
transformers 5, as ModelOpt's own `_get_unquantized_moe_router_names` says. What a list does name must
not be quantized, and what `quantized_layers` names must be.
Source: ModelOpt 0.47, `get_quant_config`, `convert_hf_quant_config_format`; vLLM 0.33, `modelopt.py`.

In names of modules, in `exclude_modules` and `quantized_layers`, a beginning `model` or
`language_model` doesn't count.
"""

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scoremode.checkpoint.model_files import MODELOPT
from scoremode.errors import CheckpointError
from scoremode.schemes.fields import Fields, TensorFormat, UnreadCache, declared_cache, not_decoded
from scoremode.schemes.patterns import Patterns, plain

_GLOB = frozenset("*?[")


def around(name: str) -> Iterator[str]:
    """The name itself, then those of the modules around it, the innermost first."""
    while name:
        yield name
        name = name.rpartition(".")[0]


class Names:
    """A list of names and of patterns with `*`, `?` and `[…]`, as fnmatch takes them.

    A name stands for all below it too (MiniMax-M3's `vision_tower`). Raises CheckpointError, naming
    `where`, for a pattern that isn't supported.
    """

    def __init__(self, names: Iterable[str], where: str):
        exact, starts, others = set(), [], []
        for name in map(plain, names):
            if _GLOB.isdisjoint(name):
                exact.add(name)
            elif _GLOB.isdisjoint(name[:-1]) and name.endswith("*"):
                # Nearly all of them, and published lists have hundreds.
                starts.append(name[:-1])
            else:
                others.append(f"re:{fnmatch.translate(name)}")
        self._exact, self._starts = frozenset(exact), tuple(starts)
        self._patterns = Patterns(others, where)

    def has(self, module: str) -> bool:
        name = plain(module)
        return (
            not self._exact.isdisjoint(around(name))
            or name.startswith(self._starts)
            or self._patterns.matches(name)
        )


METHOD = "quantization method 'modelopt'"
_MIXED = "MIXED_PRECISION"
# The columns that share a scale where no group_size is said, None where the tensors tell or there are
# no groups, and whether it may be another.
_GROUPS = {
    "FP8": (None, False),
    "FP8_PER_CHANNEL_PER_TOKEN": (None, False),
    "FP8_PB_WO": (128, True),
    "MXFP8": (32, False),
    "NVFP4": (16, False),
    "W4A16_NVFP4": (16, False),
    "NVFP4_AWQ": (16, False),
    "W4A16_AWQ": (None, True),
    "W4A8_AWQ": (None, True),
}
# Fields that decide something, and those that say again, or of whom, what others say.
_KNOWN = frozenset(
    (
        *("quant_algo", "quantization", "group_size", "quantized_layers", "config_groups"),
        *("ignore", "exclude_modules", "kv_cache_scheme", "kv_cache_quant_algo"),
        *("has_zero_point", "pre_quant_scale", "quant_method", "producer"),
    )
)
_OF_LAYER = frozenset(("quant_algo", "group_size", "has_zero_point", "pre_quant_scale"))
_CACHES = {
    "FP8": TensorFormat(8, "float", "tensor"),
    "INT8": TensorFormat(8, "int", "tensor"),
    "NVFP4": TensorFormat(4, "float", "tensor_group", 16),
    "NVFP4_AFFINE": TensorFormat(4, "float", "tensor_group", 16, symmetric=False),
}


@dataclass(frozen=True)
class Algorithm:
    """A `quant_algo` in capitals, and the columns that share a scale of it: None if all do, and for AWQ
    where no config says it."""

    name: str
    group: int | None


@dataclass(frozen=True, eq=False)
class ModelOptConfig:
    """The fields of the config that decide what a weight means.

    - `algorithm`: of all quantized linears; None where each of `layers` has its own, and where none is
      quantized.
    - `stated`: `quant_algo` as the config has it, in capitals.
    - `lists_excluded`: whether there is a list of what is excluded.
    - `layers`: by name, without beginnings that `plain` takes away; one may hold many linears.
    """

    stated: str | None
    algorithm: Algorithm | None
    layers: Mapping[str, Algorithm]
    excluded: Names
    kv_cache: TensorFormat | UnreadCache | None = None
    lists_excluded: bool = True

    def algorithm_of(self, module: str) -> Algorithm | None:
        """The algorithm of a module that is quantized, None where the config names none for it."""
        if self.algorithm is not None:
            return self.algorithm
        return next((self.layers[n] for n in around(plain(module)) if n in self.layers), None)

    def claims(self, module: str) -> bool:
        """Tells whether `quantized_layers` names the module, or one around it."""
        return (
            self.algorithm is None
            and self.algorithm_of(module) is not None
            and not self.excluded.has(module)
        )


def parse_modelopt(
    config: Mapping[str, Any], beside: Mapping[str, Any] | None = None
) -> ModelOptConfig:
    """Reads a config, and checks it against the file `beside` it.

    A cache that only that file declares is declared. Raises UnsupportedFormat for what is not decoded,
    CheckpointError for what can't be understood, and where the two differ about an algorithm.
    """
    own = _parse(Fields(config, method=METHOD))
    if beside is None:
        return own
    other = _parse(Fields(beside, MODELOPT, METHOD))
    if own.stated != other.stated:
        raise CheckpointError(
            f"config.json says quant_algo {own.stated}, and {MODELOPT} beside it {other.stated}"
        )
    algorithm, layers = own.algorithm, dict(own.layers)
    if algorithm is not None and other.algorithm is not None:
        algorithm = _agreed("", algorithm, replace(other.algorithm, name=algorithm.name))
    for name in own.layers.keys() & other.layers.keys():
        layers[name] = _agreed(f"{name}: ", own.layers[name], other.layers[name])
    caches = own.kv_cache, other.kv_cache
    read = next((cache for cache in caches if isinstance(cache, TensorFormat)), None)
    cache = read or own.kv_cache or other.kv_cache
    lists = own.lists_excluded
    return ModelOptConfig(own.stated, algorithm, layers, own.excluded, cache, lists)


def _agreed(where: str, own: Algorithm, other: Algorithm) -> Algorithm:
    """The algorithm of linears that both config.json and the file beside it describe."""
    if own.name != other.name:
        raise CheckpointError(
            f"{where}config.json says quant_algo {own.name}, and {MODELOPT} beside it {other.name}"
        )
    if None not in (own.group, other.group) and own.group != other.group:
        raise CheckpointError(
            f"{where}config.json says group_size {own.group}, and {MODELOPT} beside it {other.group}"
        )
    return own if own.group is not None else other


def _parse(outer: Fields) -> ModelOptConfig:
    _refuse_unknown(outer, _KNOWN)
    fields = outer.object("quantization") or outer
    _refuse_unknown(fields, _KNOWN)
    stated = fields.text("quant_algo")
    stated = stated and stated.upper()
    algorithm, layers = None, {}
    if stated == _MIXED:
        layers = _layers(fields, outer)
    elif stated is not None:
        algorithm = _algorithm(fields, outer)
        if stated == "NVFP4" and _is_weights_alone(outer):
            algorithm = replace(algorithm, name="W4A16_NVFP4")
    elif fields is outer:
        raise CheckpointError(f"{METHOD} without a quant_algo")
    excluded = fields.names("exclude_modules") + fields.names("ignore")
    return ModelOptConfig(
        stated,
        algorithm,
        layers,
        Names(excluded, "exclude_modules"),
        declared_cache(lambda: _cache(fields)),
        any(fields.any(name) is not None for name in ("exclude_modules", "ignore")),
    )


def _layers(fields: Fields, outer: Fields) -> dict[str, Algorithm]:
    layers = fields.object("quantized_layers")
    if layers is None:
        raise CheckpointError(f"{METHOD} with quant_algo {_MIXED}, and no quantized_layers")
    result: dict[str, Algorithm] = {}
    for name in layers:
        layer = layers.object(name)
        if layer is None:
            raise layers.wrong(name, "an object")
        _refuse_unknown(layer, _OF_LAYER)
        algorithm = _algorithm(layer, outer, name)
        found = result.setdefault(plain(name), algorithm)
        if found != algorithm:
            raise CheckpointError(
                f"quantized_layers have two quant_algo for {plain(name)}: {found.name} and "
                f"{algorithm.name}"
            )
    return result


def _group_sizes(outer: Fields, layer: str | None) -> dict[str, int]:
    """The weights' group sizes in `config_groups`, by the group: all of them, or those whose
    `targets` name a layer."""
    groups, found = outer.object("config_groups"), {}
    for name in groups or ():
        group = groups.object(name) if groups is not None else None
        weights = group.object("weights") if group is not None else None
        if group is None or weights is None:
            continue
        size = weights.whole("group_size")
        if size is not None and (layer is None or layer in group.names("targets")):
            found[f"config_groups, {name}"] = size
    return found


def _algorithm(fields: Fields, outer: Fields, layer: str | None = None) -> Algorithm:
    """The algorithm that `fields` say, of all linears or of one `layer`; `outer` has the groups."""
    name = (fields.text("quant_algo") or "").upper()
    if name not in _GROUPS:
        raise not_decoded(METHOD, "quant_algo", fields.any("quant_algo"))
    if fields.flag("has_zero_point"):
        raise not_decoded(METHOD, "has_zero_point", True)
    usual, others = _GROUPS[name]
    # A zero is written for layers that have none.
    size = fields.whole("group_size") or None
    if usual is None and others:
        # For other algorithms the groups' sizes follow from this, or are made up.
        for where, said in _group_sizes(outer, layer).items():
            if size not in (None, said):
                raise CheckpointError(f"{METHOD} with group_size {size}, and {said} in {where}")
            size = said
    elif usual is None:
        return Algorithm(name, None)
    size = usual if size is None else size
    if size is None:
        return Algorithm(name, None)
    if not 0 < size < 1 << 31:
        raise fields.wrong("group_size", "a number of columns")
    if size != usual and not others:
        raise not_decoded(METHOD, f"quant_algo {name} and group_size", size)
    return Algorithm(name, size)


def _is_weights_alone(outer: Fields) -> bool:
    groups = outer.any("config_groups")
    return (
        isinstance(groups, Mapping)
        and bool(groups)
        and all(
            isinstance(group, Mapping) and group.get("input_activations") is None
            for group in groups.values()
        )
    )


def _cache(fields: Fields) -> TensorFormat | None:
    """The cache's format, in either form of the config."""
    scheme, name = fields.any("kv_cache_scheme"), "kv_cache_scheme"
    if scheme and isinstance(scheme, Mapping):
        words = scheme.get("type"), scheme.get("num_bits"), scheme.get("dynamic", False)
        if words == ("float", 8, False):
            return _CACHES["FP8"]
        raise not_decoded(METHOD, name, scheme)
    if not scheme:
        name = "kv_cache_quant_algo"
    algorithm = fields.text(name)
    if algorithm is None or algorithm.upper() == "NONE":
        return None
    if algorithm.upper() not in _CACHES:
        raise not_decoded(METHOD, name, algorithm)
    return _CACHES[algorithm.upper()]


def _refuse_unknown(fields: Fields, known: frozenset[str]) -> None:
    for name in fields:
        if name not in known and fields.any(name):
            raise not_decoded(METHOD, name, fields.any(name))
