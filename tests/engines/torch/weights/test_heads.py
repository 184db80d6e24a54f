"""DeepSeek's keys and values of all heads, stored apart, as the one parameter."""

import gguf
import numpy as np
import pytest
import torch
from support.schemes import same

from scoremode.engines.torch.weights.slot import Heads, Source
from scoremode.errors import CheckpointError
from scoremode.schemes.base import Dense, Scratch
from scoremode.schemes.fused_experts import Expert, Stacked
from scoremode.schemes.gguf import Blocks

HEADS, KEYS, VALUES, LATENT = 3, 32, 24, 64


def split(whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As llama.cpp's converter does it."""
    by_head = whole.view(HEADS, KEYS + VALUES, LATENT)
    return by_head[:, :KEYS].transpose(1, 2).contiguous(), by_head[:, KEYS:].contiguous()


def test_dense():
    whole = torch.randn(HEADS * (KEYS + VALUES), LATENT)
    keys, values = split(whole)
    heads = Heads(
        [
            Source("a.k_b_proj", Dense(tuple(keys.shape), "F32")),
            Source("a.v_b_proj", Dense(tuple(values.shape), "F32")),
        ]
    )
    assert heads.shape == whole.shape and heads.label == "f32" and heads.inputs is None
    assert heads.tensors == ("a.k_b_proj.weight", "a.v_b_proj.weight")
    out = torch.full(heads.shape, torch.nan)
    tensors = dict(zip(heads.tensors, (keys, values), strict=True))
    heads.decode(tensors, out, Scratch())
    same(out, whole)


def test_packed():
    """Keys in blocks of a transposed head's rows, so that no row of the parameter is one."""
    torch.manual_seed(0)
    stored, decoded, sources = {}, [], []
    tensors = split(torch.randn(HEADS * (KEYS + VALUES), LATENT))
    for part, tensor, kind in zip("kv", tensors, ("Q8_0", "Q4_0"), strict=True):
        number = gguf.GGMLQuantizationType[kind]
        packed = gguf.quantize(tensor.numpy(), number)
        decoded.append(torch.from_numpy(gguf.dequantize(packed, number)))
        stored[f"a.{part}_b_proj.{kind}"] = torch.from_numpy(np.ascontiguousarray(packed))
        one = Expert(Blocks(kind, (tensor.shape[1], tensor.shape[2])), ((kind, kind),))
        sources.append(Source(f"a.{part}_b_proj", Stacked(HEADS, one)))
    heads = Heads(sources)
    assert heads.label == "Q4_0 + Q8_0" and set(heads.tensors) == set(stored)
    out = torch.full(heads.shape, torch.nan)
    heads.decode(stored, out, Scratch())
    expected = torch.cat((decoded[0].transpose(1, 2), decoded[1]), dim=1).flatten(0, 1)
    same(out, expected)


def test_parts_that_are_no_two_of_the_same_heads():
    def heads(*shapes):
        return Heads([Source(f"m.{i}", Dense(shape, "F32")) for i, shape in enumerate(shapes)])

    with pytest.raises(CheckpointError, match=r"m\.0 and m\.1 are not stored head by head"):
        heads((3, 64, 32), (72, 64))
    for other in ((2, 24, 64), (3, 24, 32)):
        with pytest.raises(CheckpointError, match=r"m\.1, of shapes \[3, 64, 32\] and"):
            heads((3, 64, 32), other)
