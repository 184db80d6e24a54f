"""What a linear would be stored as, by a `quantization_config` of HQQ alone.

Scales and zeros have the model's dtype, the parameters those that hqq 0.2.8 writes; groups lie along
axis 1 where nothing is said.
"""

import struct
from collections.abc import Mapping
from typing import Any

import torch

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.foreseen import Foresee, Foreseen, Linear
from scoremode.schemes.hqq.config import METHOD, Parameters, parse_hqq
from scoremode.schemes.hqq.grouped import PACKING_OF, PACKINGS, Grouped

__all__ = ["foresee"]

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_ONE, _ZERO = Foreseen("U8", (), b"\1"), Foreseen("U8", ())


def foresee(config: Mapping[str, Any]) -> Foresee:
    """Raises CheckpointError, UnsupportedFormat for a config that can't be read."""
    parsed = parse_hqq(config)

    def tensors(linear: Linear) -> Mapping[str, Foreseen] | None:
        said = parsed.of(linear.module)
        if said is None or parsed.spares(linear.module):
            return None
        return _stored(linear, said)

    return tensors


def _stored(linear: Linear, said: Parameters) -> dict[str, Foreseen]:
    bits, size = said.bits, said.group_size
    if bits is None or bits not in PACKING_OF or size is None or said.axis not in (None, 0, 1):
        raise UnsupportedFormat(
            f"{METHOD} with nbits {bits}, group_size {size} and axis {said.axis}: what is stored is "
            "known from its tensors alone"
        )
    rows, columns = linear.shape
    if size < 1 or rows * columns % size:
        raise CheckpointError(
            f"{linear.module}: {rows} x {columns} elements are no whole number of groups of {size}"
        )
    name, dtype = PACKING_OF[bits], _DTYPES[linear.dtype]
    axis = 1 if said.axis is None else said.axis
    scheme = Grouped(linear.shape, bits, size, axis, PACKINGS[name], dtype)
    width = scheme.grid[1]
    in_words = scheme.packing.dtype == torch.int32
    codes = "I32" if in_words else "U8"
    if said.as_float:
        codes, width = linear.dtype, width * (4 if in_words else 1) // dtype.itemsize
    of_groups = Foreseen(linear.dtype, (scheme.grid[0], 1) if axis else (1, scheme.grid[1]))
    floats = bits != int(bits)
    return {
        "W_q": Foreseen(codes, (scheme.step, width)),
        "scale": of_groups,
        "zero": of_groups,
        "nbits": _number("F32", bits) if floats else _number("I32", int(bits)),
        "group_size": _number("I32", size),
        "axis": _number("I32", axis),
        "shape": Foreseen("I64", (2,), b"".join(n.to_bytes(8, "little") for n in linear.shape)),
        "packing": _text(name),
        "unpack_view_dtype": _text("torch.int32" if in_words else "torch.uint8"),
        "compute_dtype": _text(str(dtype)),
        "view_as_float": _ONE if said.as_float else _ZERO,
        "round_zero": _ONE if bits == 4 else _ZERO,
        **dict.fromkeys(("quant_scale", "quant_zero", "offload_meta"), _ZERO),
        **dict.fromkeys(
            ("channel_wise", "optimize", "encoded_state_dict", "stores_quant_config"), _ONE
        ),
    }


def _text(words: str) -> Foreseen:
    return Foreseen("U8", (len(words),), words.encode())


def _number(dtype: str, value: float) -> Foreseen:
    return Foreseen(dtype, (), struct.pack("<f" if dtype == "F32" else "<i", value))
