"""The quantized modules of a checkpoint of HQQ, and their Schemes.

Beside codes, scales and zeros each module has its parameters as small tensors, texts as a byte a
letter."""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.header import TensorInfo
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.fields import shown
from scoremode.schemes.foreseen import Foresee
from scoremode.schemes.headers import Headers
from scoremode.schemes.hqq.config import METHOD, HqqConfig, parse_hqq
from scoremode.schemes.hqq.foreseen import foresee
from scoremode.schemes.hqq.grouped import PACKING_OF, PACKINGS, Grouped
from scoremode.schemes.library import Library

__all__ = ["Modules"]

_DTYPES = {
    "torch.float32": (torch.float32, "F32"),
    "torch.float16": (torch.float16, "F16"),
    "torch.bfloat16": (torch.bfloat16, "BF16"),
}
_PACKED = {torch.uint8: ("U8", 1), torch.int32: ("I32", 4)}
# What plays no part in what a weight is.
_IGNORED = ("offload_meta", "encoded_state_dict", "stores_quant_config", "optimize", "round_zero",
            "unpack_view_dtype")  # fmt: skip
_FLAGS = ("view_as_float", "quant_scale", "quant_zero", "channel_wise")
_RECORDS = frozenset(("nbits", "group_size", "shape", "axis", "packing", "compute_dtype",
                      *_FLAGS, *_IGNORED))  # fmt: skip
_READ = {"W_q", "scale", "zero", "bias", *_RECORDS}
_LONGEST_TEXT = 64


class Modules(Library):
    """Linears with a `W_q`."""

    methods = frozenset(("hqq",))
    marks = frozenset(("W_q",))
    records = _RECORDS

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]):
        self._config = parse_hqq(config)
        self._checkpoint = checkpoint
        self._alike: dict[Grouped, Grouped] = {}
        if not any(name.endswith("W_q") for name in checkpoint.tensors):
            raise UnsupportedFormat(
                f"{METHOD}, and no tensor is a W_q: a dense checkpoint that is quantized as it is "
                "loaded is not supported"
            )

    @property
    def config(self) -> HqqConfig:
        return self._config

    @staticmethod
    def foresee(config: Mapping[str, Any], model: Mapping[str, Any]) -> Foresee:
        return foresee(config)

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Grouped, str]:
        stored = _Stored(module, tensors, self._checkpoint)
        if unknown := set(tensors) - _READ:
            names = ", ".join(sorted(unknown))
            raise UnsupportedFormat(f"{module}: {METHOD} with {names} is not supported")
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
        return self._alike.setdefault(scheme, scheme), "hqq"


@dataclass(frozen=True)
class _Stored(Headers):
    """A module's tensors, with readers of the small ones."""

    checkpoint: Checkpoint

    def text(self, suffix: str) -> str:
        info = self._header(suffix)
        if info.dtype != "U8" or len(info.shape) != 1 or info.bytes > _LONGEST_TEXT:
            raise self.wrong(f"its {suffix} is {info.dtype} {list(info.shape)}, not a short text")
        return bytes(self.checkpoint.read_bytes(info.name)).decode("latin-1")

    def numbers(self, suffix: str, count: int = 1) -> list[float]:
        """As they are stored: integers, or floats of 32 bits."""
        info = self._header(suffix)
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
    if name not in _DTYPES:
        raise stored.unsupported("compute_dtype", shown(name))
    dtype, spelling = _DTYPES[name]
    scheme = Grouped((rows, columns), bits, size, axis, PACKINGS[packing], dtype)
    _check(stored, scheme, spelling)
    return scheme


def _check(stored: _Stored, scheme: Grouped, dtype: str) -> None:
    """Raises CheckpointError where codes, scales or zeros don't fit."""
    grid, packing = scheme.grid, scheme.packing
    if packing.dtype == torch.uint8 and grid[0] % packing.count:
        raise stored.wrong(f"{grid[0]} rows of codes are not packed {packing.count} in a byte")
    expected, size = _PACKED[packing.dtype]
    width = grid[1]
    if "view_as_float" in stored.tensors and stored.numbers("view_as_float") != [0]:
        wide = scheme.dtype.itemsize
        if width * size % wide:
            raise CheckpointError(
                f"{stored.module}: {width * size} bytes a row are no whole number of {dtype}"
            )
        expected, width = dtype, width * size // wide
    stored.expect("W_q", (expected,), [(scheme.step, width)])
    of_groups = (grid[0], 1) if scheme.axis else (1, grid[1])
    for suffix in ("scale", "zero"):
        stored.expect(suffix, (dtype,), [of_groups])
