"""A parameter of parts that are stored on their own; whole models of such: test_exl3.py."""

import pytest
import torch
from support.families.exl3 import quantize
from support.schemes import same

from scoremode.engines.torch.weights.slot import Joined, Source
from scoremode.schemes.base import Dense, Scratch
from scoremode.schemes.exl3 import Exl3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_outputs_one_after_the_other(dtype):
    torch.manual_seed(0)
    first, second = (quantize(torch.randn(rows, 128), 3, "mcg") for rows in (128, 256))
    plain = torch.randn(5, 128).half()
    schemes = [Exl3((128, 128), 3, "mcg"), Exl3((256, 128), 3, "mcg"), Dense((5, 128), "F16")]
    joined = Joined([Source(f"m.{i}", scheme) for i, scheme in enumerate(schemes)])
    assert joined.shape == (389, 128) and joined.label == "EXL3 3 bits mcg + f16"
    assert joined.tensors == (
        *(f"m.{i}.{suffix}" for i in (0, 1) for suffix in ("trellis", "suh", "svh")),
        "m.2.weight",
    )
    assert joined.inputs is None and str(joined) == "m.0 and m.1 and m.2"
    tensors = {f"m.{i}.{s}": t for i, own in enumerate((first, second)) for s, t in own.items()}
    out = torch.full(joined.shape, torch.nan, dtype=dtype)
    joined.decode(tensors | {"m.2.weight": plain}, out, Scratch())
    same(out, torch.cat((first["dense"], second["dense"], plain.float())))


def test_biases():
    joined = Joined([Source(f"m.{name}", Dense((3,), "F32", "bias")) for name in "ab"])
    assert joined.shape == (6,)
    out = torch.zeros(6)
    joined.decode({"m.a.bias": torch.ones(3), "m.b.bias": torch.arange(3.0)}, out, Scratch())
    assert out.tolist() == [1, 1, 1, 0, 1, 2]
