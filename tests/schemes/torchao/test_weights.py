"""torchao's weights against what the library dequantizes to, to the bit."""

import pytest
import torch
from support.golden_libraries import golden
from support.kernel_twins import launches
from support.schemes import decode, factor, same
from support.triton_interpreter import exact_bfloat16

from scoremode.schemes.decoding import unpack
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.packed import Packed
from scoremode.schemes.torchao import ao_weight

CASES = golden("torchao")


def build(name: str) -> Packed:
    dense = CASES[name]["dense"]
    shape = (dense.shape[0], dense.shape[1])
    scaling = Scaling(shape, "group", 32) if "group" in name else Scaling(shape, "channel")
    bits = None if name.startswith("float8") else int(name[3])
    return ao_weight(scaling, bits, dense.dtype)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_golden_file(name, monkeypatch):
    case, scheme = CASES[name], build(name)
    for dtype in (case["dense"].dtype, torch.float32):
        same(decode(scheme, case, dtype), case["dense"])
    # A row or two at a time.
    monkeypatch.setitem(unpack.BLOCK_ELEMENTS, "cpu", 200)
    same(decode(scheme, case, torch.float32), case["dense"])


@pytest.mark.parametrize("name", CASES)
def test_codes_times_scales_are_the_weight(name):
    case = CASES[name]
    codes, scales = factor(build(name), case, torch.float32)
    same((codes.double() * scales).float().to(case["dense"].dtype), case["dense"])


@pytest.mark.parametrize("name", CASES)
def test_products_can_take_the_codes_as_they_are_stored(name):
    """As on a GPU that multiplies int8 or float8 itself."""
    # A file's tensors can begin anywhere; a GPU's are aligned.
    case = {suffix: tensor.clone() for suffix, tensor in CASES[name].items()}
    scheme, stored = build(name), case["_weight_qdata"]
    codes, _ = factor(scheme, case, stored.dtype)
    same(codes.float(), stored.float())
    found = scheme.stored_factors(case, stored.dtype)
    assert found is not None and found.codes is stored
    dense = found.dense(scheme.codes.group)
    same(dense.to(case["dense"].dtype), case["dense"])
    assert scheme.stored_factors(case, torch.float32) is None


def test_one_scale_for_all():
    stored = {"_weight_qdata": torch.arange(-64, 64).char().view(2, 64)}
    stored["_weight_scale"] = torch.tensor([[0.37]])
    scheme = ao_weight(Scaling((2, 64), "tensor"), 8, torch.bfloat16)
    expected = (stored["_weight_qdata"].float() * stored["_weight_scale"]).bfloat16()
    same(decode(scheme, stored, torch.bfloat16), expected)
    assert scheme.label == "W8A16 tensor"


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
