"""Checkpoints without tensors, given the headers that they would have."""

from pathlib import Path

import pytest

from scoremode.checkpoint.files import Checkpoint
from scoremode.errors import CheckpointError
from scoremode.schemes.layout import Linear, Tensor, promised

DENSE = {
    "a.weight": ("BF16", (4, 6)),
    "b.weight": ("F32", (4,)),
    "x.down_proj": ("BF16", (2, 3, 5)),
}


def checkpoint() -> Checkpoint:
    return Checkpoint(Path("folder"), "source", {"model_type": "m"}, {})


def stored(linear: Linear):
    if linear.experts is not None:
        return {"down_proj_blocks": Tensor("U8", (2, 3, 1, 16))}
    return {"qweight": Tensor("I32", (3,), content=b"\1\2\3"), "bits": Tensor("F4", (3, 1))}


def test_linears_are_stored_as_the_library_says():
    linears = [Linear("a", (4, 6), "BF16"), Linear("x.down_proj", (3, 5), "BF16", 2)]
    found = promised(checkpoint(), DENSE, linears, stored)
    assert {n: (i.dtype, i.shape, i.bytes) for n, i in found.tensors.items()} == {
        "b.weight": ("F32", (4,), 16),
        "a.qweight": ("I32", (3,), 12),
        # Half bytes are whole in the end.
        "a.bits": ("F4", (3, 1), 2),
        "x.down_proj_blocks": ("U8", (2, 3, 1, 16), 96),
    }
    assert found.bytes == 16 + 12 + 2 + 96
    assert found.read_bytes("a.qweight") == b"\1\2\3" * 4
    assert found.read("b.weight").tolist() == [1, 1, 1, 1]
    assert found.config == {"model_type": "m"} and found.source == "source"


def test_what_stays_dense():
    linears = [Linear("a", (4, 6), "BF16")]
    for promise in (None, lambda linear: None):
        found = promised(checkpoint(), DENSE, linears, promise)
        assert {n: (i.dtype, i.shape) for n, i in found.tensors.items()} == DENSE


def test_a_model_without_weights_is_an_error():
    with pytest.raises(CheckpointError, match="describes no weights"):
        promised(checkpoint(), {}, [], None)
