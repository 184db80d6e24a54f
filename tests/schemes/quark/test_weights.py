"""Quark's weights against what the library dequantizes to, to the bit."""

import pytest
import torch
from support.golden_libraries import golden
from support.kernel_twins import launches
from support.schemes import DTYPES, decode, same
from support.triton_interpreter import exact_bfloat16

from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.fields import TensorFormat
from scoremode.schemes.packed import Packed
from scoremode.schemes.quark import weight

CASES = golden("quark")


def build(name: str) -> Packed:
    shape = tuple(CASES[name]["dense"].shape)
    kind, by = f"{name}-".split("-")[:2]
    if kind == "mxfp4":
        return weight(Scaling(shape, "group", 32), TensorFormat(4, "float", "group", 32))
    if kind in ("int4", "uint4"):
        symmetric = kind == "int4" and by != "asym"
        form = TensorFormat(4, kind.removesuffix("4"), "group", 32, symmetric)
        return weight(Scaling(shape, "group", 32), form, shuffled="-reorder-" in name)
    form = TensorFormat(8, "int" if kind == "int8" else "float", by)
    return weight(Scaling(shape, by), form)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_golden_file(name):
    for dtype in DTYPES:
        same(decode(build(name), CASES[name], dtype), CASES[name]["dense"])


def test_a_scale_in_bfloat16_does_not_round_the_product():
    case = CASES["fp8-channel-bf16"]
    assert case["weight_scale"].dtype == torch.bfloat16
    dense = case["dense"]
    assert dense.dtype == torch.float32 and (dense != dense.bfloat16().float()).any()


@pytest.mark.skipif(torch.cuda.is_available(), reason="interprets what a GPU compiles")
@pytest.mark.parametrize("name", CASES)
def test_the_cuda_decoder_gives_the_same_bits(name, monkeypatch):
    triton = pytest.importorskip("triton", reason="needs Triton")
    if not triton.knobs.runtime.interpret:
        pytest.skip("Triton was imported without its interpreter")
    exact_bfloat16(monkeypatch)
    scheme, dense = build(name), CASES[name]["dense"]
    with launches() as asked:
        same(decode(scheme, CASES[name], torch.float32), dense)
    assert asked == [f"decode {scheme.label}"]
