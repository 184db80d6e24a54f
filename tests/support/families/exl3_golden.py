"""Linears as ExLlamaV3 stores them, and what its own kernels make of them, by the file that
golden/exl3/make_exl3.py wrote on a GPU."""

from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file

Tensors = dict[str, torch.Tensor]
CODEBOOKS = ("3inst", "mcg", "mul1")
# Linears that the library's own quantizer made → their codebook.
MADE = {"calibrated": "mul1", "uncalibrated": "mcg", "first": "3inst"}
# Of these inputs the library's weight is kept.
ROW_STEP = 27
_FILE = Path(__file__).parents[2] / "golden" / "exl3" / "exl3.safetensors"


@cache
def _file() -> Tensors:
    return load_file(_FILE)


def linear(bits: int, codebook: str) -> tuple[Tensors, Tensors]:
    """Random tensors by suffix, which are the same for all codebooks; and the library's `inner`,
    `dense` and `sha256`."""
    return _below(f"b{bits}"), _below(f"b{bits}.{codebook}")


def made(name: str) -> Tensors:
    """Tensors by suffix, and the library's `dense`."""
    return _below(f"made.{name}")


def signs() -> tuple[torch.Tensor, torch.Tensor]:
    """Packed, and as the library reads them."""
    found = _below("signs")
    return found["packed"], found["half"]


def _below(prefix: str) -> Tensors:
    names = {name: name.removeprefix(f"{prefix}.") for name in _file() if name.startswith(prefix)}
    return {suffix: _file()[name] for name, suffix in names.items() if "." not in suffix}
