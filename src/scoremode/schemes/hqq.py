"""HQQ: integers of 1 to 8 bits in groups, (q − zero) · scale, as transformers and hqq store them.

A weight [O, I] is seen as a matrix of R rows whose rows (axis 1, R = O · I / group size) or columns
(axis 0, R = group size) are its groups. Codes of `bits` lie in bytes, those of 3 bits in words of
32: a row of bytes holds as many rows of codes as it has room for, R / count apart, the first one in
its highest bits. Codes less zeros, which are fractions, are rounded in the dtype of the scales, and
so is the product.

In a `quantization_config` one `quant_config` is for all linears, or there is one for each kind of them
by its tag: a module's name without `model`, `layers` and numbers. Beside codes, scales and zeros each
module has its parameters once more, as small tensors, texts as a byte a letter, and they decide. By a
config alone scales and zeros have the model's dtype, and groups lie along axis 1 where nothing is said.
Source: transformers 5.23, `HqqConfig`, `prepare_for_hqq_linear`; hqq 0.2.8, `BaseQuantizeConfig`,
`Quantizer.dequantize`, `BitPack`.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.lib import fallback
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.unpack import Tensors, row_blocks
from scoremode.schemes.fields import Fields, shown
from scoremode.schemes.layout import Headers, Layout, Linear, Tensor
from scoremode.schemes.library import Library, TensorsDecide
from scoremode.schemes.patterns import is_one_of_layers, plain

METHOD = "quantization method 'hqq'"


@dataclass(frozen=True)
class Parameters:
    """A weight's parameters by the config; None where it has none.

    - `as_float`: whether codes are stored as the floats of the same bytes.
    """

    bits: float | None
    group_size: int | None
    axis: int | None
    as_float: bool = False


@dataclass(frozen=True)
class HqqConfig(TensorsDecide):
    """The fields of the config that the modules' tensors are held to.

    - `parameters`: by tag, under "" those of all; `skipped`: tags and names that are not quantized.
    """

    parameters: Mapping[str, Parameters]
    skipped: frozenset[str]

    def claims(self, module: str) -> bool:
        """True for a decoder layer's linear that has parameters: stored dense, transformers quantizes
        it as it loads it."""
        return is_one_of_layers(module) and self.of(module) is not None and not self.spares(module)

    def spares(self, module: str) -> bool:
        """Tells whether the list names the module or its kind, whatever their names begin with."""
        names = {plain(name) for name in self.skipped}
        return plain(module) in names or plain(tag_of(module)) in names

    def skips(self, module: str) -> bool:
        return module in self.skipped or tag_of(module) in self.skipped

    def of(self, module: str) -> Parameters | None:
        """The parameters of a module, None if the config has none."""
        return self.parameters.get("") or self.parameters.get(tag_of(module))


def tag_of(module: str) -> str:
    """The kind of a linear: `self_attn.q_proj` of `model.layers.3.self_attn.q_proj`."""
    parts = module.split(".")
    return ".".join(p for p in parts if p not in ("model", "layers") and not p.isnumeric())


def parse_hqq(config: Mapping[str, Any]) -> HqqConfig:
    """Reads a `quantization_config` whose `quant_method` is `hqq`."""
    fields = Fields(config, method=METHOD)
    quant = fields.object("quant_config")
    found: dict[str, Parameters] = {}
    if quant is not None and quant.any("weight_quant_params") is not None:
        found[""] = _parameters(quant)
    elif quant is not None:
        for tag in config["quant_config"]:
            kind = quant.object(tag)
            # The library leaves a kind dense that is named and not described.
            if kind is not None:
                found[tag] = _parameters(kind)
    return HqqConfig(found, frozenset(fields.names("skip_modules")))


def _parameters(fields: Fields) -> Parameters:
    fields.refuse("scale_quant_params", "zero_quant_params")
    weight = fields.object("weight_quant_params") or Fields({}, "weight_quant_params")
    if not weight.flag("channel_wise", True):
        raise weight.not_decoded("channel_wise", False)
    bits = weight.any("nbits")
    if bits is not None and type(bits) not in (int, float):
        raise weight.wrong("nbits", "a number")
    as_float = bool(weight.flag("view_as_float", False))
    return Parameters(bits, weight.whole("group_size"), weight.whole("axis"), as_float)


@dataclass(frozen=True)
class Packing:
    """The number and the `bits` of codes that an element of `dtype` holds."""

    bits: int
    count: int
    dtype: torch.dtype = torch.uint8


# By the library's names.
PACKINGS = {
    "8bit_u8": Packing(8, 1),
    "4bit_u8": Packing(4, 2),
    "3bit_32": Packing(3, 10, torch.int32),
    "2bit_u8": Packing(2, 4),
    "1bit_u8": Packing(1, 8),
}
# The name by bits.
PACKING_OF = {8: "8bit_u8", 6: "8bit_u8", 5: "8bit_u8", 4: "4bit_u8", 3: "3bit_32", 2: "2bit_u8",
              1.58: "2bit_u8", 1: "1bit_u8"}  # fmt: skip


@dataclass(frozen=True)
class Grouped:
    """A weight in groups of `size` along `axis`, rounded in `dtype`; `bits` by its name."""

    shape: tuple[int, int]
    bits: float
    size: int
    axis: int
    packing: Packing
    dtype: torch.dtype

    @property
    def label(self) -> str:
        return f"HQQ {self.bits:.3g} bits g{self.size}{'' if self.axis else ' axis 0'}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("W_q", "scale", "zero")

    @property
    def inputs(self) -> None:
        return None

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the matrix that groups are rows or columns of."""
        count = self.shape[0] * self.shape[1] // self.size
        return (count, self.size) if self.axis else (self.size, count)

    @property
    def step(self) -> int:
        """Rows of elements that codes are packed in."""
        return -(-self.grid[0] // self.packing.count)

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        # They may be stored as floats of the same bytes (`view_as_float`).
        packed = tensors["W_q"].contiguous().view(self.packing.dtype)
        scale, zero = tensors["scale"], tensors["zero"]

        def run() -> None:
            # Imports Triton, which need not be there.
            from scoremode.schemes import library_kernels

            library_kernels.hqq(out, packed, scale, zero, self)

        if not fallback.attempt(f"decode {self.label}", out.device, run):
            self._decode(packed, scale, zero, out, scratch)

    def _decode(
        self,
        packed: torch.Tensor,
        scale: torch.Tensor,
        zero: torch.Tensor,
        out: torch.Tensor,
        scratch: Scratch,
    ) -> None:
        (rows, columns), bits = self.grid, self.packing.bits
        grid = out.view(rows, columns)
        for nth in range(self.packing.count):
            shift, first = (self.packing.count - 1 - nth) * bits, nth * self.step
            for block in row_blocks((min(self.step, rows - first), columns), out.device):
                source = packed[block]
                codes = scratch.get("codes", tuple(source.shape), packed.dtype, out.device)
                torch.bitwise_right_shift(source, shift, out=codes)
                codes.bitwise_and_((1 << bits) - 1)
                q = scratch.get("values", tuple(source.shape), self.dtype, out.device).copy_(codes)
                target = slice(first + block.start, first + block.stop)
                of_rows = target if self.axis else slice(None)
                grid[target].copy_(q.sub_(zero[of_rows]).mul_(scale[of_rows]))


# Dtypes of weights by safetensors' spelling, and the other way round.
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_SPELLINGS = {str(dtype): spelling for spelling, dtype in _DTYPES.items()}
_PACKED = {torch.uint8: ("U8", 1), torch.int32: ("I32", 4)}


def _layout(scheme: Grouped, *, as_float: bool) -> Layout:
    """Codes, scales and zeros; codes may be stored `as_float`, as the floats of the same bytes."""
    grid, dtype = scheme.grid, _SPELLINGS[str(scheme.dtype)]
    (codes, size), width = _PACKED[scheme.packing.dtype], grid[1]
    if as_float:
        codes, width = dtype, width * size // scheme.dtype.itemsize
    of_groups = Tensor(dtype, (grid[0], 1) if scheme.axis else (1, grid[1]))
    return {"W_q": Tensor(codes, (scheme.step, width)), "scale": of_groups, "zero": of_groups}


def _records(scheme: Grouped, *, as_float: bool) -> Layout:
    """The parameters that hqq 0.2.8 writes beside a weight."""
    one, zero = Tensor("U8", (), content=b"\1"), Tensor("U8", ())
    floats = scheme.bits != int(scheme.bits)
    in_words = scheme.packing.dtype == torch.int32
    return {
        "nbits": _number("F32", scheme.bits) if floats else _number("I32", int(scheme.bits)),
        "group_size": _number("I32", scheme.size),
        "axis": _number("I32", scheme.axis),
        "shape": Tensor("I64", (2,), content=struct.pack("<2q", *scheme.shape)),
        "packing": _text(PACKING_OF[scheme.bits]),
        "unpack_view_dtype": _text("torch.int32" if in_words else "torch.uint8"),
        "compute_dtype": _text(str(scheme.dtype)),
        "view_as_float": one if as_float else zero,
        "round_zero": one if scheme.bits == 4 else zero,
        **dict.fromkeys(("quant_scale", "quant_zero", "offload_meta"), zero),
        **dict.fromkeys(
            ("channel_wise", "optimize", "encoded_state_dict", "stores_quant_config"), one
        ),
    }


def _text(words: str) -> Tensor:
    return Tensor("U8", (len(words),), content=words.encode())


def _number(dtype: str, value: float) -> Tensor:
    return Tensor(dtype, (), content=struct.pack("<f" if dtype == "F32" else "<i", value))


# Records that play no part in a weight's value.
_IGNORED = ("offload_meta", "encoded_state_dict", "stores_quant_config", "optimize", "round_zero",
            "unpack_view_dtype")  # fmt: skip
_FLAGS = ("view_as_float", "quant_scale", "quant_zero", "channel_wise")
_RECORDS = frozenset(("nbits", "group_size", "shape", "axis", "packing", "compute_dtype",
                      *_FLAGS, *_IGNORED))  # fmt: skip
_READ = {"W_q", "scale", "zero", "bias", *_RECORDS}
_LONGEST_TEXT = 64


class Modules(Library[HqqConfig]):
    """Linears with a `W_q`."""

    methods = frozenset(("hqq",))
    parse = staticmethod(parse_hqq)
    method = METHOD
    about = ("`hqq`", "yes", "W")
    looks, looks_by = "HQQ", ("W_q",)
    required = "W_q"
    on_load = True
    marks = frozenset(("W_q",))
    records = _RECORDS

    def promise(self, linear: Linear) -> Layout | None:
        module, (rows, columns) = linear.module, linear.shape
        said = self.config.of(module)
        if said is None or self.config.spares(module):
            return None
        bits, size = said.bits, said.group_size
        if bits is None or bits not in PACKING_OF or size is None or said.axis not in (None, 0, 1):
            raise UnsupportedFormat(
                f"{METHOD} with nbits {bits}, group_size {size} and axis {said.axis}: what is stored "
                "is known from its tensors alone"
            )
        if size < 1 or rows * columns % size:
            raise CheckpointError(
                f"{module}: {rows} x {columns} elements are no whole number of groups of {size}"
            )
        axis, packing = 1 if said.axis is None else said.axis, PACKINGS[PACKING_OF[bits]]
        scheme = Grouped(linear.shape, bits, size, axis, packing, _DTYPES[linear.dtype])
        as_float = said.as_float
        return {**_layout(scheme, as_float=as_float), **_records(scheme, as_float=as_float)}

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Grouped, str]:
        stored = _Stored(module, tensors, self.checkpoint)
        stored.refuse_others(_READ, METHOD)
        for name in set(tensors) & set(_IGNORED):
            if tensors[name].dtype not in ("U8", "I32", "F32"):
                raise stored.wrong(f"its {name} has dtype {tensors[name].dtype}")
        if self.config.skips(module):
            raise stored.wrong("stored quantized, and skip_modules names it")
        scheme = _scheme(stored)
        said = self.config.of(module)
        if said is not None:
            for name, here, there in (
                ("nbits", scheme.bits, said.bits),
                ("group_size", scheme.size, said.group_size),
                ("axis", scheme.axis, said.axis),
            ):
                if there is not None and here != there:
                    raise stored.wrong(f"its {name} is {here}, and the config says {there}")
        return self.alike(scheme, lambda: scheme), "hqq"


@dataclass(frozen=True)
class _Stored(Headers):
    """A module's tensors, with readers of the small ones."""

    checkpoint: Checkpoint

    def text(self, suffix: str) -> str:
        info = self.header(suffix)
        if info.dtype != "U8" or len(info.shape) != 1 or info.bytes > _LONGEST_TEXT:
            raise self.wrong(f"its {suffix} is {info.dtype} {list(info.shape)}, not a short text")
        return bytes(self.checkpoint.read_bytes(info.name)).decode("latin-1")

    def numbers(self, suffix: str, count: int = 1) -> list[float]:
        """Numbers as they are stored: integers, or floats of 32 bits."""
        info = self.header(suffix)
        kinds = {"U8": "B", "I32": "i", "I64": "q", "F32": "f"}
        if info.dtype not in kinds or info.elements != count or len(info.shape) > 1:
            raise self.wrong(
                f"its {suffix} is {info.dtype} {list(info.shape)}, not {count} numbers"
            )
        content = bytes(self.checkpoint.read_bytes(info.name))
        return list(struct.unpack(f"<{count}{kinds[info.dtype]}", content))

    def unsupported(self, name: str, value: object) -> UnsupportedFormat:
        return UnsupportedFormat(f"{self.module}: {METHOD} with {name} {value}: not decoded")


def _scheme(stored: _Stored) -> Grouped:
    for name in _FLAGS[1:]:
        if name in stored.tensors:
            (value,) = stored.numbers(name)
            if bool(value) != (name == "channel_wise"):
                raise stored.unsupported(name, bool(value))
    (bits,) = stored.numbers("nbits")
    bits = next((b for b in PACKING_OF if math.isclose(b, bits, rel_tol=1e-6)), None)
    if bits is None:
        raise stored.unsupported("nbits", stored.numbers("nbits")[0])
    packing = stored.text("packing")
    if packing != PACKING_OF[bits]:
        raise stored.unsupported(f"nbits {bits} and packing", shown(packing))
    (axis,), (size,) = stored.numbers("axis"), stored.numbers("group_size")
    if axis not in (0, 1):
        raise stored.unsupported("axis", axis)
    rows, columns = stored.numbers("shape", 2)
    if not all(isinstance(n, int) and n > 0 for n in (rows, columns, size)):
        raise stored.wrong(f"shape {[rows, columns]} in groups of {size}")
    rows, columns, size, axis = int(rows), int(columns), int(size), int(axis)
    if rows * columns % size:
        raise stored.wrong(f"{rows} x {columns} elements are no whole number of groups of {size}")
    name = stored.text("compute_dtype")
    if name not in _SPELLINGS:
        raise stored.unsupported("compute_dtype", shown(name))
    dtype = _DTYPES[_SPELLINGS[name]]
    scheme = Grouped((rows, columns), bits, size, axis, PACKINGS[packing], dtype)
    stored.match(_layout(scheme, as_float=_is_float(stored, scheme)))
    return scheme


def _is_float(stored: _Stored, scheme: Grouped) -> bool:
    """Tells whether codes are stored as floats. Raises CheckpointError where they can't be."""
    (rows, columns), packing = scheme.grid, scheme.packing
    if packing.dtype == torch.uint8 and rows % packing.count:
        raise stored.wrong(f"{rows} rows of codes are not packed {packing.count} in a byte")
    if "view_as_float" not in stored.tensors or stored.numbers("view_as_float") == [0]:
        return False
    size = columns * packing.dtype.itemsize
    if size % scheme.dtype.itemsize:
        raise stored.wrong(
            f"{size} bytes a row are no whole number of {_SPELLINGS[str(scheme.dtype)]}"
        )
    return True
