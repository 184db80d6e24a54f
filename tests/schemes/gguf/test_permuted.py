"""Weights laid out otherwise, dense and packed, against what the wrapped format alone gives."""

import pytest
import torch
from support.gguf.golden import in_blocks, make_pair
from support.gguf.round_trip import difference

from scoremode.checkpoint.gguf.table import Layout
from scoremode.errors import CheckpointError, UnsupportedModel
from scoremode.schemes.base import Dense, FactoredScheme, Scheme, Scratch
from scoremode.schemes.decoding.codes import Quantized
from scoremode.schemes.gguf import Blocks, permuted


def decoded(scheme: Scheme, tensors, dtype=torch.float32):
    out = torch.empty(tuple(scheme.shape), dtype=dtype)
    scheme.decode(tensors, out, Scratch())
    return out


def packed(rows: int = 8, columns: int = 64):
    """A Q4_0 weight of finite random blocks."""
    torch.manual_seed(1)
    blocks = torch.randint(0, 256, (rows, columns // 32, 18), dtype=torch.uint8)
    blocks[..., :2] = torch.rand(rows, columns // 32).half().unsqueeze(-1).view(torch.uint8)
    return Blocks("Q4_0", (rows, columns)), {"Q4_0": blocks.flatten(1)}


def test_packed_rows_move_with_their_blocks():
    one, tensors = packed()
    scheme = permuted(one, Layout(turns=2), "q")
    order = [0, 2, 1, 3, 4, 6, 5, 7]
    # Its own inverse for heads of four rows.
    assert torch.equal(decoded(scheme, tensors), decoded(one, tensors)[order])
    assert isinstance(scheme, FactoredScheme)
    codes = torch.empty(one.shape)
    scale = scheme.factor(tensors, codes, Scratch())
    wanted = torch.empty(one.shape)
    wanted_scale = one.factor(tensors, wanted, Scratch())
    assert torch.equal(codes, wanted[order]) and torch.equal(scale, wanted_scale[order])
    group = scheme.codes.group
    assert torch.equal(Quantized(codes, scale).dense(group), decoded(scheme, tensors))
    assert scheme.stored_factors(tensors, torch.float32) is None
    assert (scheme.label, scheme.tensors, scheme.inputs) == ("Q4_0", ("Q4_0",), None)


@pytest.mark.parametrize("width", [1, 2, 6, 12, 16])
@pytest.mark.parametrize("offset", [0, 1, 2, 4, 8])
def test_rows_of_any_width_from_any_byte_on(width, offset):
    """They are moved in words as wide as both allow."""
    memory = torch.arange(offset + 8 * width, dtype=torch.uint8)
    stored = memory[offset:].view(8, width)
    scheme = permuted(Dense((8, width), "U8"), Layout(turns=2), "q")
    expected = stored[[0, 2, 1, 3, 4, 6, 5, 7]]
    assert torch.equal(decoded(scheme, {"weight": stored}, torch.uint8), expected)


def test_transposed():
    one, tensors = packed()
    scheme = permuted(one, Layout(transposed=True), "c_attn")
    assert scheme.shape == (64, 8)
    assert torch.equal(decoded(scheme, tensors), decoded(one, tensors).T)


def test_dense():
    stored = torch.randn(8, 3)
    scheme = permuted(Dense((8, 3), "F32"), Layout(turns=2), "q")
    found = decoded(scheme, {"weight": stored}, torch.bfloat16)
    assert torch.equal(found, stored[[0, 2, 1, 3, 4, 6, 5, 7]].bfloat16())
    assert torch.equal(
        decoded(permuted(Dense((8, 3), "F32"), Layout(transposed=True), "c"), {"weight": stored}),
        stored.T,
    )


def test_norms_that_one_was_added_to_come_back():
    weight = torch.randn(4096) * 2
    stored = weight + 1
    scheme = permuted(Dense((4096,), "F32"), Layout(less=1.0), "norm")
    # What the library makes of it is what was stored, to the bit.
    assert torch.equal(decoded(scheme, {"weight": stored}) + 1, stored)


def test_what_is_refused():
    with pytest.raises(UnsupportedModel, match=r"norm is stored in Q4_0, plus 1: not supported"):
        permuted(packed()[0], Layout(less=1.0), "norm")
    with pytest.raises(CheckpointError, match=r"q: its shape \[8, 64\] has no pairs"):
        permuted(packed()[0], Layout(turns=3), "q")


@pytest.mark.parametrize("name", ["llama-biases", "gpt2", "falcon-new", "bloom", "gemma"])
def test_a_packed_file_scores_as_what_its_blocks_stand_for(name, tmp_path):
    _, file = make_pair(tmp_path, name)
    packed, dense = (
        in_blocks(file, tmp_path / f"{dense}.gguf", "Q8_0", dense=dense) for dense in (False, True)
    )
    assert difference(dense, packed) == 0
