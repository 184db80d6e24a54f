"""What a linear would be stored as, by a `quantization_config` of torchao alone.

`quant_type` has a config for all linears, or configs by names and patterns (`FqnToConfig`). The model's
head stays dense where no list says what does.
Source: transformers 5.23, `TorchAoHfQuantizer`, `TorchAoQuantize`; torchao 0.18, `quant_api`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.fields import Fields, shown
from scoremode.schemes.foreseen import Foresee, Foreseen, Linear
from scoremode.schemes.patterns import Patterns
from scoremode.schemes.torchao.config import METHOD, parse_torchao

__all__ = ["foresee"]

_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
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

    def of(self, linear: Linear) -> dict[str, Foreseen] | None:
        if any(size % self.multiple for size in linear.shape):
            return None
        scaling = _scaling(linear, self.granularity)
        rows, columns = linear.shape
        block = {"tensor": [rows, columns], "group": [1, scaling.size]}
        data = {
            "block_size": block.get(scaling.strategy, [1, columns]),
            "dtype": {"_type": "torch.dtype", "_data": _DTYPES[linear.dtype]},
        }
        if self.integers is not None:
            data |= {"target_dtype": self.integers, "activation_quantization": None}
        else:
            data |= {"act_quant_kwargs": self.inputs}
        text = json.dumps({"_type": self.kind, "_data": data})
        of_codes = "F8_E4M3" if self.kind == "Float8Tensor" else "I8"
        of_scales = linear.dtype if self.integers is not None else "F32"
        tensors = {
            "_weight_qdata": Foreseen(of_codes, linear.shape, described=("weight", text)),
            "_weight_scale": Foreseen(of_scales, scaling.stored_shape),
        }
        zero = {"_weight_zero_point": Foreseen("I8", scaling.stored_shape)}
        return tensors | ({} if self.kind == "Float8Tensor" else zero)


def foresee(config: Mapping[str, Any]) -> Foresee:
    """Raises CheckpointError, UnsupportedFormat for a config that can't be read, and where its tensors
    are not known."""
    parsed = parse_torchao(config)
    lists = config.get("modules_to_not_convert") is not None
    kind = Fields(config, "its top").object("quant_type")
    form_of = _forms(kind.any("default") if kind else None)

    def tensors(linear: Linear) -> Mapping[str, Foreseen] | None:
        if parsed.not_converted.spares(linear.module) or not (lists or linear.in_layer):
            return None
        form = form_of(linear.module)
        return None if form is None else form.of(linear)

    return tensors


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
    """What a value of an enumeration, or a dtype, holds."""
    return value.get("_data") if isinstance(value, Mapping) else value


def _unknown(name: str, value: Any) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"{METHOD} with {name} {shown(value)}: what is stored is known from its tensors alone"
    )
