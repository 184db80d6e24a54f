"""`quantization_config` of AMD Quark's exports.

One config for all linears, others by the pattern of a name, the first that fits, and a list of
names that are not quantized. A quantized cache is a quantized output of the linears of keys and
values.
Source: amd-quark 0.13, `QConfig`, `JsonExporterConfig`; vLLM 0.33, `QuarkConfig`.
"""

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.fields import Fields, TensorFormat, UnreadCache, declared_cache, not_decoded
from scoremode.schemes.patterns import Patterns, plain

METHOD = "quantization method 'quark'"
_SPECIAL = frozenset("*?[")
_TYPES = {
    "fp8_e4m3": ("float", 8),
    "int8": ("int", 8),
    "int4": ("int", 4),
    "uint4": ("uint", 4),
    "fp4": ("float", 4),
}
# Dtypes of weights alone, eight to a word, and whether they are symmetric: codes from 0 on never are.
_IN_WORDS = {"int4": (True, False), "uint4": (False,)}
# Algorithms all of whose result is in the weights and norms that are stored.
_FOLDED = ("smooth", "autosmoothquant", "awq", "gptq", "gptaq", "autoround", "qronos")
# How a word's eight codes lie: shuffled or not.
_PACK_METHODS = {"reorder": True, "order": False}
# Of keys and values; of queries too in some, which no cache holds.
_OF_CACHE = ("k_proj", "v_proj", "q_proj", "qkv_proj")


@dataclass(frozen=True)
class Layer:
    """The formats of a linear's weight and input, None for what is not quantized."""

    weights: TensorFormat | None
    inputs: TensorFormat | None


@dataclass(frozen=True)
class QuarkConfig:
    """The fields of the config that decide what a weight and an input mean.

    - `default`: of linears that no pattern of `layers` names; `excluded`: names and patterns.
    - `shuffled`: whether a word's codes lie 0 2 4 6 1 3 5 7.
    """

    default: Layer
    layers: Mapping[str, Layer]
    excluded: tuple[str, ...]
    kv_cache: TensorFormat | UnreadCache | None
    shuffled: bool

    def claims(self, module: str) -> bool:
        """True for a linear with a config that `exclude` doesn't name: exports list every other one."""
        return self.of(module).weights is not None and not self.excludes(module)

    def excludes(self, module: str) -> bool:
        """Tells whether the list names the module, whatever it begins with, or its weight."""
        names = {module, plain(module), f"{module}.weight"}
        return plain(module) in self._names or any(map(self._patterns.matches, sorted(names)))

    def of(self, module: str) -> Layer:
        if module in self.layers:
            return self.layers[module]
        found = (layer for pattern, layer in self._of_pattern if pattern.matches(module))
        return next(found, self.default)

    def compile(self) -> None:
        """Raises CheckpointError for patterns that don't compile, before any is looked for."""
        _ = self._patterns, self._of_pattern

    # Lists have hundreds of plain names, and a checkpoint tens of thousands of experts.
    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(map(plain, self.excluded))

    @cached_property
    def _patterns(self) -> Patterns:
        names = dict.fromkeys(n for name in self.excluded for n in (name, plain(name)))
        return _matching(names, "exclude")

    @cached_property
    def _of_pattern(self) -> list[tuple[Patterns, Layer]]:
        return [
            (_matching((name,), "layer_quant_config"), layer)
            for name, layer in self.layers.items()
            if _is_pattern(name)
        ]


def _is_pattern(name: str) -> bool:
    return name.startswith("re:") or not _SPECIAL.isdisjoint(name)


def _matching(names: Iterable[str], where: str) -> Patterns:
    """The patterns among the names: regular expressions after `re:`, else as fnmatch takes
    them."""
    special = filter(_is_pattern, names)
    return Patterns(
        (name if name.startswith("re:") else f"re:{fnmatch.translate(name)}" for name in special),
        where,
    )


def parse_quark(config: Mapping[str, Any]) -> QuarkConfig:
    """Reads a `quantization_config` whose `quant_method` is `quark`.

    Raises UnsupportedFormat for what is not decoded, CheckpointError for what can't be understood.
    """
    fields = Fields(config, "its top")
    for name in ("layer_type_quant_config", "softmax_quant_spec"):
        if fields.any(name):
            raise not_decoded(METHOD, name, fields.any(name))
    _refuse_algorithms(fields)
    export = fields.object("export")
    if export is None:
        raise UnsupportedFormat(f"{METHOD} without export (Quark before 1.0): not decoded")
    form = export.text("weight_format", "real_quantized")
    if form != "real_quantized":
        raise not_decoded(METHOD, "weight_format", form)
    method = export.text("pack_method", "reorder")
    if method not in _PACK_METHODS:
        raise not_decoded(METHOD, "pack_method", method)
    cache: list[TensorFormat | UnreadCache | None] = []
    default = _layer(fields.object("global_quant_config"), "global_quant_config", cache)
    layers = {}
    if (own := fields.object("layer_quant_config")) is not None:
        for pattern in config["layer_quant_config"]:
            layers[pattern] = _layer(own.object(pattern), pattern, cache)
    named = fields.object("kv_cache_quant_config")
    for pattern in config["kv_cache_quant_config"] if named else ():
        if named is not None and (outputs := named.object(pattern)) is not None:
            cache.append(declared_cache(partial(_tensor, outputs, "output_tensors")))
    excluded, shuffled = fields.names("exclude"), _PACK_METHODS[method]
    result = QuarkConfig(default, layers, excluded, _one_cache(cache), shuffled)
    result.compile()
    return result


def _refuse_algorithms(fields: Fields) -> None:
    """Raises UnsupportedFormat for algorithms that leave weights which want other inputs."""
    for field in ("algo_config", "pre_quant_opt_config"):
        said = fields.any(field)
        for algorithm in said if isinstance(said, list) else [said] if said else []:
            one = Fields(algorithm, f"{fields.where}, {field}")
            # Its R1 and R2 are in the weights of both sides; it has the other two if not told.
            is_folded = one.any("name") == "rotation" and not any(
                one.any(name, default)
                for name, default in (("r3", True), ("r4", True), ("online_r1_rotation", False))
            )
            if one.any("name") not in _FOLDED and not is_folded:
                raise not_decoded(METHOD, field, algorithm)


def _one_cache(
    found: Iterable[TensorFormat | UnreadCache | None],
) -> TensorFormat | UnreadCache | None:
    """The format that all say, None if none does, or why there is none that could be read."""
    said = list(dict.fromkeys(cache for cache in found if cache is not None))
    unread = next((cache for cache in said if isinstance(cache, UnreadCache)), None)
    if unread is not None or len(said) < 2:
        return unread or next(iter(said), None)
    kinds = ", ".join(sorted(cache.described for cache in said))
    return UnreadCache(f"{METHOD} with caches of several formats ({kinds}): not decoded")


def _layer(
    fields: Fields | None, name: str, cache: list[TensorFormat | UnreadCache | None]
) -> Layer:
    """A linear's own config; what it says of its output goes to `cache`."""
    if fields is None:
        return Layer(None, None)
    if bias := fields.any("bias"):
        raise not_decoded(METHOD, f"{name}, bias", bias)
    if name.endswith(_OF_CACHE):
        if not name.endswith("q_proj"):
            cache.append(declared_cache(partial(_tensor, fields, "output_tensors")))
    elif (outputs := _tensor(fields, "output_tensors")) is not None:
        raise not_decoded(METHOD, f"{name}, output_tensors", outputs.described)
    return Layer(_tensor(fields, "weight"), _tensor(fields, "input_tensors"))


def _tensor(fields: Fields, name: str) -> TensorFormat | None:
    value = fields.any(name)
    if value is None:
        return None
    if isinstance(value, list):
        # Formats in two stages: FP8 and INT4, NVFP4.
        raise not_decoded(METHOD, f"{fields.where}, {name}", value)
    spec = fields.object(name)
    assert spec is not None
    dtype, scheme = spec.text("dtype"), spec.text("qscheme")
    axis, size = spec.whole("ch_axis"), spec.whole("group_size")
    of_input = name != "weight"
    if dtype not in _TYPES or (of_input and dtype in _IN_WORDS):
        raise not_decoded(METHOD, f"{spec.where}, dtype", dtype)
    strategies = {
        "per_tensor": "tensor",
        "per_channel": "token" if of_input else "channel",
        "per_group": "group",
    }
    if dtype == "fp8_e4m3" and not of_input:
        strategies["per_block"] = "block"
    if scheme not in strategies:
        raise not_decoded(METHOD, f"{spec.where}, qscheme", scheme)
    if scheme == "per_channel" and axis != (1 if of_input else 0) and (not of_input or axis != -1):
        raise not_decoded(METHOD, f"{spec.where}, ch_axis", axis)
    if scheme == "per_group" and (axis not in (1, -1) or size is None or size < 1):
        raise not_decoded(METHOD, f"{spec.where}, ch_axis {axis} and group_size", size)
    block = spec.any("block_size") if scheme == "per_block" else None
    if scheme == "per_block":
        match block:
            case [int(rows), int(columns)] if 0 < rows < 1 << 31 and 0 < columns < 1 << 31:
                block = rows, columns
            case _:
                raise spec.wrong("block_size", "rows and columns")
    symmetric = spec.flag("symmetric") is not False
    if symmetric not in _IN_WORDS.get(dtype, (True,)):
        raise not_decoded(METHOD, f"{spec.where}, symmetric", symmetric)
    zero_type = spec.text("zero_point_type")
    if zero_type not in (None, "int32"):
        raise not_decoded(METHOD, f"{spec.where}, zero_point_type", zero_type)
    scale = spec.text("scale_format")
    if scale not in (None, "float32", "e8m0") or (scale == "e8m0") != (dtype == "fp4"):
        raise not_decoded(METHOD, f"{spec.where}, scale_format", scale)
    kind, bits = _TYPES[dtype]
    dynamic = spec.flag("is_dynamic", False) or False
    # Of weights they say how stored scales came about, of inputs how they are made.
    mode, rounds = spec.text("scale_calculation_mode"), spec.text("round_method")
    if of_input and scale == "e8m0" and mode not in (None, "even"):
        raise not_decoded(METHOD, f"{spec.where}, scale_calculation_mode", mode)
    if of_input and rounds not in (None, "half_even", "round"):
        raise not_decoded(METHOD, f"{spec.where}, round_method", rounds)
    if dynamic and not of_input:
        raise CheckpointError(
            f"quantization_config can't be understood: {spec.where}: weights with dynamic scales"
        )
    return TensorFormat(
        bits,
        kind,
        strategies[scheme],
        size if scheme == "per_group" else None,
        symmetric,
        dynamic=dynamic,
        block=block,
        scale_dtype="uint8" if scale == "e8m0" else None,
    )
