"""HQQ's weights against what the library dequantizes to, to the bit."""

import pytest
import torch
from support.families.hqq import config
from support.golden_libraries import golden
from support.schemes import decode, same, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.schemes.decoding import unpack
from scoremode.schemes.hqq import PACKINGS, Grouped
from scoremode.schemes.resolve import resolve

CASES = golden("hqq")


def resolved(folder, case) -> Grouped:
    tensors = {f"m.{suffix}": t for suffix, t in case.items() if suffix != "dense"}
    quantization = config() | {"quant_config": {}}
    path = write_checkpoint(folder, tensors, quantization)
    scheme = resolve(open_checkpoint(path)).quantized["m"]
    assert isinstance(scheme, Grouped)
    return scheme


@pytest.mark.parametrize("name", CASES)
def test_equals_the_golden_file(name, tmp_path, monkeypatch):
    case = CASES[name]
    scheme = resolved(tmp_path, case)
    assert scheme.dtype == case["dense"].dtype and scheme.shape == tuple(case["dense"].shape)
    for dtype in (case["dense"].dtype, torch.float32):
        same(decode(scheme, case, dtype), case["dense"])
    # A few rows at a time.
    monkeypatch.setitem(unpack.BLOCK_ELEMENTS, "cpu", 100)
    same(decode(scheme, case, torch.float32), case["dense"])


def test_every_packing_has_a_case():
    packings = {bytes(case["packing"].tolist()).decode() for case in CASES.values()}
    assert packings == set(PACKINGS)
    assert any(case["W_q"].is_floating_point() for case in CASES.values())
    # A last word that holds less than ten codes.
    assert any("3-axis" in name and len(c["W_q"]) * 10 > 32 for name, c in CASES.items())


def test_labels():
    scheme = Grouped((24, 96), 4, 32, 1, PACKINGS["4bit_u8"], torch.bfloat16)
    assert scheme.label == "HQQ 4 bits g32" and scheme.inputs is None
    assert scheme.grid == (72, 32) and scheme.step == 36
    other = Grouped((24, 96), 1.58, 32, 0, PACKINGS["2bit_u8"], torch.bfloat16)
    assert other.label == "HQQ 1.58 bits g32 axis 0" and other.grid == (32, 72)
