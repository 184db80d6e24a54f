"""4-bit weights of bitsandbytes."""

import torch
from support.golden_libraries import golden
from support.schemes import decode, same

from scoremode.schemes.bitsandbytes import TABLES, FourBit, Nested


def test_a_block_of_zeros_is_zeros():
    case = golden("bitsandbytes")["nf4-bf16-6x128"]
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
