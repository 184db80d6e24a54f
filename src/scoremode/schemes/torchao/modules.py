"""The quantized modules of a checkpoint of torchao, and their Schemes.

A weight is a tensor subclass: its parts are tensors (`_weight_qdata`, `_weight_scale`), its class
and attributes JSON in the metadata of the file, by the weight's name.
Source: torchao 0.18, `prototype/safetensors`.
"""

from collections.abc import Mapping
from typing import Any

import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.header import TensorInfo
from scoremode.checkpoint.strict_json import parse_json
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.fields import shown
from scoremode.schemes.foreseen import Foresee
from scoremode.schemes.headers import SCALES, Headers
from scoremode.schemes.library import Library
from scoremode.schemes.tensor_format import TensorFormat
from scoremode.schemes.torchao.config import METHOD, TorchAoConfig, parse_torchao
from scoremode.schemes.torchao.foreseen import foresee
from scoremode.schemes.torchao.weights import AoWeight

__all__ = ["Modules"]

_CODES, _SCALE, _ZERO = "_weight_qdata", "_weight_scale", "_weight_zero_point"
# Of Int4Tensor there is no dequantization: its one kernel, a GPU's, adds zero points in floats
# to q · s, and whether the product is rounded before that no source of torchao's says.
_READ = ("Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor")
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_INTEGERS = {f"int{bits}": bits for bits in range(1, 9)}
_STRATEGIES = {"PerRow": "token", "PerTensor": "tensor"}


class Modules(Library):
    """Linears whose weight is an `Int8Tensor`, a `Float8Tensor` or an
    `IntxUnpackedToInt8Tensor`."""

    methods = frozenset(("torchao",))
    marks = frozenset((_CODES, _SCALE))

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]):
        self._config = parse_torchao(config)
        self._checkpoint = checkpoint
        self._alike: dict[AoWeight, AoWeight] = {}
        if not any(name.endswith(_CODES) for name in checkpoint.tensors):
            raise UnsupportedFormat(f"{METHOD}, and no tensor is a {_CODES}: not decoded")
        self._metadata = checkpoint.metadata()

    @property
    def config(self) -> TorchAoConfig:
        return self._config

    @staticmethod
    def foresee(config: Mapping[str, Any], model: Mapping[str, Any]) -> Foresee:
        return foresee(config)

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[AoWeight, str]:
        stored = Headers(module, tensors)
        if self.config.not_converted.name(module):
            raise stored.wrong("stored quantized, and modules_to_not_convert names it")
        # Before its tensors: those of other classes have other names.
        described = _Described(stored, self._metadata.get(f"{module}.weight"))
        if unknown := set(tensors) - {_CODES, _SCALE, _ZERO, "bias"}:
            names = ", ".join(sorted(unknown))
            raise UnsupportedFormat(f"{module}: {METHOD} with {names} is not supported")
        scheme = described.scheme()
        if _ZERO in tensors:
            info = stored.expect(_ZERO, ("I8",), [scheme.scaling.stored_shape])
            if any(bytes(self._checkpoint.read_bytes(info.name))):
                raise UnsupportedFormat(f"{module}: {METHOD} with zero points: not decoded")
        return self._alike.setdefault(scheme, scheme), "torchao"


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

    def scheme(self) -> AoWeight:
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
        shape = stored.matrix(_CODES, ("F8_E4M3",) if bits is None else ("I8",))
        scaling = self._scaling(shape)
        stored.expect(_SCALE, SCALES, [scaling.stored_shape])
        declared = None if inputs is None else Inputs(self._inputs(inputs, bits), ())
        return AoWeight(scaling, bits, _DTYPES[dtype], inputs=declared)

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
