"""ModelOpt: the quantized modules of a checkpoint that it exported, and their Schemes.

Experts are linears of their own, whatever the library's module is, but for two: those of Llama 4 and
gpt-oss are stored as one, `experts.gate_up_proj` and `experts.down_proj`, as the library's parameters
lie: [E, I, O], packed along I. A scale of the whole is one for all experts there.

By a config alone scales have the dtypes and shapes that ModelOpt 0.47 writes. Of AWQ a
`pre_quant_scale` is left out, which the linears have that no norm comes before: 16 / O bits a weight.
Source: ModelOpt 0.47, `_export_quantized_weight`, `_export_fused_experts`.

Weights in ModelOpt's formats.

FP8: one float8 an element, with a float32 scale a tensor, a row or a block.

The effective weight is code times scale, the scale rounded to the dtype that is computed in before the
product is: so ModelOpt dequantizes, and Marlin's scales are of that dtype, too. Where inputs are
quantized as well the product's epilogue has the scale as it is stored.
Source: ModelOpt 0.47, `FP8QTensor.dequantize`, `from_quantized_weight`.

MXFP8: e4m3 in groups of 32 under powers of two, one byte each.

The effective weight is the product in float32, rounded to the dtype that is computed in. The power
of two of inputs is the next one above a group's largest magnitude / 448, where compressed-tensors takes
one that may be below it: nothing is cut off.
Source: ModelOpt 0.47, `MXFP8QTensor`; vLLM 0.33, `_mxfp8_e4m3_quantize_torch`.

NVFP4: e2m1 pairs in bytes under float8 scales of 16, all under one that multiplies.

The effective weight is e2m1 · (scale · global), both products in float32, rounded to the dtype that is
computed in: so ModelOpt dequantizes, and vLLM's emulation. (ModelOpt's Triton kernel has
(e2m1 · scale) · global, which rounds once less: seldom another bit of bfloat16.) compressed-tensors'
converter stores 1 / global, by which it then divides: two roundings more. A code of -0 is -0, as in
vLLM; ModelOpt's table has 0 there.
Source: ModelOpt 0.47, `NVFP4QTensor.dequantize`; vLLM 0.33, `dequantize_to_dtype`.

AWQ: integers of 4 bits, two rows a byte, under scales of groups of a row's columns.

Row 2i of a byte is in its low nibble, row 2i + 1 in the high one, both in two's complement. The
effective weight is code times scale in float32, rounded to the dtype that is computed in, as ModelOpt's
quantizer simulates it: its export has no dequantizer. Inputs are multiplied by `pre_quant_scale`, where
there is one, in the dtype that is computed in, as ModelOpt's own quantizers do it and the kernels that
run such files: multiplied into the weight it would round each of its elements once more.

Of W4A8_AWQ what is multiplied is a float8: of code times scale, rounded to bfloat16 as in a model of
that dtype, over `weight_scale_2`.
Source: ModelOpt 0.47, `pack_int4_in_uint8`, `fake_quant_impl`, `fp8_eager`, `TensorQuantizer.forward`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from scoremode.checkpoint.safetensors_files import FLOATS, TensorInfo
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes import compressed_tensors_weights as compressed_tensors
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import FactoredScheme, Scheme, Scratch
from scoremode.schemes.compressed_tensors_weights import float_quantized, mx
from scoremode.schemes.decoding.codes import Codes, Scaling, round_float
from scoremode.schemes.decoding.unpack import Elements, Tensors
from scoremode.schemes.fields import TensorFormat
from scoremode.schemes.fused_experts import Expert, Stacked
from scoremode.schemes.layout import (
    POWERS_OF_TWO,
    SCALES,
    UNTOLD,
    Headers,
    Layout,
    Linear,
    Tensor,
    single,
)
from scoremode.schemes.library import Library
from scoremode.schemes.modelopt_config import METHOD, Algorithm, ModelOptConfig, parse_modelopt
from scoremode.schemes.packed import Packed


def mxfp8(scaling: Scaling, inputs: Inputs | None = None) -> Packed:
    """Elements of 8 bits in groups of 32, rounded in float32."""
    return mx(scaling, 8, inputs=inputs, label="MXFP8", rounded=torch.float32)


def float8(scaling: Scaling, inputs: Inputs | None = None) -> Packed:
    """Weights of one float8 an element, rounded in the dtype that they are decoded into."""
    return float_quantized(scaling, inputs=inputs, scale_as_out=True)


def nvfp4(
    scaling: Scaling,
    is_awq: bool = False,
    input_factor: str | None = None,
    *,
    inputs: Inputs | None = None,
) -> Packed:
    """Groups of e2m1 in `weight`, under `weight_scale` and `weight_scale_2`.

    - `is_awq`, `input_factor`: of NVFP4_AWQ, whose inputs are multiplied before they are quantized.
    """
    scheme = compressed_tensors.nvfp4(
        scaling,
        inputs=inputs,
        input_factor=input_factor,
        weight="weight",
        whole="weight_scale_2",
        multiplies=True,
        rounded=torch.float32,
    )
    return replace(scheme, label=f"{scheme.label} AWQ") if is_awq else scheme


def int4_awq(scaling: Scaling, input_factor: str | None = None) -> Packed:
    """Integers in `weight` [O / 2, I] under `weight_scale` [O, groups].

    - `input_factor`: the suffix of what inputs are multiplied with, None where that went into a norm.
    """
    return Packed(
        scaling=scaling,
        elements=_ROW_PAIRS,
        label=f"W4A16 AWQ {scaling.label}",
        codes=Codes("int", 8, scaling.size),
        input_factor=input_factor,
        rounded=torch.float32,
    )


_ROW_PAIRS = Elements(4, signed=True, layout="pairs")


class Int4Float8Awq(Packed):
    """int4_awq rounded to float8 under `weight_scale_2`, for products with float8 inputs."""

    @classmethod
    def of(
        cls, scaling: Scaling, input_factor: str | None = None, inputs: Inputs | None = None
    ) -> "Int4Float8Awq":
        return cls(
            scaling=scaling, elements=_ROW_PAIRS, label=f"W4AFP8 AWQ {scaling.label}", inputs=inputs,
            codes=Codes("float8"), input_factor=input_factor, whole="weight_scale_2",
        )  # fmt: skip

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        whole = self.scales(tensors)
        for rows, q in self._float8(tensors, scratch):
            out[rows].copy_(q.mul_(whole))

    def factor(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        for rows, q in self._float8(tensors, scratch):
            out[rows].copy_(q)
        return self.scales(tensors)

    def scales(self, tensors: Tensors) -> torch.Tensor:
        return tensors["weight_scale_2"].view(1, 1).float()

    def _float8(self, tensors: Tensors, scratch: Scratch) -> Iterator[tuple[slice, torch.Tensor]]:
        """Rows, and their codes float32 [rows, I], valid until the next ones."""
        scale = self.scaling.arranged(tensors["weight_scale"]).float()
        whole = self.scales(tensors)
        for rows, q in self.values(tensors, torch.float32, scratch):
            self.scaling.multiply(q, scale[rows], slice(None), q)
            rounded = scratch.get("rounded", tuple(q.shape), torch.bfloat16, q.device)
            q.copy_(rounded.copy_(q))
            yield rows, round_float(q.div_(whole), 8)


# Routers that are linears. Exports leave them, and not all list them.
_ROUTER = re.compile(r"(.*\.)?(router|mlp\.gate|block_sparse_moe\.gate|shared_expert_gate)(\..*)?")
_FACTOR = "pre_quant_scale"
# Suffixes of experts that are stored as one.
_STACKED = frozenset(
    f"{part}_proj_{scale}"
    for part in ("gate_up", "gate", "up", "down")
    for scale in ("weight_scale", "weight_scale_2", "input_scale", _FACTOR)
)
_PROJECTION = re.compile(
    r"(.*\.experts\.(?:gate_up_proj|down_proj))(?:_weight_scale|_weight_scale_2|_input_scale)?"
)
_LOW_RANK = frozenset(("svdquant_lora_a", "svdquant_lora_b"))
# Scales of what a linear gives out, which belong to the cache.
_OF_THE_CACHE = frozenset(("k_scale", "v_scale"))
_FLOAT8_STATIC = Inputs(TensorFormat(8, "float", "tensor"), ("input_scale",))
_FLOAT8_TOKEN = Inputs(TensorFormat(8, "float", "token", dynamic=True), ())
_NVFP4 = Inputs(TensorFormat(4, "float", "tensor_group", 16, dynamic="local"), ("input_scale",))
_MXFP8 = Inputs(TensorFormat(8, "float", "group", 32, dynamic=True, powers_of_two=True), ())
# The format of inputs by algorithm; the others don't quantize them.
_INPUTS = {
    "FP8": _FLOAT8_STATIC,
    "FP8_PER_CHANNEL_PER_TOKEN": _FLOAT8_TOKEN,
    "NVFP4": _NVFP4,
    "NVFP4_AWQ": _NVFP4,
    "MXFP8": _MXFP8,
    "W4A8_AWQ": _FLOAT8_STATIC,
}
_PAIRS = ("NVFP4", "W4A16_NVFP4", "NVFP4_AWQ")
_INT4 = ("W4A16_AWQ", "W4A8_AWQ")
# Algorithms whose layout of experts stored as one is known from exports.
_OF_EXPERTS = ("FP8", "NVFP4", "W4A16_NVFP4")
# Weights alone don't need it; arithmetic that quantizes the input asks for it when the model is built.
_INPUT_SCALE = single("F32", dtypes=SCALES, optional=True)
_WHOLE_SCALE = single("F32")


def _scaling(algorithm: Algorithm, shape: tuple[int, int]) -> Scaling:
    match algorithm.name:
        case "FP8":
            return Scaling(shape, "tensor")
        case "FP8_PER_CHANNEL_PER_TOKEN":
            return Scaling(shape, "channel")
        case "FP8_PB_WO":
            assert algorithm.group is not None
            return Scaling(shape, "block", block=(algorithm.group, algorithm.group))
        case _:
            return Scaling(shape, "group", algorithm.group)


def _layout(algorithm: Algorithm, scaling: Scaling) -> dict[str, Tensor]:
    """The tensors of a linear, but for the factors that AWQ may have its input multiplied with."""
    name, (rows, columns), scales = algorithm.name, scaling.shape, scaling.stored_shape
    weight, scale = Tensor("F8_E4M3", (rows, columns)), Tensor("F32", scales, SCALES)
    match scaling.strategy:
        case "tensor":
            scale = single("F32", dtypes=SCALES)
        case "channel":
            scale = Tensor("F32", (rows,), SCALES, ((rows,), (rows, 1)))
        case "block":
            # Blocks of weights alone, as ModelOpt calls them, whatever an engine does with the inputs.
            written = (scales[0], 1, scales[1], 1)
            # A single block is exported with a scale of no dimension.
            shapes = (scales, written, *([()] if scales == (1, 1) else []))
            scale = Tensor("F32", written, SCALES, shapes)
    if name in _INT4:
        weight = Tensor("U8", (-(-rows // 2), columns))
    elif name in _PAIRS:
        weight, scale = Tensor("U8", (rows, -(-columns // 2))), Tensor("F8_E4M3", scales)
    elif name == "MXFP8":
        scale = Tensor("U8", scales, POWERS_OF_TWO)
    layout = {"weight": weight, "weight_scale": scale}
    if name in _PAIRS or name == "W4A8_AWQ":
        layout["weight_scale_2"] = _WHOLE_SCALE
    if _has_static_inputs(name):
        layout["input_scale"] = _INPUT_SCALE
    return layout


def _layout_of_experts(own: str, count: int, scaling: Scaling, name: str) -> dict[str, Tensor]:
    """The tensors of all experts' projection called `own`."""
    rows, columns = scaling.shape
    layout = {
        own: Tensor("U8", (count, columns // 2, rows)),
        f"{own}_weight_scale": Tensor("F8_E4M3", (count, *reversed(scaling.stored_shape))),
        f"{own}_weight_scale_2": _WHOLE_SCALE,
    }
    if name == "FP8":
        layout = {
            own: Tensor("F8_E4M3", (count, columns, rows)),
            f"{own}_weight_scale": single("F32", dtypes=SCALES),
        }
    if _has_static_inputs(name):
        layout[f"{own}_input_scale"] = _INPUT_SCALE
    return layout


def _has_static_inputs(name: str) -> bool:
    return name in _INPUTS and bool(_INPUTS[name].tensors)


class Modules(Library[ModelOptConfig]):
    """Linears and experts with scales, each in the format of the config's algorithm for it."""

    methods = frozenset(("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"))
    method = METHOD
    about = (
        "`modelopt`, or `hf_quant_config.json`",
        "NVFP4, FP8, MXFP8, W4A16_AWQ, W4A8_AWQ, mixed precision; not int8, MXFP4, SVDQuant",
        "W or W+A",
    )
    looks, looks_by = "ModelOpt", ("weight_scale_2",)
    told = ({"quant_algo"}, {"quantization"})
    experts = _PROJECTION
    marks = frozenset(("weight_scale", "weight_scale_2", _FACTOR, *_STACKED, *_LOW_RANK))
    records = _OF_THE_CACHE
    untold = UNTOLD

    def read(self, config: Mapping[str, Any]) -> ModelOptConfig:
        return parse_modelopt(config, self.checkpoint.modelopt)

    def check(self) -> None:
        tensors = self.checkpoint.tensors
        suffixes = {name.rpartition(".")[2] for name in tensors}
        if self.config.stated and self.marks.isdisjoint(suffixes):
            # Dense whatever the config says.
            raise UnsupportedFormat(
                f"{METHOD} with quant_algo {self.config.stated}, and no tensor is a weight_scale: "
                "not decoded"
            )
        for name, info in tensors.items():
            found = _PROJECTION.fullmatch(name)
            if found and name == found[1] and info.dtype in FLOATS and self.config.claims(name):
                raise CheckpointError(
                    f"{name} is stored dense ({info.dtype.lower()}), and quantization_config says "
                    "that it is quantized"
                )

    @classmethod
    def untold_by(cls, config: Mapping[str, Any]) -> str | None:
        """Nothing where `quantized_layers` name them all."""
        return None if parse_modelopt(config).algorithm is None else cls.untold

    def promise(self, linear: Linear) -> Layout | None:
        config, module = self.config, linear.module
        if config.algorithm is not None and not config.lists_excluded:
            # Every export leaves the head at least, so the list was left out.
            raise UnsupportedFormat(
                f"{METHOD} with quant_algo {config.stated} and no exclude_modules: which linears are "
                "quantized is known from its tensors alone"
            )
        algorithm = config.algorithm_of(module)
        if algorithm is None or config.excluded.has(module):
            return None
        is_router = _ROUTER.fullmatch(module) is not None
        if not config.claims(module) and (is_router or not linear.in_layer):
            return None
        if algorithm.name in _INT4 and algorithm.group is None:
            raise UnsupportedFormat(
                f"{METHOD} with quant_algo {algorithm.name} and no group_size: it is known from its "
                "tensors alone"
            )
        return _layout(algorithm, _scaling(algorithm, linear.shape))

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Scheme, str]:
        stored = Headers(module, tensors)
        own = module.rpartition(".")[2] if _PROJECTION.fullmatch(module) else ""
        if not own and (others := _STACKED & set(tensors)):
            raise UnsupportedFormat(
                f"{module}: experts stored as one by ModelOpt with {', '.join(sorted(others))}: not "
                "decoded"
            )
        if self.config.excluded.has(module):
            raise stored.wrong("stored quantized, and the config's exclude_modules name it")
        algorithm = self.config.algorithm_of(module)
        if algorithm is None:
            where = "quantized_layers don't name it" if self.config.stated else "quant_algo is null"
            raise stored.wrong(f"stored quantized, and the config's {where}")
        headers = ((suffix, info.dtype, info.shape) for suffix, info in tensors.items())
        make = self._stacked if own else self._linear
        return self.alike(
            (algorithm, own, *headers), lambda: make(stored, algorithm)
        ), algorithm.name

    def _linear(self, stored: Headers, algorithm: Algorithm) -> FactoredScheme:
        name, (height, width) = algorithm.name, stored.matrix("weight")
        shape = height, 2 * width if name in _PAIRS else width
        if name in _INT4:
            shape = 2 * height, width
            algorithm = replace(algorithm, group=algorithm.group or _group_size(stored, shape))
        scaling = _scaling(algorithm, shape)
        layout = _layout(algorithm, scaling)
        if name.endswith("AWQ"):
            layout[_FACTOR] = Tensor("F32", (shape[1],), SCALES, optional=True)
        if name == "W4A16_NVFP4":
            # Older exports have it all the same; vLLM leaves it out.
            layout["input_scale"] = _INPUT_SCALE
        stored.match(layout)
        if name in _PAIRS or name == "MXFP8":
            _expect_whole_groups(stored, scaling)
        of_cache = _OF_THE_CACHE if self.config.kv_cache is not None else ()
        stored.refuse_others((*layout, "bias", *of_cache), name)
        # For most linears it went into the norm before.
        factor = _FACTOR if _FACTOR in stored.tensors else None
        return _scheme_of(name, scaling, factor)

    def _stacked(self, stored: Headers, algorithm: Algorithm) -> Stacked:
        own, name = stored.module.rpartition(".")[2], algorithm.name
        if name not in _OF_EXPERTS:
            raise UnsupportedFormat(
                f"{stored.module}: experts stored as one in {name}: not decoded"
            )
        count, columns, rows = stored.of_shape(own, (None, None, None))
        scaling = _scaling(algorithm, (rows, columns if name == "FP8" else 2 * columns))
        if name != "FP8":
            _expect_whole_groups(stored, scaling)
        layout, inputs = _layout_of_experts(own, count, scaling, name), f"{own}_input_scale"
        if name == "W4A16_NVFP4":
            layout[inputs] = _INPUT_SCALE
        stored.match(layout)
        stored.refuse_others(layout, name)
        one = _scheme_of(name, scaling, None)
        names = {suffix: f"{own}_{suffix}" for suffix in one.tensors} | {"weight": own}
        shared = [inputs, names["weight_scale_2" if name in _PAIRS else "weight_scale"]]
        names["input_scale"] = inputs
        return Stacked(count, Expert(one, tuple(names.items()), tuple(shared), transposed=True))


def _scheme_of(name: str, scaling: Scaling, factor: str | None) -> FactoredScheme:
    """The Scheme of an algorithm; `factor`: the suffix of what inputs are multiplied with."""
    inputs = _INPUTS.get(name)
    if name in _PAIRS:
        return nvfp4(scaling, name == "NVFP4_AWQ", factor, inputs=inputs)
    match name:
        case "W4A16_AWQ":
            return int4_awq(scaling, factor)
        case "W4A8_AWQ":
            return Int4Float8Awq.of(scaling, factor, inputs)
        case "MXFP8":
            return mxfp8(scaling, inputs)
        case _:
            return float8(scaling, inputs)


def _group_size(stored: Headers, shape: tuple[int, int]) -> int:
    """The columns of a group, by the scales' shape, where no config says it."""
    rows, columns = shape
    _, groups = stored.of_shape("weight_scale", (rows, None), SCALES)
    if columns % groups:
        raise stored.wrong(
            f"its {columns} inputs have {groups} scales, and no config says the group_size"
        )
    return columns // groups


def _expect_whole_groups(stored: Headers, scaling: Scaling) -> None:
    """Raises CheckpointError for a last group that is short, which ModelOpt doesn't write."""
    columns, size = scaling.shape[1], scaling.size
    assert size is not None
    if columns % size:
        raise stored.wrong(f"its {columns} inputs are quantized in groups of {size}")
