"""What a linear would be stored as, by a `quantization_config` of bitsandbytes alone.

Blocks are taken for 64 wide, the default that transformers leaves. The model's head stays dense where
no list says what does.
Source: transformers 5.23, `Bnb4BitHfQuantizer`, `get_modules_to_not_convert`.
"""

import json
from collections.abc import Mapping
from typing import Any

from scoremode.checkpoint.header import DTYPE_BITS
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.bitsandbytes.config import METHOD, parse_bitsandbytes
from scoremode.schemes.bitsandbytes.four_bit import TABLES
from scoremode.schemes.fields import shown
from scoremode.schemes.foreseen import Foresee, Foreseen, Linear

__all__ = ["foresee"]

_BLOCK, _OUTER_BLOCK = 64, 256
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
# What codes of 4 bits are stored as.
_STORAGE = {
    **{"uint8": "U8", "int8": "I8", "bfloat16": "BF16", "float16": "F16", "float32": "F32"},
    "float64": "F64",
}


def foresee(config: Mapping[str, Any]) -> Foresee:
    """Raises CheckpointError, UnsupportedFormat for a config that can't be read."""
    parsed = parse_bitsandbytes(config)
    storage = config.get("bnb_4bit_quant_storage") or "uint8"
    if storage not in _STORAGE:
        raise UnsupportedFormat(
            f"{METHOD} with bnb_4bit_quant_storage {shown(storage)}: not decoded"
        )
    lists = config.get("llm_int8_skip_modules") is not None
    # transformers' own default, and not what it is used with.
    kind = config.get("bnb_4bit_quant_type") or "fp4"
    double = bool(config.get("bnb_4bit_use_double_quant"))

    def tensors(linear: Linear) -> Mapping[str, Foreseen] | None:
        if parsed.not_converted.spares(linear.module) or not (lists or linear.in_layer):
            return None
        if parsed.bits == 8:
            return {
                "weight": Foreseen("I8", linear.shape),
                "SCB": Foreseen("F32", linear.shape[:1]),
                "weight_format": Foreseen("U8", ()),
            }
        return _four_bits(linear, kind, _STORAGE[storage], double=double)

    return tensors


def _four_bits(linear: Linear, kind: str, storage: str, *, double: bool) -> dict[str, Foreseen]:
    rows, columns = linear.shape
    count = rows * columns
    blocks = -(-count // _BLOCK)
    state: dict[str, Any] = {
        "quant_type": kind,
        "blocksize": _BLOCK,
        "dtype": _DTYPES[linear.dtype],
        "shape": [rows, columns],
    }
    absmax = {"weight.absmax": Foreseen("F32", (blocks,))}
    if double:
        state |= {"nested_blocksize": _OUTER_BLOCK, "nested_dtype": "float32", "nested_offset": 0.5}
        absmax = {
            "weight.absmax": Foreseen("U8", (blocks,)),
            "weight.nested_absmax": Foreseen("F32", (-(-blocks // _OUTER_BLOCK),)),
            "weight.nested_quant_map": Foreseen("F32", (256,)),
        }
    record, table = json.dumps(state).encode(), TABLES[kind].numpy().tobytes()
    bytes_ = DTYPE_BITS[storage] // 8
    return {
        "weight": Foreseen(storage, (-(-count // 2) // bytes_, 1)),
        **absmax,
        "weight.quant_map": Foreseen("F32", (16,), table),
        f"weight.quant_state.bitsandbytes__{kind}": Foreseen("U8", (len(record),), record),
    }
