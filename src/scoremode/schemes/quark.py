"""AMD Quark: float8 and int8 with a scale a tensor or row, integers of 4 bits under scales of groups,
e2m1 under powers of two.

The effective weight is code times scale in float32, rounded once more to the dtype that is computed
in, whatever dtype the scales have. By a config alone scales have 32 bits where they are no powers of
two, and those of a cache are left out: two numbers a layer.
Source: amd-quark 0.13, `StaticScaledRealQuantizer`, `dequantize`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.compressed_tensors_weights import (
    FloatQuantized,
    IntQuantized,
    Mx,
    activation_label,
)
from scoremode.schemes.decoding.codes import Codes
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.decoding.unpack import Elements
from scoremode.schemes.fields import TensorFormat
from scoremode.schemes.layout import POWERS_OF_TWO, SCALES, Headers, Layout, Linear, Tensor, single
from scoremode.schemes.library import Library
from scoremode.schemes.packed import Packed
from scoremode.schemes.quark_config import METHOD, Layer, QuarkConfig, parse_quark


class QuarkFloat8(FloatQuantized):
    """Float8 whose products are rounded in float32."""

    def rounding(self, scale: torch.Tensor) -> torch.dtype:
        return torch.float32


class QuarkInt8(IntQuantized):
    """Integers of 8 bits whose products are rounded in float32."""

    def rounding(self, scale: torch.Tensor) -> torch.dtype:
        return torch.float32


@dataclass(frozen=True)
class QuarkInt4(Packed):
    """Integers of 4 bits, eight outputs to a word; products are rounded in float32.

    - `weight` int32 [I, O / 8]; `weight_scale` [groups, O]; `weight_zero_point` int32 [groups, O / 8],
      codes as the weight's, read only where `asymmetric`.
    - `signed`: in two's complement (`int4`), else from 0 on (`uint4`).
    - `shuffled`: a word's outputs lie 0 2 4 6 1 3 5 7 (`pack_method: reorder`), else in order.
    """

    signed: bool
    asymmetric: bool
    shuffled: bool

    @property
    def label(self) -> str:
        marks = " asym" if self.asymmetric else ""
        return f"W4{activation_label(self.inputs)} {self.scaling.label}{marks}"

    @property
    def tensors(self) -> tuple[str, ...]:
        zero_points = ("weight_zero_point",) if self.asymmetric else ()
        return ("weight", "weight_scale", *zero_points)

    @property
    def codes(self) -> Codes:
        return Codes("int", 15 if self.asymmetric else 8, self.scaling.columns_of_one)

    @property
    def elements(self) -> Elements:
        return Elements(4, signed=self.signed, order="outputs", shuffled=self.shuffled)

    def rounding(self, scale: torch.Tensor) -> torch.dtype:
        return torch.float32


class QuarkMxfp4(Mx):
    """MXFP4 with its codes in `weight`."""

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "weight_scale")


_Scheme = QuarkFloat8 | QuarkInt4 | QuarkInt8 | QuarkMxfp4
_READ = frozenset(
    ("weight", "weight_scale", "weight_zero_point", "input_scale", "input_zero_point", "bias")
)
# Of the cache, beside the linears of keys and values.
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
    method = METHOD
    required = "weight_scale"
    marks = frozenset(("weight_scale",))
    records = _OUTPUT

    def parse(self, config: Mapping[str, Any]) -> QuarkConfig:
        return parse_quark(config)

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

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[_Scheme, str]:
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

    def _scheme(self, stored: Headers, weights: TensorFormat, inputs: Inputs | None) -> _Scheme:
        height, width = stored.matrix("weight")
        shape = (height, 2 * width) if weights.is_mx and weights.bits == 4 else (height, width)
        if in_words := _in_words(weights):
            shape = 8 * width, height
        stored.match(_layout(stored.module, shape, weights))
        if weights.symmetric:
            self._expect_zeros(stored, "weight_zero_point")
        scaling = Scaling(shape, weights.strategy, weights.group_size, block=weights.block)
        if in_words:
            signed, asymmetric = weights.type == "int", not weights.symmetric
            return QuarkInt4(scaling, signed, asymmetric, self.config.shuffled, inputs=inputs)
        if weights.bits == 4:
            return QuarkMxfp4(scaling, 4, inputs=inputs)
        if weights.type == "int":
            return QuarkInt8(scaling, 8, inputs=inputs)
        return QuarkFloat8(scaling, inputs=inputs)

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
