"""4-bit weights against what bitsandbytes dequantizes to, to the bit."""

import pytest
import torch
from support.families.bitsandbytes import config
from support.golden_libraries import golden
from support.schemes import decode, same, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.schemes.bitsandbytes import TABLES, FourBit, Nested
from scoremode.schemes.decoding import unpack
from scoremode.schemes.resolve import resolve

CASES = {name: case for name, case in golden("bitsandbytes").items() if "int8" not in name}


def resolved(folder, case) -> FourBit:
    tensors = {f"m.{suffix}": t for suffix, t in case.items() if suffix != "dense"}
    scheme = resolve(open_checkpoint(write_checkpoint(folder, tensors, config()))).quantized["m"]
    assert isinstance(scheme, FourBit)
    return scheme


@pytest.mark.parametrize("name", CASES)
def test_equals_the_golden_file(name, tmp_path):
    case = CASES[name]
    scheme = resolved(tmp_path, case)
    dense = case["dense"]
    assert scheme.dtype == dense.dtype and scheme.shape == tuple(dense.shape)
    assert (scheme.nested is not None) == ("double" in name)
    for dtype in (dense.dtype, torch.float32):
        same(decode(scheme, case, dtype), dense)


@pytest.mark.parametrize("name", ["nf4-bf16-5x27", "fp4-double-f16-130x128", "nf4-double-f16-6x96"])
def test_a_few_blocks_at_a_time(name, tmp_path, monkeypatch):
    case = next(case for key, case in CASES.items() if key.split("-")[-1] == name.split("-")[-1])
    scheme = resolved(tmp_path, case)
    monkeypatch.setitem(unpack.BLOCK_ELEMENTS, "cpu", 200)
    same(decode(scheme, case, torch.float32), case["dense"])


def test_a_block_of_zeros_is_zeros():
    case = CASES["nf4-bf16-6x128"]
    assert not case["dense"].flatten()[:64].any() and case["weight.absmax"][0] == 0
    scheme = FourBit((6, 128), "nf4", 64, torch.bfloat16)
    assert not decode(scheme, case, torch.bfloat16).flatten()[:64].any()


def test_it_is_rounded_in_the_dtype_of_the_original():
    stored = {
        "weight": torch.full((32, 1), 0x12, dtype=torch.uint8),
        "weight.absmax": torch.tensor([1.23456789]),
    }
    table = TABLES["nf4"][[1, 2]] * stored["weight.absmax"]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        found = decode(FourBit((1, 64), "nf4", 64, dtype), stored, torch.float32)
        same(found, table.to(dtype).repeat(32).view(1, 64))


def test_labels():
    assert FourBit((4, 64), "nf4", 64, torch.bfloat16).label == "NF4 g64"
    nested = FourBit((4, 64), "fp4", 128, torch.bfloat16, Nested(256, 0.5))
    assert nested.label == "FP4 g128 double" and nested.inputs is None
    assert nested.tensors[2:] == ("weight.nested_absmax", "weight.nested_quant_map")
