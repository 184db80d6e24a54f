"""bitsandbytes: weights of 4 bits in blocks, and LLM.int8.

A weight's tensors say what it is, and those of 4 bits have a record of their own beside them; the
config tells 4 bits from 8, what LLM.int8 does with inputs, and which linears are not quantized. By the
config alone blocks are taken for 64 wide, the default that transformers leaves, and the model's head
stays dense where no list says what does.
Source: transformers 5.23, `BitsAndBytesConfig`, `Bnb4BitHfQuantizer`, `get_modules_to_not_convert`.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from scoremode.checkpoint.config import parse_json
from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import Scheme
from scoremode.schemes.bitsandbytes_weights import TABLES, FourBit, LlmInt8, Nested
from scoremode.schemes.fields import Fields, TensorFormat, not_decoded, shown
from scoremode.schemes.layout import UNTOLD, Headers, Layout, Linear, Tensor, single
from scoremode.schemes.library import Library, TensorsDecide
from scoremode.schemes.patterns import NotConverted, is_one_of_layers

METHOD = "quantization method 'bitsandbytes'"


@dataclass(frozen=True)
class BitsAndBytesConfig(TensorsDecide):
    """The fields of the config that decide what a weight and an input mean.

    - `bits`: 4 or 8; `threshold`: the magnitude from which LLM.int8 multiplies a column of inputs
      apart.
    - `not_converted`: the modules that are not quantized; `lists_dense`: whether the config lists them.
    - `type`, `nested`, `storage`: of 4-bit codes, for a checkpoint whose tensors nobody has seen.
    """

    bits: int
    threshold: float
    not_converted: NotConverted
    lists_dense: bool
    type: str
    nested: bool
    storage: Any

    def claims(self, module: str) -> bool:
        """True for a decoder layer's linear that the list doesn't name: stored dense, transformers 4
        refuses it in 4 bits, and quantizes it in 8."""
        return is_one_of_layers(module) and not self.not_converted.spares(module)


def parse_bitsandbytes(config: Mapping[str, Any]) -> BitsAndBytesConfig:
    """Reads a `quantization_config` whose `quant_method` is `bitsandbytes`.

    Raises UnsupportedFormat for what is not decoded, CheckpointError for what can't be understood.
    """
    fields = Fields(config, "its top")
    four, eight = (
        bool(fields.flag(name, False) or fields.flag(f"_{name}", False))
        for name in ("load_in_4bit", "load_in_8bit")
    )
    if four == eight:
        which = "both" if four else "neither"
        raise CheckpointError(
            f"quantization_config can't be understood: {which} of load_in_4bit and load_in_8bit"
        )
    if fields.flag("llm_int8_has_fp16_weight", False):
        raise not_decoded(METHOD, "llm_int8_has_fp16_weight", True)
    threshold = fields.any("llm_int8_threshold", 6.0)
    if type(threshold) not in (int, float) or not 0 <= threshold < math.inf:
        raise fields.wrong("llm_int8_threshold", "a number that is not negative")
    kind = fields.text("bnb_4bit_quant_type")
    if four and kind not in (None, "nf4", "fp4"):
        raise not_decoded(METHOD, "bnb_4bit_quant_type", kind)
    skipped = NotConverted.of(fields, "llm_int8_skip_modules")
    return BitsAndBytesConfig(
        4 if four else 8,
        float(threshold),
        skipped,
        lists_dense=fields.any("llm_int8_skip_modules") is not None,
        # transformers' own default, and not what it is used with.
        type=kind or "fp4",
        nested=bool(fields.any("bnb_4bit_use_double_quant")),
        storage=fields.any("bnb_4bit_quant_storage") or "uint8",
    )


_STATE = "weight.quant_state."
_OF_WEIGHT = frozenset(("absmax", "quant_map", "nested_absmax", "nested_quant_map"))
_MARKS = frozenset(f"weight.{name}" for name in _OF_WEIGHT)
# As a parameter that is no linear's has them: experts that are stored fused.
_FUSED = frozenset(("absmax", "quant_map"))
# Dtypes that 4-bit codes may be stored as (`bnb_4bit_quant_storage`), by their bytes.
_STORAGE = {"U8": 1, "I8": 1, "BF16": 2, "F16": 2, "F32": 4, "F64": 8}
_STORAGE_NAMES = {
    **{"uint8": "U8", "int8": "I8", "bfloat16": "BF16", "float16": "F16", "float32": "F32"},
    "float64": "F64",
}
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_SPELLINGS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
# What configs alone are taken for.
_BLOCK, _OUTER_BLOCK = 64, 256
_BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
# A record of a few names and numbers.
_LONGEST_STATE = 4096


def _int8_layout(shape: tuple[int, int]) -> Layout:
    return {
        "weight": Tensor("I8", shape),
        "SCB": Tensor("F32", shape[:1]),
        "weight_format": single("U8", optional=True),
    }


def _four_bit_layout(scheme: FourBit, storage: str) -> Layout:
    """The tensors of a weight of 4 bits, without its record; codes are stored as `storage`."""
    count = math.prod(scheme.shape)
    blocks = -(-count // scheme.blocksize)
    of_codes = (-(-count // 2) // _STORAGE[storage], 1)
    layout = {
        "weight": Tensor(storage, of_codes, tuple(_STORAGE)),
        "weight.absmax": Tensor("U8" if scheme.nested else "F32", (blocks,)),
    }
    if scheme.nested:
        outer = -(-blocks // scheme.nested.blocksize)
        layout["weight.nested_absmax"] = Tensor("F32", (outer,))
        layout["weight.nested_quant_map"] = Tensor("F32", (256,))
    table = TABLES[scheme.type].numpy().tobytes()
    return layout | {"weight.quant_map": Tensor("F32", (16,), content=table)}


def _record(scheme: FourBit, dtype: str) -> bytes:
    """The record of a weight whose dtype was `dtype`."""
    state: dict[str, Any] = {
        "quant_type": scheme.type,
        "blocksize": scheme.blocksize,
        "dtype": dtype,
        "shape": list(scheme.shape),
    }
    if scheme.nested:
        state |= {"nested_blocksize": scheme.nested.blocksize, "nested_dtype": "float32"}
        state["nested_offset"] = scheme.nested.offset
    return json.dumps(state).encode()


class Modules(Library[BitsAndBytesConfig]):
    """Linears with `weight.absmax` or `SCB` beside their weight."""

    methods = frozenset(("bitsandbytes",))
    method = METHOD
    marks = frozenset(("SCB", *_MARKS, *_FUSED))
    untold = UNTOLD
    records = frozenset(
        ("weight_format", "weight.quant_map", *(f"{_STATE}bitsandbytes__{kind}" for kind in TABLES))
    )

    def parse(self, config: Mapping[str, Any]) -> BitsAndBytesConfig:
        return parse_bitsandbytes(config)

    def check(self) -> None:
        bits = self.config.bits
        mark = "SCB" if bits == 8 else "weight.absmax"
        if not any(self.split(name)[1] == mark for name in self.checkpoint.tensors):
            # The library would quantize a dense checkpoint while it loads it.
            raise UnsupportedFormat(
                f"{METHOD} of {bits} bits, and no tensor is a {mark}: a dense checkpoint that is "
                "quantized as it is loaded is not supported"
            )

    @staticmethod
    def split(name: str) -> tuple[str, str]:
        module, dot, rest = name.rpartition(".weight.")
        if not dot:
            return Library.split(name)
        if rest in _OF_WEIGHT:
            return module, f"weight.{rest}"
        # Its own name has a dot: `x.weight.quant_state.bitsandbytes__nf4`.
        return (
            (module, f"weight.{rest}") if rest.startswith("quant_state.") else Library.split(name)
        )

    def promise(self, linear: Linear) -> Layout | None:
        config = self.config
        if config.storage not in _STORAGE_NAMES:
            raise UnsupportedFormat(
                f"{METHOD} with bnb_4bit_quant_storage {shown(config.storage)}: not decoded"
            )
        listed = config.not_converted.spares(linear.module)
        if listed or not (config.lists_dense or linear.in_layer):
            return None
        if config.bits == 8:
            return _int8_layout(linear.shape)
        nested = Nested(_OUTER_BLOCK, 0.5) if config.nested else None
        dtype = _SPELLINGS[linear.dtype]
        scheme = FourBit(linear.shape, config.type, _BLOCK, _DTYPES[dtype], nested)
        record = _record(scheme, dtype)
        return {
            **_four_bit_layout(scheme, _STORAGE_NAMES[config.storage]),
            f"{_STATE}bitsandbytes__{config.type}": Tensor("U8", (len(record),), content=record),
        }

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Scheme, str]:
        stored = Headers(module, tensors)
        if fused := _FUSED & set(tensors):
            raise UnsupportedFormat(
                f"{module}: a parameter that is no linear's weight in 4 bits "
                f"({', '.join(sorted(fused))}): not decoded"
            )
        if self.config.not_converted.name(module):
            raise stored.wrong("stored quantized, and llm_int8_skip_modules names it")
        by_bits = {4: self._four_bit, 8: self._llm_int8}
        return by_bits[self.config.bits](stored), f"bitsandbytes {self.config.bits} bits"

    def _llm_int8(self, stored: Headers) -> LlmInt8:
        stored.refuse_others(("weight", "bias", "SCB", "weight_format"), METHOD)
        shape = stored.matrix("weight")
        stored.match(_int8_layout(shape))
        if "weight_format" in stored.tensors:
            order = bytes(self.checkpoint.read_bytes(f"{stored.module}.weight_format"))[0]
            if order:
                # Layouts of older GPUs' instructions.
                raise UnsupportedFormat(
                    f"{stored.module}: weight_format {order}, not rows: not decoded"
                )
        declared = TensorFormat(8, "int", "token", dynamic=True, outliers=self.config.threshold)
        return LlmInt8(shape, Inputs(declared, ()))

    def _four_bit(self, stored: Headers) -> FourBit:
        states = [name for name in stored.tensors if name.startswith(_STATE)]
        if len(states) != 1:
            found = ", ".join(sorted(states)) or "none"
            raise stored.wrong(f"quantized in 4 bits, and not with one {_STATE}…: {found}")
        scheme = self._described(stored, states[0])
        known = (*scheme.tensors, "weight.quant_map", states[0], "bias")
        stored.refuse_others(known, METHOD)
        storage = stored.header("weight").dtype
        size, bytes_ = _STORAGE.get(storage, 1), -(-math.prod(scheme.shape) // 2)
        if bytes_ % size:
            raise stored.wrong(f"{bytes_} bytes of codes are no whole number of {size} bytes each")
        stored.match(_four_bit_layout(scheme, storage if storage in _STORAGE else "U8"))
        content = bytes(self.checkpoint.read_bytes(f"{stored.module}.weight.quant_map"))
        table = torch.frombuffer(bytearray(content), dtype=torch.float32)
        if not torch.equal(table, TABLES[scheme.type]):
            raise stored.wrong(f"its quant_map is not that of {scheme.type}")
        return scheme

    def _described(self, stored: Headers, name: str) -> FourBit:
        """The Scheme that the module's record describes."""
        info = stored.tensors[name]
        if info.dtype != "U8" or len(info.shape) != 1 or info.bytes > _LONGEST_STATE:
            raise stored.wrong(f"its {name} is {info.dtype} {list(info.shape)}, not a short text")
        try:
            state = parse_json(bytes(self.checkpoint.read_bytes(info.name)), has_constants=False)
        except ValueError as error:
            raise stored.wrong(f"its {name} is not JSON: {error}") from None
        if not isinstance(state, dict):
            raise stored.wrong(f"its {name} is not an object")

        def get(field: str, wanted: tuple[Any, ...]) -> Any:
            value = state.get(field)
            if type(value) is not type(wanted[0]) or value not in wanted:
                raise UnsupportedFormat(
                    f"{stored.module}: {field} {shown(value)} in its {name}: not decoded"
                )
            return value

        kind = get("quant_type", (name.rpartition("__")[2],))
        get("quant_type", tuple(TABLES))
        blocksize, dtype = get("blocksize", _BLOCKS), get("dtype", tuple(_DTYPES))
        match state.get("shape"):
            case [int(rows), int(columns)] if (
                rows > 0 and columns > 0 and bool not in (type(rows), type(columns))
            ):
                shape = rows, columns
            case other:
                raise stored.wrong(f"shape {shown(other)} in its {name} is not a matrix's")
        nested = None
        if any(field.startswith("nested_") for field in state):
            get("nested_dtype", ("float32",))
            offset = state.get("nested_offset")
            if not isinstance(offset, float) or not math.isfinite(offset):
                raise stored.wrong(f"nested_offset {shown(offset)} in its {name} is not a number")
            nested = Nested(get("nested_blocksize", (256,)), offset)
        return FourBit(shape, kind, blocksize, _DTYPES[dtype], nested)
