"""Modules as other libraries store them and dequantize them, by the files that their scripts
made."""

from collections import defaultdict
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file

Tensors = dict[str, torch.Tensor]
FOLDER = Path(__file__).parents[1] / "golden" / "libraries"


@cache
def golden(library: str) -> dict[str, Tensors]:
    """Cases by name: stored tensors by suffix, and as `dense` what the library makes of them."""
    cases: dict[str, Tensors] = defaultdict(dict)
    for name, tensor in load_file(FOLDER / f"{library}.safetensors").items():
        case, _, suffix = name.partition(".")
        cases[case][suffix] = tensor
    return dict(cases)
