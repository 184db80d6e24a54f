"""AMD Quark: float8 and int8 with a scale a tensor or row, integers of 4 bits under scales of groups,
e2m1 under powers of two.

The effective weight is code times scale in float32, rounded once more to the dtype that is computed
in, whatever dtype the scales have. By a config alone scales have 32 bits where they are no powers of
two, and those of a cache are left out: two numbers a layer.

A `quantization_config` has one config for all linears, others by the pattern of a name, of which the
first that fits counts, and a list of names that are not quantized. A quantized cache is a quantized
output of the linears of keys and values.
Source: amd-quark 0.13, `StaticScaledRealQuantizer`, `dequantize`, `QConfig`, `JsonExporterConfig`;
vLLM 0.33, `QuarkConfig`.
"""

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.compressed_tensors_weights import (
    float_quantized,
    int_quantized,
    integers_label,
    mx,
)
from scoremode.schemes.decoding.codes import Codes, Scaling
from scoremode.schemes.decoding.unpack import Elements
from scoremode.schemes.fields import Fields, TensorFormat, UnreadCache, declared_cache, not_decoded
from scoremode.schemes.layout import POWERS_OF_TWO, SCALES, Headers, Layout, Linear, Tensor, single
from scoremode.schemes.library import Library
from scoremode.schemes.packed import Packed
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
# Whether a word's eight codes are shuffled.
_PACK_METHODS = {"reorder": True, "order": False}
# Linears of keys and values, and in some configs of queries, which no cache holds.
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
    """Reads a `quantization_config` whose `quant_method` is `quark`."""
    fields = Fields(config, method=METHOD)
    fields.refuse("layer_type_quant_config", "softmax_quant_spec")
    _refuse_algorithms(fields)
    export = fields.object("export")
    if export is None:
        raise UnsupportedFormat(f"{METHOD} without export (Quark before 1.0): not decoded")
    export.choice("weight_format", ("real_quantized",))
    method = export.choice("pack_method", _PACK_METHODS, "reorder") or ""
    cache: list[TensorFormat | UnreadCache | None] = []
    default = _layer(fields.object("global_quant_config"), "global_quant_config", cache)
    own = fields.object("layer_quant_config")
    layers = {name: _layer(own.object(name), name, cache) for name in own} if own else {}
    named = fields.object("kv_cache_quant_config")
    for pattern in named or ():
        if named is not None and (outputs := named.object(pattern)) is not None:
            cache.append(declared_cache(partial(_tensor, outputs, "output_tensors")))
    excluded, shuffled = fields.names("exclude"), _PACK_METHODS[method]
    result = QuarkConfig(default, layers, excluded, _one_cache(cache), shuffled)
    # Patterns that don't compile are found here, whatever is asked of the config later.
    _ = result._patterns, result._of_pattern
    return result


def _refuse_algorithms(fields: Fields) -> None:
    """Raises UnsupportedFormat for algorithms that leave weights which want other inputs."""
    for field in ("algo_config", "pre_quant_opt_config"):
        said = fields.any(field)
        for algorithm in said if isinstance(said, list) else [said] if said else []:
            one = Fields(algorithm, field, METHOD)
            # Its R1 and R2 are in the weights of both sides; it has the other two if not told.
            is_folded = one.any("name") == "rotation" and not any(
                one.any(name, default)
                for name, default in (("r3", True), ("r4", True), ("online_r1_rotation", False))
            )
            if one.any("name") not in _FOLDED and not is_folded:
                raise fields.not_decoded(field, algorithm)


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
    fields.refuse("bias")
    if name.endswith(_OF_CACHE):
        if not name.endswith("q_proj"):
            cache.append(declared_cache(partial(_tensor, fields, "output_tensors")))
    elif (outputs := _tensor(fields, "output_tensors")) is not None:
        raise not_decoded(METHOD, f"{name}, output_tensors", outputs.described)
    return Layer(_tensor(fields, "weight"), _tensor(fields, "input_tensors"))


def _tensor(fields: Fields, name: str) -> TensorFormat | None:
    value = fields.any(name)
    if isinstance(value, list):
        # Formats in two stages: FP8 and INT4, NVFP4.
        raise fields.not_decoded(name, value)
    spec = fields.object(name)
    if spec is None:
        return None
    of_input = name != "weight"
    dtype, scheme = spec.text("dtype"), spec.text("qscheme")
    if dtype not in _TYPES or (of_input and dtype in _IN_WORDS):
        raise spec.not_decoded("dtype", dtype)
    strategies = {
        "per_tensor": "tensor",
        "per_channel": "token" if of_input else "channel",
        "per_group": "group",
    }
    if dtype == "fp8_e4m3" and not of_input:
        strategies["per_block"] = "block"
    if scheme not in strategies:
        raise spec.not_decoded("qscheme", scheme)
    axis, size = spec.whole("ch_axis"), spec.whole("group_size")
    if scheme == "per_channel" and axis not in ((1, -1) if of_input else (0,)):
        raise spec.not_decoded("ch_axis", axis)
    if scheme == "per_group" and (axis not in (1, -1) or size is None or size < 1):
        raise spec.not_decoded(f"ch_axis {axis} and group_size", size)
    block = spec.block("block_size") if scheme == "per_block" else None
    if scheme == "per_block" and block is None:
        raise spec.wrong("block_size", "rows and columns")
    symmetric = spec.flag("symmetric") is not False
    if symmetric not in _IN_WORDS.get(dtype, (True,)):
        raise spec.not_decoded("symmetric", symmetric)
    spec.choice("zero_point_type", ("int32",))
    scale = spec.choice("scale_format", ("float32", "e8m0"))
    if (scale == "e8m0") != (dtype == "fp4"):
        raise spec.not_decoded("scale_format", scale)
    # For weights they say how stored scales came about, for inputs how scales are made.
    mode, rounds = spec.text("scale_calculation_mode"), spec.text("round_method")
    if of_input and scale == "e8m0" and mode not in (None, "even"):
        raise spec.not_decoded("scale_calculation_mode", mode)
    if of_input and rounds not in (None, "half_even", "round"):
        raise spec.not_decoded("round_method", rounds)
    kind, bits = _TYPES[dtype]
    dynamic = spec.flag("is_dynamic", False) or False
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


def weight(
    scaling: Scaling, weights: TensorFormat, inputs: Inputs | None = None, *, shuffled: bool = True
) -> Packed:
    """A weight whose products with scales are rounded in float32; e2m1's are exact.

    Integers of 4 bits lie eight outputs to a word: `weight` int32 [I, O / 8], `weight_scale`
    [groups, O], `weight_zero_point` int32 [groups, O / 8]. A word's outputs lie 0 2 4 6 1 3 5 7 where
    they are `shuffled` (`pack_method: reorder`), else in order.
    """
    if _in_words(weights):
        asymmetric = not weights.symmetric
        return Packed(
            scaling=scaling,
            elements=Elements(4, signed=weights.type == "int", order="outputs", shuffled=shuffled),
            label=integers_label(4, inputs, scaling, asymmetric),
            codes=Codes("int", 15 if asymmetric else 8, scaling.columns_of_one),
            inputs=inputs,
            zero_point="weight_zero_point" if asymmetric else None,
            rounded=torch.float32,
        )
    if weights.bits == 4:
        return mx(scaling, 4, inputs=inputs, weight="weight")
    if weights.type == "int":
        return int_quantized(scaling, 8, inputs=inputs, rounded=torch.float32)
    return float_quantized(scaling, inputs=inputs, rounded=torch.float32)


_READ = frozenset(
    ("weight", "weight_scale", "weight_zero_point", "input_scale", "input_zero_point", "bias")
)
# Suffixes of the cache's tensors, beside the linears of keys and values.
_OUTPUT = frozenset(("output_scale", "output_zero_point"))


# Weights alone don't need it; arithmetic that quantizes the input asks for it when the model is built.
_INPUT_SCALE = single("F32", dtypes=SCALES, optional=True)


def _layout(module: str, shape: tuple[int, int], weights: TensorFormat) -> Layout:
    """The tensors of a linear's weight. Raises UnsupportedFormat, CheckpointError, naming `module`."""
    scaling = Scaling(shape, weights.strategy, weights.group_size, block=weights.block)
    scales, (rows, columns) = scaling.stored_shape, shape
    kind = (weights.type, weights.bits, weights.strategy, weights.is_mx)
    if kind == ("float", 4, "group", True):
        codes = Tensor("U8", (rows, -(-columns // 2)))
        return {"weight": codes, "weight_scale": Tensor("U8", scales, POWERS_OF_TWO)}
    if _in_words(weights):
        return _layout_of_words(module, shape, weights)
    if weights.bits != 8 or weights.strategy not in ("tensor", "channel", "block"):
        raise UnsupportedFormat(f"{module}: {METHOD} with weights {weights}: not decoded")
    scale = Tensor("F32", scales, SCALES)
    if weights.strategy == "tensor":
        scale = single("F32", dtypes=SCALES)
    elif weights.strategy == "channel":
        scale = Tensor("F32", (rows,), SCALES, ((rows,), (rows, 1)))
    codes = Tensor("I8" if weights.type == "int" else "F8_E4M3", shape)
    return {"weight": codes, "weight_scale": scale}


def _layout_of_words(module: str, shape: tuple[int, int], weights: TensorFormat) -> Layout:
    """Words of eight outputs, transposed, and so are their scales; zero points of symmetric weights are
    written as well."""
    (rows, columns), size = shape, weights.group_size
    if size is None or columns % size:
        raise CheckpointError(f"{module}: {columns} inputs are no whole number of groups of {size}")
    groups, words = columns // size, -(-rows // 8)
    return {
        "weight": Tensor("I32", (columns, words)),
        "weight_scale": Tensor("F32", (groups, rows), SCALES),
        "weight_zero_point": Tensor("I32", (groups, words), optional=weights.symmetric),
    }


def _in_words(weights: TensorFormat) -> bool:
    return weights.bits == 4 and weights.type != "float" and weights.strategy == "group"


def _zero_points(layer: Layer, scale: Tensor) -> Layout:
    """The zero points of symmetric integers, which are written beside their scales."""
    weights, inputs = layer.weights, layer.inputs
    zeros = {}
    if weights is not None and (weights.type, weights.bits) == ("int", 8):
        zeros["weight_zero_point"] = Tensor("I8", scale.shape)
    if inputs is not None and inputs.type == "int" and not inputs.dynamic:
        zeros["input_zero_point"] = Tensor("I8", ())
    return zeros


class Modules(Library[QuarkConfig]):
    """Linears with a `weight_scale`."""

    methods = frozenset(("quark",))
    parse = staticmethod(parse_quark)
    method = METHOD
    about = ("`quark`", "FP8, INT8, INT4 and UINT4 by group, MXFP4", "W or W+A")
    required = "weight_scale"
    marks = frozenset(("weight_scale",))
    records = _OUTPUT

    def promise(self, linear: Linear) -> Layout | None:
        module, layer = linear.module, self.config.of(linear.module)
        if layer.weights is None or self.config.excludes(module):
            return None
        (rows, columns), size = linear.shape, layer.weights.group_size
        if _in_words(layer.weights) and (rows % 8 or size is None or columns % size):
            raise UnsupportedFormat(
                f"{module}: {METHOD} with weights {layer.weights}, which {rows} x {columns} don't fill"
            )
        layout = _layout(module, linear.shape, layer.weights)
        static = layer.inputs is not None and not layer.inputs.dynamic
        return {
            **layout,
            **({"input_scale": _INPUT_SCALE} if static else {}),
            **_zero_points(layer, layout["weight_scale"]),
        }

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Packed, str]:
        stored = Headers(module, tensors)
        if self.config.excludes(module):
            raise stored.wrong("stored quantized, and exclude names it")
        layer = self.config.of(module)
        weights = layer.weights
        if weights is None:
            raise stored.wrong("stored quantized, and the config says nothing of its weight")
        of_cache = _OUTPUT if self.config.kv_cache is not None else frozenset()
        stored.refuse_others(_READ | of_cache, METHOD)
        inputs = self._inputs(stored, layer.inputs)
        scheme = self._scheme(stored, weights, inputs)
        return self.alike(scheme, lambda: scheme), "quark"

    def _scheme(self, stored: Headers, weights: TensorFormat, inputs: Inputs | None) -> Packed:
        height, width = stored.matrix("weight")
        shape = (height, 2 * width) if weights.is_mx and weights.bits == 4 else (height, width)
        if _in_words(weights):
            shape = 8 * width, height
        stored.match(_layout(stored.module, shape, weights))
        if weights.symmetric:
            self._expect_zeros(stored, "weight_zero_point")
        scaling = Scaling(shape, weights.strategy, weights.group_size, block=weights.block)
        return weight(scaling, weights, inputs, shuffled=self.config.shuffled)

    def _inputs(self, stored: Headers, declared: TensorFormat | None) -> Inputs | None:
        if declared is None:
            return None
        by = (declared.type, declared.bits, declared.strategy)
        declared = replace(declared, inverse=declared.type == "int")
        if not declared.dynamic:
            if by not in (("float", 8, "tensor"), ("int", 8, "tensor")):
                raise UnsupportedFormat(
                    f"{stored.module}: {METHOD} with inputs {declared.described}: not decoded"
                )
            stored.match({"input_scale": _INPUT_SCALE})
            self._expect_zeros(stored, "input_zero_point")
            return Inputs(declared, ("input_scale",))
        allowed = [(kind, 8, way) for kind in ("float", "int") for way in ("tensor", "token")]
        if by not in allowed and not (declared.is_mx and declared.bits == 4):
            raise UnsupportedFormat(
                f"{stored.module}: {METHOD} with inputs {declared.described}: not decoded"
            )
        return Inputs(declared, ())

    def _expect_zeros(self, stored: Headers, suffix: str) -> None:
        """Zero points of symmetric integers are stored as well. Raises CheckpointError for
        others."""
        info = stored.tensors.get(suffix)
        if info is None:
            return
        if info.dtype not in ("I8", "I32") or len(info.shape) > 2:
            raise stored.wrong(f"its {suffix} is {info.dtype} {list(info.shape)}, not zeros")
        if any(bytes(self.checkpoint.read_bytes(info.name))):
            raise stored.wrong(f"its {suffix} is not zero, and the config says symmetric")
