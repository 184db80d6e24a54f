"""torchao: integers and float8, one a byte, under scales a tensor, row or group.

A weight is a tensor subclass: its parts are tensors (`_weight_qdata`, `_weight_scale`), its class
and attributes JSON in the metadata of the file, by the weight's name. The effective weight is code
times scale in float32, rounded in the dtype that the tensor says it has.

A `quantization_config` says how a model was quantized; what a weight is its file's metadata says,
tensor by tensor. `quant_type` has a config for all linears, or configs by names and patterns
(`FqnToConfig`). By the config alone the model's head stays dense where no list says what does.
Source: transformers 5.23, `TorchAoConfig`, `TorchAoHfQuantizer`, `TorchAoQuantize`; torchao 0.18,
`prototype/safetensors`, `dequantize_affine`, `_dequantize_affine_float8`, `quant_api`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from scoremode.checkpoint.config import parse_json
from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.compressed_tensors_weights import integers_label
from scoremode.schemes.decoding.codes import Codes, Scaling
from scoremode.schemes.decoding.unpack import FLOATS, SIGNED_BYTES
from scoremode.schemes.fields import Fields, TensorFormat, not_decoded, shown
from scoremode.schemes.layout import SCALES, Headers, Layout, Linear, Tensor
from scoremode.schemes.library import Library, TensorsDecide
from scoremode.schemes.packed import Packed
from scoremode.schemes.patterns import NotConverted, Patterns

METHOD = "quantization method 'torchao'"


@dataclass(frozen=True)
class TorchAoConfig(TensorsDecide):
    """The fields of the config that the modules' tensors are held to.

    A linear that is stored dense is dense: torchao leaves those whose sizes its products can't take,
    and transformers loads what it finds.

    - `not_converted`: modules that are not quantized; `lists_dense`: whether the config lists them.
    - `quant_type`: as it is in the config; tells how tensors are stored if there are none.
    """

    not_converted: NotConverted
    lists_dense: bool
    quant_type: Any


def parse_torchao(config: Mapping[str, Any]) -> TorchAoConfig:
    """Reads a `quantization_config` whose `quant_method` is `torchao`."""
    fields = Fields(config, method=METHOD)
    for name in ("include_input_output_embeddings", "untie_embedding_weights"):
        if fields.flag(name, False):
            raise not_decoded(METHOD, name, True)
    return TorchAoConfig(
        NotConverted.of(fields, "modules_to_not_convert"),
        config.get("modules_to_not_convert") is not None,
        fields.any("quant_type"),
    )


def ao_weight(
    scaling: Scaling, bits: int | None, dtype: torch.dtype, *, inputs: Inputs | None = None
) -> Packed:
    """Integers of `bits`, or float8 where these are None, rounded in `dtype`."""
    columns = scaling.columns_of_one
    if bits is not None:
        elements, codes = SIGNED_BYTES, Codes("int", 128, columns)
        label = integers_label(bits, inputs, scaling)
    else:
        elements, codes = FLOATS[8], Codes("float8", None, columns)
        of_inputs = (
            f"{scaling.label}, inputs {inputs.label}" if inputs else f"W8A16 {scaling.label}"
        )
        label = f"FP8 {of_inputs}"
    return Packed(
        scaling=scaling, elements=elements, label=label, codes=codes, inputs=inputs,
        weight=_CODES, scale=_SCALE, rounded=dtype,
    )  # fmt: skip


_CODES, _SCALE, _ZERO = "_weight_qdata", "_weight_scale", "_weight_zero_point"
# Int4Tensor has no dequantization: its one kernel, a GPU's, adds zero points in floats
# to q · s, and whether the product is rounded before that no source of torchao's says.
_READ = ("Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor")
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_INTEGERS = {f"int{bits}": bits for bits in range(1, 9)}
_STRATEGIES = {"PerRow": "token", "PerTensor": "tensor"}


def _layout(scaling: Scaling, *, is_float: bool, of_scales: str) -> dict[str, Tensor]:
    """Codes, scales, and zero points, all of them zero, which floats are written without."""
    return {
        _CODES: Tensor("F8_E4M3" if is_float else "I8", scaling.shape),
        _SCALE: Tensor(of_scales, scaling.stored_shape, SCALES),
        _ZERO: Tensor("I8", scaling.stored_shape, optional=True),
    }


_SPELLINGS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_BY_NAME = ("FqnToConfig", "ModuleFqnToConfig")
# Fields that mean another tensor where they say something else.
_PLAIN = {
    "weight_dtype": "float8_e4m3fn",
    "activation_dtype": "float8_e4m3fn",
    "packing_format": "PLAIN",
    "intx_packing_format": "UNPACKED_TO_INT8",
    "mapping_type": "SYMMETRIC",
    "act_mapping_type": "SYMMETRIC",
    "reduce_range": False,
}
_INT8 = {"_type": "torch.dtype", "_data": "int8"}
_PER_ROW = {"_type": "PerRow", "_data": {"dim": -1}}


@dataclass(frozen=True)
class _Form:
    """A config of torchao's: the tensor class that it makes, as the file's metadata describes it.

    - `granularity`: of weights, None for a row; `inputs`: how it says that they are quantized.
    - `integers`: the integers' dtype where a byte could hold more.
    - `multiple`: linears whose sides are no multiples of it are left dense.
    """

    kind: str
    granularity: Any
    inputs: Mapping[str, Any] | None = None
    integers: Mapping[str, Any] | None = None
    multiple: int = 1

    def layout(self, linear: Linear) -> Layout | None:
        """The tensors of a linear, None where it is left dense."""
        if any(size % self.multiple for size in linear.shape):
            return None
        scaling = _scaling(linear, self.granularity)
        rows, columns = linear.shape
        block = {"tensor": [rows, columns], "group": [1, scaling.size]}
        data = {
            "block_size": block.get(scaling.strategy, [1, columns]),
            "dtype": {"_type": "torch.dtype", "_data": _SPELLINGS[linear.dtype]},
        }
        if self.integers is not None:
            data |= {"target_dtype": self.integers, "activation_quantization": None}
        else:
            data |= {"act_quant_kwargs": self.inputs}
        text = json.dumps({"_type": self.kind, "_data": data})
        of_scales = linear.dtype if self.integers is not None else "F32"
        layout = _layout(scaling, is_float=self.kind == "Float8Tensor", of_scales=of_scales)
        if self.kind == "Float8Tensor":
            del layout[_ZERO]
        return layout | {_CODES: layout[_CODES]._replace(described=("weight", text))}


def _forms(value: Any) -> Callable[[str], _Form | None]:
    """The form of each module, None for one that stays dense."""
    if not isinstance(value, Mapping) or value.get("_type") not in _BY_NAME:
        form = _form(value)
        return lambda module: form
    data = Fields(value.get("_data"), "quant_type")
    name = "fqn_to_config" if data.any("fqn_to_config") else "module_fqn_to_config"
    given = data.any(name) if data.object(name) else {}
    named = {key: None if form is None else _form(form) for key, form in given.items()}
    patterns = {
        key: Patterns([f"re:(?:{key.removeprefix('re:')})$"], name)
        for key in named
        if key.startswith("re:")
    }

    def of(module: str) -> _Form | None:
        both = f"{module}.weight", module
        exact = (own for own in both if own in named)
        matching = (key for key, p in patterns.items() if any(map(p.matches, both)))
        return named.get(next(exact, next(matching, "_default")))

    return of


def _form(value: Any) -> _Form:
    if not isinstance(value, Mapping) or not isinstance(value.get("_data"), Mapping):
        raise _unknown("quant_type", value)
    kind, data = value.get("_type"), value["_data"]
    if value.get("_version") != 2:
        raise _unknown(f"{kind} of version", value.get("_version"))
    dtype = data.get("weight_dtype")
    plain = dict(_PLAIN)
    if kind == "IntxWeightOnlyConfig":
        del plain["weight_dtype"]
        plain["scale_dtype"] = None
    for name, wanted in plain.items():
        if (found := _inner(data.get(name))) not in (None, wanted):
            raise _unknown(f"{kind} with {name}", found)
    granularity = data.get("granularity")
    if kind == "Int8WeightOnlyConfig":
        return _Form("Int8Tensor", granularity)
    if kind == "Float8WeightOnlyConfig":
        return _Form("Float8Tensor", granularity)
    if kind == "IntxWeightOnlyConfig":
        return _Form("IntxUnpackedToInt8Tensor", granularity, integers=dtype or _INT8)
    pair = granularity if isinstance(granularity, list) else [granularity, granularity]
    if kind == "Int8DynamicActivationInt8WeightConfig":
        return _Form("Int8Tensor", pair[-1], _inputs("Int8", pair[0] or _PER_ROW))
    if kind == "Float8DynamicActivationFloat8WeightConfig":
        whole = {"_type": "PerTensor", "_data": {}}
        inputs = _inputs("Float8", pair[0] or whole)
        return _Form("Float8Tensor", pair[-1] or whole, inputs, multiple=16)
    raise _unknown("quant_type", kind)


def _inputs(kind: str, granularity: Any) -> dict[str, Any]:
    return {"_type": f"QuantizeTensorTo{kind}Kwargs", "_data": {"granularity": granularity}}


def _scaling(linear: Linear, granularity: Any) -> Scaling:
    kind, data = "PerRow", {}
    if isinstance(granularity, Mapping):
        kind, data = granularity.get("_type"), granularity.get("_data") or {}
    if kind == "PerRow" or (kind == "PerAxis" and data.get("axis", 0) == 0):
        return Scaling(linear.shape, "channel")
    if kind == "PerTensor":
        return Scaling(linear.shape, "tensor")
    size = data.get("group_size")
    if kind != "PerGroup" or type(size) is not int or size < 1:
        raise _unknown("granularity", granularity)
    if linear.shape[1] % size:
        raise CheckpointError(f"{linear.module}: {linear.shape[1]} inputs in groups of {size}")
    return Scaling(linear.shape, "group", size)


def _inner(value: Any) -> Any:
    """The name that a value of an enumeration, or a dtype, holds."""
    return value.get("_data") if isinstance(value, Mapping) else value


def _unknown(name: str, value: Any) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"{METHOD} with {name} {shown(value)}: what is stored is known from its tensors alone"
    )


class Modules(Library[TorchAoConfig]):
    """Linears whose weight is an `Int8Tensor`, a `Float8Tensor` or an
    `IntxUnpackedToInt8Tensor`."""

    methods = frozenset(("torchao",))
    parse = staticmethod(parse_torchao)
    method = METHOD
    about = ("`torchao`", "int8, int1 to int7 in int8, float8; not `Int4Tensor`", "W or W+A")
    looks, looks_by = "torchao", ("_weight_qdata",)
    required = _CODES
    marks = frozenset((_CODES, _SCALE))

    def promise(self, linear: Linear) -> Layout | None:
        config = self.config
        listed = config.not_converted.spares(linear.module)
        if listed or not (config.lists_dense or linear.in_layer):
            return None
        form = self._form_of(linear.module)
        return None if form is None else form.layout(linear)

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Packed, str]:
        stored = Headers(module, tensors)
        if self.config.not_converted.name(module):
            raise stored.wrong("stored quantized, and modules_to_not_convert names it")
        # Before its tensors: those of other classes have other names.
        described = _Described(stored, self._metadata.get(f"{module}.weight"))
        stored.refuse_others((_CODES, _SCALE, _ZERO, "bias"), METHOD)
        scheme = described.scheme()
        if _ZERO in tensors:
            content = self.checkpoint.read_bytes(tensors[_ZERO].name)
            if any(bytes(content)):
                raise UnsupportedFormat(f"{module}: {METHOD} with zero points: not decoded")
        return self.alike(scheme, lambda: scheme), "torchao"

    @cached_property
    def _metadata(self) -> dict[str, str]:
        return self.checkpoint.metadata()

    @cached_property
    def _form_of(self) -> "Callable[[str], _Form | None]":
        """The form of each module by the config. Raises UnsupportedFormat where its tensors are not
        known."""
        given = Fields({"quant_type": self.config.quant_type}).object("quant_type")
        return _forms(given.any("default") if given else None)


class _Described:
    """A weight as the metadata describes it."""

    def __init__(self, stored: Headers, text: str | None):
        self._stored = stored
        if text is None:
            raise stored.wrong("quantized, and the file's metadata does not describe its weight")
        try:
            value = parse_json(text.encode(), has_constants=False)
        except ValueError as error:
            raise stored.wrong(f"its weight's metadata is not JSON: {error}") from None
        self._kind, self._data = self._typed(value)
        if self._kind not in _READ:
            raise UnsupportedFormat(
                f"{stored.module}: {METHOD} with a weight that is {shown(self._kind)}: not decoded"
            )

    def scheme(self) -> Packed:
        stored, data = self._stored, self._data
        bits: int | None = None
        inputs = data.get("act_quant_kwargs")
        if self._kind == "Int8Tensor":
            bits = 8
        elif self._kind == "IntxUnpackedToInt8Tensor":
            name = self._typed(data.get("target_dtype"), "torch.dtype")[1]
            if name not in _INTEGERS:
                raise self._unsupported("target_dtype", name)
            bits, inputs = _INTEGERS[name], data.get("activation_quantization")
            if inputs is not None:
                raise self._unsupported("activation_quantization", inputs)
        dtype = self._typed(data.get("dtype"), "torch.dtype")[1]
        if dtype not in _DTYPES:
            raise self._unsupported("dtype", dtype)
        is_float = bits is None
        scaling = self._scaling(stored.matrix(_CODES, ("F8_E4M3",) if is_float else ("I8",)))
        stored.match(_layout(scaling, is_float=is_float, of_scales="F32"))
        declared = None if inputs is None else Inputs(self._inputs(inputs, bits), ())
        return ao_weight(scaling, bits, _DTYPES[dtype], inputs=declared)

    def _scaling(self, shape: tuple[int, int]) -> Scaling:
        rows, columns = shape
        block = self._data.get("block_size")
        # True is 1 to Python.
        is_numbers = isinstance(block, list) and all(type(size) is int for size in block)
        match block if is_numbers else None:
            case [height, width] if (height, width) == shape and rows > 1:
                return Scaling(shape, "tensor")
            case [1, width] if width == columns:
                return Scaling(shape, "channel")
            case [1, width] if width > 0 and columns % width == 0:
                return Scaling(shape, "group", width)
            case _:
                raise self._unsupported(f"{list(shape)} in block_size", block)

    def _inputs(self, value: Any, bits: int | None) -> TensorFormat:
        kind, data = self._typed(value)
        known = {"QuantizeTensorToInt8Kwargs": "int", "QuantizeTensorToFloat8Kwargs": "float"}
        wanted = "float" if bits is None else "int"
        if known.get(str(kind)) != wanted:
            raise self._unsupported("act_quant_kwargs", value)
        granularity = str(self._typed(data.get("granularity"))[0])
        plain = {
            "mapping_type": ("SYMMETRIC",),
            "reduce_range": (False,),
            "float8_dtype": ("float8_e4m3fn",),
            "hp_value_lb": (),
            "hp_value_ub": (),
        }
        for name, values in plain.items():
            given = data.get(name)
            given = given.get("_data") if isinstance(given, Mapping) else given
            if given is not None and given not in values:
                raise self._unsupported(f"act_quant_kwargs, {name}", given)
        if granularity not in _STRATEGIES:
            raise self._unsupported("act_quant_kwargs, granularity", granularity)
        return TensorFormat(
            8, wanted, _STRATEGIES[granularity], dynamic=True, inverse=wanted == "int", rounded=True
        )

    def _typed(self, value: Any, kind: str | None = None) -> tuple[Any, Any]:
        """A class's name and what it holds. Raises CheckpointError for anything else."""
        if not isinstance(value, Mapping) or "_type" not in value:
            raise self._wrong(value)
        found, data = value["_type"], value.get("_data", {})
        if (kind is None and not isinstance(data, Mapping)) or kind not in (None, found):
            raise self._wrong(value)
        if kind is not None and not isinstance(data, str):
            raise self._wrong(value)
        return found, data

    def _wrong(self, value: Any) -> CheckpointError:
        return self._stored.wrong(f"its weight's metadata can't be understood: {shown(value)}")

    def _unsupported(self, name: str, value: Any) -> UnsupportedFormat:
        return UnsupportedFormat(
            f"{self._stored.module}: {METHOD} with {name} {shown(value)}: not decoded"
        )
