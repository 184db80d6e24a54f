"""One mutated GGUF file, or split: refused in one clear line, or read right."""

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.gguf.header import TYPES
from scoremode.schemes.base import Scratch
from scoremode.schemes.fused_experts import Stacked
from scoremode.schemes.resolve import Schemes


def differences(checkpoint: Checkpoint, schemes: Schemes) -> list[str]:
    """What the checkpoint has otherwise than the gguf package, by each tensor's place in its file."""
    theirs: dict[tuple[Path, int], Any] = {}
    for file in checkpoint.opened:
        for tensor in gguf.GGUFReader(file).tensors:
            theirs[file, int(tensor.data_offset)] = tensor
    found = []
    for name, info in checkpoint.tensors.items():
        tensor = theirs[info.file, info.begin]
        content = tensor.data.tobytes()
        if (
            checkpoint.read(name).contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            != content
        ):
            found.append(f"{name} has other bytes than {tensor.name}")
        kind = name.rpartition(".")[2] if info.dtype == "U8" else info.dtype
        if kind != tensor.tensor_type.name:
            found.append(f"{name} is {kind}, not {tensor.tensor_type.name}")
        shape = tuple(tensor.shape.tolist()[::-1])
        if info.shape != (tensor.data.shape if info.dtype == "U8" else shape):
            found.append(f"{name} has shape {info.shape}, not {shape}")
        if _number(name) != _number(tensor.name):
            found.append(f"{name} is not of the layer of {tensor.name}")
    for module, scheme in schemes.quantized.items():
        home = schemes.home_of(module)
        own = {s: checkpoint.read(f"{home}.{s}") for s in scheme.tensors}
        (suffix,) = (s for s in own if s in TYPES)
        info = checkpoint.tensors[f"{home}.{suffix}"]
        tensor = theirs[info.file, info.begin]
        dense = torch.full(scheme.shape, math.nan)
        if isinstance(scheme, Stacked):
            dense = torch.full((scheme.count, *scheme.shape[-2:]), math.nan)
        scheme.decode(own, dense, Scratch())
        with np.errstate(all="ignore"):
            expected = dequantize(tensor.data, tensor.tensor_type)
            if "scale" in own:
                expected = expected * own["scale"].view(-1, *[1] * (expected.ndim - 1)).numpy()
        if not np.array_equal(dense.numpy(), expected.reshape(dense.shape), equal_nan=True):
            found.append(f"{module} ({scheme.label}) decodes to another weight")
    return found


def _number(name: str) -> str:
    """The first number in a name: its layer's."""
    return next((part for part in name.split(".") if part.isdigit()), "")
