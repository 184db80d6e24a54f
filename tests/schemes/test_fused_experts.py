"""Experts stored as one: each is decoded from its entries, as a linear alone would be."""

import pytest
import torch
from support.families.modelopt import nvfp4
from support.kernel_twins import check_decoder
from support.schemes import decode, random_weight, same
from support.triton_interpreter import DEVICE, exact_bfloat16

from scoremode.schemes import modelopt as schemes_modelopt
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import FactoredScheme, Scratch
from scoremode.schemes.compressed_tensors_weights import float_quantized
from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.fields import TensorFormat
from scoremode.schemes.fused_experts import Expert, Stacked, input_tensors, shared_tensors
from scoremode.schemes.packed import Packed

INPUTS = Inputs(TensorFormat(8, "float", "tensor"), ("input_scale",))
ALONE = float_quantized(Scaling((6, 8), "channel"), inputs=INPUTS)
NAMES = {"weight": "up", "weight_scale": "up_scale", "input_scale": "up_input"}
ONE = Expert(ALONE, tuple(NAMES.items()))


@pytest.fixture
def stored():
    weights = torch.stack([random_weight(6, 8, torch.float32, seed) for seed in range(3)])
    return {"up": weights.to(torch.float8_e4m3fn), "up_scale": torch.rand(3, 6, 1) + 0.5}


def test_each_is_its_own_linear(stored):
    whole = decode(Stacked(3, ONE), stored, torch.float32)
    for expert in range(3):
        entries = {name: tensor[expert] for name, tensor in stored.items()}
        alone = {suffix: entries[NAMES[suffix]] for suffix in ALONE.tensors}
        expected = decode(ALONE, alone, torch.float32)
        assert torch.equal(decode(ONE, entries, torch.float32), expected)
        assert torch.equal(whole[expert], expected)
        codes = torch.empty(6, 8)
        scale = ONE.factor(entries, codes, Scratch())
        assert torch.equal(codes * scale, expected)
        found = ONE.stored_factors(entries, torch.float8_e4m3fn)
        if found is not None:
            assert torch.equal(found.dense(None), expected)


@pytest.mark.parametrize("rows", [4, 6])
def test_blocks_are_decoded_together_where_none_is_of_two_experts(rows, monkeypatch):
    """Blocks of 4 rows: of 6, the second is short."""
    alone = float_quantized(Scaling((rows, 8), "block", block=(4, 4)))
    together = alone.below(3)
    assert (together is not None) == (rows == 4)
    stored = {
        "up": random_weight(3 * rows, 8, torch.float32, 0).view(3, rows, 8),
        "up_scale": torch.rand(3, -(-rows // 4), 2) + 0.5,
    }
    stored["up"] = stored["up"].to(torch.float8_e4m3fn)
    stacked = Stacked(3, Expert(alone, (("weight", "up"), ("weight_scale", "up_scale"))))
    whole = decode(stacked, stored, torch.float32)
    monkeypatch.setattr(Packed, "below", lambda self, count: None)
    assert torch.equal(whole, decode(stacked, stored, torch.float32))
    assert whole.unique().numel() > 10


@pytest.mark.parametrize("strategy", ["tensor", "channel"])
def test_one_scale_for_all_is_each_experts_own(strategy):
    together = float_quantized(Scaling((6, 8), strategy)).below(2)
    assert (together is None) == (strategy == "tensor")
    assert together is None or together.shape == (12, 8)


def test_names_and_shapes():
    stacked = Stacked(3, ONE)
    assert isinstance(ONE, FactoredScheme)
    assert stacked.shape == (3, 6, 8) and ONE.shape == (6, 8)
    assert stacked.tensors == ONE.tensors == ("up", "up_scale")
    assert stacked.label == ONE.label == ALONE.label and ONE.codes == ALONE.codes
    assert stacked.inputs is INPUTS
    for scheme in (stacked, ONE):
        assert input_tensors(scheme) == {"input_scale": "up_input"}
    assert input_tensors(ALONE) == {"input_scale": "input_scale"}


def test_a_row_of_blocks_is_one_of_bytes(stored):
    blocks = stored["up"].view(3, 6, 2, 4)
    expected = decode(Stacked(3, ONE), stored, torch.float32)
    assert torch.equal(decode(Stacked(3, ONE), stored | {"up": blocks}, torch.float32), expected)


def transposed() -> tuple[Stacked, dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Three experts [O, I] that lie [I, O] under one scale of the whole, and each of them alone."""
    alone = [nvfp4(random_weight(6, 32, torch.float32, seed)) for seed in range(3)]
    for one in alone:
        one["weight_scale_2"] = alone[0]["weight_scale_2"]
    names = {"weight": "up", "weight_scale": "up_scale", "weight_scale_2": "up_whole"}
    stored = {
        "up": torch.stack([one["weight"].T for one in alone]),
        "up_scale": torch.stack([one["weight_scale"].T for one in alone]),
        "up_whole": alone[0]["weight_scale_2"],
    }
    linear = schemes_modelopt.nvfp4(Scaling((6, 32), "group", 16))
    one = Expert(linear, tuple(names.items()), ("up_whole",), transposed=True)
    return Stacked(3, one), stored, alone


def test_transposed_under_a_scale_that_all_share():
    stacked, stored, alone = transposed()
    assert stacked.shape == (3, 32, 6) and stacked.one.shape == (6, 32)
    assert shared_tensors(stacked) == shared_tensors(stacked.one) == ("up_whole",)
    assert shared_tensors(ONE) == shared_tensors(ALONE) == ()
    whole = decode(stacked, stored, torch.bfloat16)
    for expert, tensors in enumerate(alone):
        expected = decode(stacked.one.of, tensors, torch.bfloat16)
        assert expected.float().std() > 0.01
        same(whole[expert], expected.T)
        own = {n: t if n == "up_whole" else t[expert] for n, t in stored.items()}
        same(decode(stacked.one, own, torch.bfloat16), expected)


def test_transposed_codes_are_not_taken_where_they_are_stored():
    """They would be a copy, in memory of its own for each expert."""
    one = Expert(float_quantized(Scaling((32, 16), "tensor"), inputs=INPUTS), tuple(NAMES.items()))
    lying = Expert(one.of, one.names, transposed=True)
    weight = random_weight(32, 16, torch.float32, 0).to(torch.float8_e4m3fn)
    entries, turned = (
        {"up": codes, "up_scale": torch.tensor([0.5])} for codes in (weight, weight.T.contiguous())
    )
    found = one.stored_factors(entries, torch.float8_e4m3fn)
    assert found is not None and found.codes.data_ptr() == weight.data_ptr()
    assert lying.stored_factors(turned, torch.float8_e4m3fn) is None
    codes = torch.empty(32, 16, dtype=torch.float8_e4m3fn)
    scale = lying.factor(turned, codes, Scratch())
    assert torch.equal(codes.float() * scale, found.dense(None))


def test_transposed_ones_by_the_kernel(monkeypatch):
    triton = pytest.importorskip("triton", reason="needs Triton")
    if DEVICE.type == "cpu":
        if not triton.knobs.runtime.interpret:
            pytest.skip("Triton was imported without its interpreter")
        exact_bfloat16(monkeypatch)
    stacked, stored, _ = transposed()
    own = {n: t if n == "up_whole" else t[1] for n, t in stored.items()}
    check_decoder(stacked.one, own, torch.bfloat16)
