import pytest
import torch
from support.schemes import DTYPE_NAMES

from scoremode.checkpoint.safetensors_files import FLOATS
from scoremode.schemes.base import Dense, Scratch

DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items() if name in FLOATS}


@pytest.mark.parametrize("name", sorted(FLOATS))
def test_every_float_is_known_by_its_name(name):
    dense = Dense((2,), name, "bias")
    assert dense.label == name.lower() and dense.inputs is None
    assert [dtype for dtype in DTYPES.values() if dense.is_stored_as(dtype)] == [DTYPES[name]]


def test_decoding_rounds_to_the_buffers_dtype():
    values = torch.tensor([1.0, 1 + 2**-9, -(2.0**-140)])
    out = torch.empty(3, dtype=torch.bfloat16)
    dense = Dense((3,), "F32", "bias")
    dense.decode(dict.fromkeys(dense.tensors, values), out, Scratch())
    assert dense.tensors == ("bias",) and torch.equal(out, values.bfloat16())
