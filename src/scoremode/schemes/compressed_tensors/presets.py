"""compressed-tensors' presets: what a group means that is only a name and its targets.

Source: compressed-tensors 0.20, `PRESET_SCHEMES`; a test compares each.
"""

import re
from dataclasses import replace

from scoremode.schemes.tensor_format import TensorFormat

__all__ = ["preset_formats"]

_TOKEN = TensorFormat(8, "int", "token", dynamic=True)
_FP8_TOKEN = replace(_TOKEN, type="float")
_FP8_GROUP = TensorFormat(8, "float", "group", 128, dynamic=True)
_NVFP4 = TensorFormat(4, "float", "tensor_group", 16, scale_dtype="float8_e4m3fn")
_INT8 = (TensorFormat(8, "int", "channel"), _TOKEN)


def _mx(bits: int, *, dynamic: bool = False) -> TensorFormat:
    return TensorFormat(bits, "float", "group", 32, dynamic=dynamic, scale_dtype="uint8")


_PRESETS: dict[str, tuple[TensorFormat | None, TensorFormat | None]] = {
    "UNQUANTIZED": (None, None),
    "W4A16_ASYM": (TensorFormat(4, "int", "group", 128, symmetric=False), None),
    "W8A8": _INT8,
    "INT8": _INT8,
    "W4AFP8": (TensorFormat(4, "int", "group", 128), _FP8_TOKEN),
    "FP8": (TensorFormat(8, "float", "tensor"), TensorFormat(8, "float", "tensor")),
    "FP8_DYNAMIC": (TensorFormat(8, "float", "channel"), _FP8_TOKEN),
    "FP8_BLOCK": (TensorFormat(8, "float", "block", block=(128, 128)), _FP8_GROUP),
    "NVFP4A16": (_NVFP4, None),
    "NVFP4": (_NVFP4, replace(_NVFP4, dynamic="local")),
    "MXFP4A16": (_mx(4), None),
    "MXFP4": (_mx(4), _mx(4, dynamic=True)),
    "MXFP4XFP8": (_mx(4), _FP8_GROUP),
    "MXFP6A16": (_mx(6), None),
    "MXFP6A8": (_mx(6), _mx(8, dynamic=True)),
    "MXFP8A16": (_mx(8), None),
    "MXFP8": (_mx(8), _mx(8, dynamic=True)),
}


def preset_formats(name: str) -> tuple[TensorFormat | None, TensorFormat | None]:
    """Weights and inputs of a preset. Raises KeyError for an unknown one."""
    name = name.upper()
    if name in _PRESETS:
        return _PRESETS[name]
    match = re.fullmatch(r"W([2-8])A(4|8|16)", name)
    if match is None or int(match[1]) > int(match[2]):
        raise KeyError(name)
    bits = int(match[2])
    inputs = replace(_TOKEN, bits=bits) if bits < 16 else None
    return TensorFormat(int(match[1]), "int", "group", 128), inputs
