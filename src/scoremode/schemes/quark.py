"""The quantized modules of a checkpoint of AMD Quark, and their Schemes.

Weights as Quark stores them: float8 and int8 with a scale a tensor or row, integers of 4 bits under
scales of groups, e2m1 under powers of two.

The effective weight is code times scale in float32, rounded once more to the dtype that is computed
in, whatever dtype the scales have.
Source: amd-quark 0.13, `StaticScaledRealQuantizer`, `dequantize`.

What a linear would be stored as, by a `quantization_config` of AMD Quark alone.

Scales have 32 bits where they are no powers of two. Those of a cache are left out: two numbers a layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import UnsupportedFormat
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
from scoremode.schemes.foreseen import Foresee, Foreseen, Linear
from scoremode.schemes.headers import SCALES, Headers
from scoremode.schemes.library import Library
from scoremode.schemes.packed import Packed
from scoremode.schemes.quark_config import METHOD, Layer, QuarkConfig, parse_quark

__all__ = ["Modules", "QuarkFloat8", "QuarkInt4", "QuarkInt8", "QuarkMxfp4", "foresee"]


def foresee(config: Mapping[str, Any]) -> Foresee:
    """Raises CheckpointError, UnsupportedFormat for a config that can't be read."""
    parsed = parse_quark(config)

    def tensors(linear: Linear) -> Mapping[str, Foreseen] | None:
        layer = parsed.of(linear.module)
        if layer.weights is None or parsed.excludes(linear.module):
            return None
        return {**_weight(linear, layer.weights), **_inputs(layer)}

    return tensors


def _weight(linear: Linear, weights: TensorFormat) -> dict[str, Foreseen]:
    scaling = Scaling(linear.shape, weights.strategy, weights.group_size, block=weights.block)
    scales = scaling.stored_shape
    if weights.is_mx and weights.bits == 4:
        codes = Foreseen("U8", (linear.shape[0], -(-linear.shape[1] // 2)))
        return {"weight": codes, "weight_scale": Foreseen("U8", scales)}
    if weights.bits == 4 and weights.type != "float" and weights.strategy == "group":
        return _in_words(linear, weights)
    if weights.bits != 8 or weights.strategy not in ("tensor", "channel", "block"):
        raise UnsupportedFormat(
            f"{linear.module}: {METHOD} with weights {weights}: what is stored is known from its "
            "tensors alone"
        )
    of_scales = {"tensor": (), "channel": scales[:1]}.get(weights.strategy, scales)
    scale = {"weight_scale": Foreseen("F32", of_scales)}
    if weights.type == "int":
        return {
            "weight": Foreseen("I8", linear.shape),
            **scale,
            "weight_zero_point": Foreseen("I8", of_scales),
        }
    return {"weight": Foreseen("F8_E4M3", linear.shape), **scale}


def _in_words(linear: Linear, weights: TensorFormat) -> dict[str, Foreseen]:
    """Words of eight outputs; zero points of symmetric ones are stored as well."""
    (rows, columns), size = linear.shape, weights.group_size
    if rows % 8 or size is None or columns % size:
        raise UnsupportedFormat(
            f"{linear.module}: {METHOD} with weights {weights}, which {rows} x {columns} don't fill"
        )
    return {
        "weight": Foreseen("I32", (columns, rows // 8)),
        "weight_scale": Foreseen("F32", (columns // size, rows)),
        "weight_zero_point": Foreseen("I32", (columns // size, rows // 8)),
    }


def _inputs(layer: Layer) -> dict[str, Foreseen]:
    if layer.inputs is None or layer.inputs.dynamic:
        return {}
    zero = {"input_zero_point": Foreseen("I8", ())} if layer.inputs.type == "int" else {}
    return {"input_scale": Foreseen("F32", ())} | zero


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


class Modules(Library):
    """Linears with a `weight_scale`."""

    methods = frozenset(("quark",))
    marks = frozenset(("weight_scale",))
    records = _OUTPUT

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]):
        self._config = parse_quark(config)
        self._checkpoint = checkpoint
        self._alike: dict[_Scheme, _Scheme] = {}
        if not any(name.endswith(".weight_scale") for name in checkpoint.tensors):
            raise UnsupportedFormat(f"{METHOD}, and no tensor is a weight_scale: not decoded")

    @property
    def config(self) -> QuarkConfig:
        return self._config

    @staticmethod
    def foresee(config: Mapping[str, Any], model: Mapping[str, Any]) -> Foresee:
        return foresee(config)

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[_Scheme, str]:
        stored = Headers(module, tensors)
        if self.config.excludes(module):
            raise stored.wrong("stored quantized, and exclude names it")
        layer = self.config.of(module)
        weights = layer.weights
        if weights is None:
            raise stored.wrong("stored quantized, and the config says nothing of its weight")
        of_cache = _OUTPUT if self.config.kv_cache is not None else frozenset()
        if unknown := set(tensors) - _READ - of_cache:
            names = ", ".join(sorted(unknown))
            raise UnsupportedFormat(f"{module}: {METHOD} with {names} is not supported")
        inputs = self._inputs(stored, layer.inputs)
        scheme = self._scheme(stored, weights, inputs)
        return self._alike.setdefault(scheme, scheme), "quark"

    def _scheme(self, stored: Headers, weights: TensorFormat, inputs: Inputs | None) -> _Scheme:
        if weights.bits == 4 and weights.type != "float" and weights.strategy == "group":
            return self._in_words(stored, weights, inputs)
        kind = (weights.type, weights.bits, weights.strategy, weights.is_mx)
        if kind == ("float", 4, "group", True) and weights.group_size == 32:
            rows, width = stored.matrix("weight", ("U8",))
            shape = rows, 2 * width
        elif weights.bits == 8 and weights.strategy in ("tensor", "channel", "block"):
            shape = stored.matrix("weight", ("I8",) if weights.type == "int" else ("F8_E4M3",))
        else:
            raise UnsupportedFormat(
                f"{stored.module}: {METHOD} with weights {weights}: not decoded"
            )
        scaling = Scaling(shape, weights.strategy, weights.group_size, block=weights.block)
        if weights.strategy == "block":
            stored.expect("weight_scale", SCALES, [scaling.stored_shape])
        elif weights.strategy == "group":
            stored.expect("weight_scale", ("U8", "F8_E8M0"), [scaling.stored_shape])
        elif weights.strategy == "channel":
            stored.expect("weight_scale", SCALES, [(shape[0],), (shape[0], 1)])
        else:
            stored.expect_one("weight_scale", SCALES)
        self._expect_zeros(stored, "weight_zero_point")
        return _build(scaling, weights, inputs)

    def _in_words(self, stored: Headers, weights: TensorFormat, inputs: Inputs | None) -> QuarkInt4:
        """Words of eight outputs, transposed, and so are their scales."""
        columns, width = stored.matrix("weight", ("I32",))
        scaling, size = (
            Scaling((8 * width, columns), "group", weights.group_size),
            weights.group_size,
        )
        if size is None or columns % size:
            raise stored.wrong(f"{columns} inputs are no whole number of groups of {size}")
        stored.expect("weight_scale", SCALES, [(columns // size, 8 * width)])
        if not weights.symmetric or "weight_zero_point" in stored.tensors:
            stored.expect("weight_zero_point", ("I32",), [(columns // size, width)])
        if weights.symmetric:
            self._expect_zeros(stored, "weight_zero_point")
        return QuarkInt4(
            scaling,
            weights.type == "int",
            not weights.symmetric,
            self.config.shuffled,
            inputs=inputs,
        )

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
            stored.check_input("input_scale")
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
        if any(bytes(self._checkpoint.read_bytes(info.name))):
            raise stored.wrong(f"its {suffix} is not zero, and the config says symmetric")


def _build(scaling: Scaling, weights: TensorFormat, inputs: Inputs | None) -> _Scheme:
    if weights.bits == 4:
        return QuarkMxfp4(scaling, 4, inputs=inputs)
    if weights.type == "int":
        return QuarkInt8(scaling, 8, inputs=inputs)
    return QuarkFloat8(scaling, inputs=inputs)
