"""bitsandbytes: weights of 4 bits in blocks, and LLM.int8.

A weight's tensors say what it is, and those of 4 bits have a record of their own beside them; the
config tells 4 bits from 8, what LLM.int8 does with inputs, and which linears are not quantized. By the
config alone blocks are taken for 64 wide, the default that transformers leaves, and the model's head
stays dense where no list says what does.
Source: transformers 5.23, `BitsAndBytesConfig`, `Bnb4BitHfQuantizer`, `get_modules_to_not_convert`.

Weights as bitsandbytes stores them.

LLM.int8 has 8 bits: `weight` int8 and `SCB`, the largest
magnitude of each row.

The effective weight is code · SCB · (1 / 127), each product rounded in float32. LLM.int8 quantizes
inputs too, a token's to int8 by its largest magnitude, but for columns that hold an outlier in any
token of a window (`quantize_apart`): these are multiplied as they are with the effective
weight's columns, in the compute dtype, and added to the rounded product of the codes.
Source: bitsandbytes 0.50, `int8_vectorwise_dequant`, `MatMul8bitLt`, `int8_mixed_scaled_mm`.

Weights of 4 bits are indices into a table of 16, under the largest
magnitude of a block.

A weight [O, I] is one run of codes, two in a byte, the first in the high nibble; a block is a run
of `blocksize` of them, wherever a row ends. The effective weight is table[code] · absmax in
float32, rounded to the dtype that the weight had before it was quantized. With double quantization
absmax is itself a table's value times the largest magnitude of a block of them, plus an offset, in
float32.
Source: bitsandbytes 0.50, `dequantize_4bit` and `dequantize_blockwise` on a CPU.
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
from scoremode.lib import fallback
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import Scheme, Scratch
from scoremode.schemes.decoding.codes import Codes, Quantized
from scoremode.schemes.decoding.unpack import BLOCK_ELEMENTS, Tensors, row_blocks
from scoremode.schemes.fields import Fields, TensorFormat, not_decoded, shown
from scoremode.schemes.layout import UNTOLD, Headers, Layout, Linear, Tensor, single
from scoremode.schemes.library import Library, TensorsDecide
from scoremode.schemes.patterns import NotConverted, is_one_of_layers

# Normal quantiles; and 0, 1/192, 1/6, 1/4, 1/3, 1/2, 2/3, 1 in the order of their codes.
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
# By the type's name: [16] float32. Code 8 of fp4 is a positive zero.
TABLES = {
    "nf4": torch.tensor(_NF4),
    "fp4": torch.tensor((*_FP4, 0.0, *(-value for value in _FP4[1:]))),
}


@dataclass(frozen=True)
class Nested:
    """Quantized absmax: blocks of `blocksize` of them, less `offset`."""

    blocksize: int
    offset: float


@dataclass(frozen=True)
class FourBit:
    """A weight of `type` in blocks of `blocksize`, rounded in `dtype`."""

    shape: tuple[int, int]
    type: str
    blocksize: int
    dtype: torch.dtype
    nested: Nested | None = None

    @property
    def label(self) -> str:
        double = " double" if self.nested else ""
        return f"{self.type.upper()} g{self.blocksize}{double}"

    @property
    def tensors(self) -> tuple[str, ...]:
        nested = ("weight.nested_absmax", "weight.nested_quant_map") if self.nested else ()
        return ("weight", "weight.absmax", *nested)

    @property
    def inputs(self) -> None:
        return None

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        packed = tensors["weight"].contiguous().view(torch.uint8).view(-1)
        absmax, table = self._absmax(tensors), TABLES[self.type].to(out.device)

        def run() -> None:
            # Imports Triton, which need not be there.
            from scoremode.schemes import library_kernels

            library_kernels.four_bit(out, packed, absmax, table, self.blocksize, self.dtype)

        if not fallback.attempt(f"decode {self.label}", out.device, run):
            self._decode(packed, absmax, table, out, scratch)

    def _absmax(self, tensors: Tensors) -> torch.Tensor:
        """float32 [blocks]."""
        stored = tensors["weight.absmax"]
        if self.nested is None:
            return stored
        largest = tensors["weight.nested_absmax"].repeat_interleave(self.nested.blocksize)
        values = tensors["weight.nested_quant_map"].index_select(0, stored.int())
        return values.mul_(largest[: len(values)]).add_(self.nested.offset)

    def _decode(
        self,
        packed: torch.Tensor,
        absmax: torch.Tensor,
        table: torch.Tensor,
        out: torch.Tensor,
        scratch: Scratch,
    ) -> None:
        # One look-up moves the two values of a byte.
        codes = torch.arange(256, device=out.device)
        pairs = torch.stack((table[codes >> 4], table[codes & 15]), 1).view(torch.int64).view(-1)
        flat, count = out.view(-1), math.prod(self.shape)
        step = max(BLOCK_ELEMENTS[out.device.type] // self.blocksize, 1) * self.blocksize
        for begin in range(0, count, step):
            end = min(begin + step, count)
            run = packed[begin // 2 : -(-end // 2)]
            index = scratch.get("index", (len(run),), torch.int32, out.device).copy_(run)
            values = scratch.get("runs", (len(run),), torch.int64, out.device)
            torch.index_select(pairs, 0, index, out=values)
            q = values.view(torch.float32)[: end - begin]
            whole = len(q) - len(q) % self.blocksize
            first = begin // self.blocksize
            blocks = q[:whole].view(-1, self.blocksize)
            blocks.mul_(absmax[first : first + len(blocks)].unsqueeze(1))
            if whole < len(q):
                q[whole:].mul_(absmax[-1])
            if self.dtype not in (torch.float32, out.dtype):
                q = scratch.get("rounded", tuple(q.shape), self.dtype, q.device).copy_(q)
            flat[begin:end].copy_(q)


# 1 / 127 in float32, as the library writes it.
INVERSE = 7.874015718698502e-3


@dataclass(frozen=True)
class LlmInt8:
    """A weight of int8 with a largest magnitude a row."""

    shape: tuple[int, int]
    inputs: Inputs | None

    @property
    def label(self) -> str:
        return "LLM.int8"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "SCB")

    @property
    def codes(self) -> Codes:
        return Codes("int", 128)

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        weight, largest = tensors["weight"], tensors["SCB"]

        def run() -> None:
            # Imports Triton, which need not be there.
            from scoremode.schemes import library_kernels

            library_kernels.llm_int8(out, weight, largest, INVERSE)

        if fallback.attempt(f"decode {self.label}", out.device, run):
            return
        for rows in row_blocks(self.shape, out.device):
            q = scratch.get("values", tuple(weight[rows].shape), torch.float32, out.device)
            q.copy_(weight[rows]).mul_(largest[rows].unsqueeze(1)).mul_(INVERSE)
            out[rows].copy_(q)

    def factor(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        out.copy_(tensors["weight"])
        return _scale(tensors)

    def stored_factors(self, tensors: Tensors, dtype: torch.dtype) -> Quantized | None:
        weight = tensors["weight"]
        # Contiguous and aligned as the device's matmuls want it.
        fits = weight.dtype == dtype and weight.is_contiguous() and weight.data_ptr() % 16 == 0
        return Quantized(weight, _scale(tensors)) if fits else None

    def columns(self, tensors: Tensors, columns: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        chosen = tensors["weight"][:, columns].float()
        return chosen.mul_(tensors["SCB"].unsqueeze(1)).mul_(INVERSE).to(dtype)


def _scale(tensors: Tensors) -> torch.Tensor:
    return tensors["SCB"].unsqueeze(1) * INVERSE


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
    """Reads a `quantization_config` whose `quant_method` is `bitsandbytes`."""
    fields = Fields(config, method=METHOD)
    four, eight = (
        bool(fields.flag(name, False) or fields.flag(f"_{name}", False))
        for name in ("load_in_4bit", "load_in_8bit")
    )
    if four == eight:
        which = "both" if four else "neither"
        raise CheckpointError(
            f"quantization_config can't be understood: {which} of load_in_4bit and load_in_8bit"
        )
    fields.flag("llm_int8_has_fp16_weight", False)
    fields.refuse("llm_int8_has_fp16_weight")
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
# The block sizes that a config without tensors is taken for.
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
    parse = staticmethod(parse_bitsandbytes)
    method = METHOD
    about = (
        "`bitsandbytes`",
        "saved in 4 or 8 bits; not what is quantized on loading",
        "4 bits W, 8 bits W+A",
    )
    looks, looks_by = (
        "bitsandbytes",
        (
            "SCB",
            "absmax",
        ),
    )
    told = ({"load_in_4bit"}, {"load_in_8bit"}, {"_load_in_4bit"}, {"_load_in_8bit"})
    marks = frozenset(("SCB", *_MARKS, *_FUSED))
    untold = UNTOLD
    records = frozenset(
        ("weight_format", "weight.quant_map", *(f"{_STATE}bitsandbytes__{kind}" for kind in TABLES))
    )

    def check(self) -> None:
        bits = self.config.bits
        mark = "SCB" if bits == 8 else "weight.absmax"
        if not any(self.split(name)[1] == mark for name in self.checkpoint.tensors):
            # The library would quantize a dense checkpoint while it loads it.
            raise UnsupportedFormat(
                f"{METHOD} of {bits} bits, and no tensor is a {mark}: a dense checkpoint that is "
                "quantized as it is loaded is not supported"
            )

    @classmethod
    def split(cls, name: str) -> tuple[str, str]:
        module, dot, rest = name.rpartition(".weight.")
        # A record's own name has a dot: `x.weight.quant_state.bitsandbytes__nf4`.
        if dot and (rest in _OF_WEIGHT or rest.startswith("quant_state.")):
            return module, f"weight.{rest}"
        return super().split(name)

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
