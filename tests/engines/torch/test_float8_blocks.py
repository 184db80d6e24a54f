"""Whole models in blocks of float8 against dense ones of the same weights and the library's forward."""

import numpy as np
import pytest
import torch
import transformers
from support.engine import check_equal, make_engine, score
from support.families.float8_blocks import make_pair
from support.models import edit_config, edit_tensors, library_logprobs, library_model, random_plan
from transformers.quantizers import quantizer_finegrained_fp8

from scoremode.errors import CheckpointError, ScoremodeError, UnsupportedFormat

# deepseek_v3 has 24 rows and 40 columns in blocks of 16.
MODELS = ["llama", "qwen3_moe", "deepseek_v3"]
SCALES = [torch.float32, torch.bfloat16, torch.uint8]


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_dense_one_to_the_bit(name, scale, tmp_path):
    others = {"scale_fmt": "ue8m0"} if scale == torch.uint8 else {}
    packed, dense = make_pair(tmp_path, name, (16, 16), scale, **others)
    check_equal(packed, dense, "bfloat16")


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_equals_the_librarys_forward_of_the_same_files(name, tmp_path, monkeypatch):
    """On a CPU it dequantizes, in the dtype of the model; accelerate has no part in that."""
    if not hasattr(quantizer_finegrained_fp8, "is_accelerate_available"):
        pytest.skip(f"transformers {transformers.__version__} asks otherwise for accelerate")
    monkeypatch.setattr(quantizer_finegrained_fp8, "is_accelerate_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    packed, dense = make_pair(tmp_path, name, (16, 16))
    model, plan = library_model(packed, torch.bfloat16), random_plan(windows=30)
    expected = library_model(dense, torch.bfloat16).state_dict()
    assert all(torch.equal(model.state_dict()[key], value) for key, value in expected.items())
    theirs = library_logprobs(model, plan)
    truth = library_logprobs(library_model(dense, torch.float32), plan)
    ours = score(make_engine(packed, dtype="bfloat16", arithmetic="weights"), plan).logprob
    assert np.abs(ours - truth).mean() <= np.abs(theirs - truth).mean() * 1.03
    assert theirs.std() > 0.5


@pytest.mark.parametrize("ue8m0", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_declared_inputs_are_quantized(name, ue8m0, tmp_path):
    """Against a forward that fake-quantizes each linear's input in groups of 16, the last short."""
    others = {"scale_fmt": "ue8m0"} if ue8m0 else {}
    packed, _ = make_pair(tmp_path, name, (16, 16), **others)
    engine = make_engine(packed, dtype="float32")
    assert engine.describe()["arithmetic"] == "weights+activations"
    (product,) = {p["inputs"] for p in engine.describe()["products"]}
    assert product == f"float8 group 16{' ue8m0' if ue8m0 else ''}"
    plan = random_plan()
    ours = score(engine, plan).logprob
    plain = score(make_engine(packed, dtype="float32", arithmetic="weights"), plan).logprob
    assert 1e-3 < np.abs(ours - plain).mean() < 3


def test_declared_inputs_of_a_llama_against_a_plain_forward(tmp_path):
    from safetensors.torch import load_file
    from support.families.float8_blocks import LINEAR, dequantize

    packed, dense = make_pair(tmp_path, "llama", (16, 24))
    stored = load_file(packed / "model.safetensors")
    model = library_model(dense, torch.float32)

    def quantized(module: torch.nn.Linear, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
        (x,) = args
        columns = x.shape[-1]
        padded = torch.nn.functional.pad(x, (0, -columns % 24)).unflatten(-1, (-1, 24))
        scale = padded.abs().amax(-1, keepdim=True) / 448
        codes = (padded / scale.clamp_min(1e-30)).to(torch.float8_e4m3fn).float()
        return (codes * scale).flatten(-2)[..., :columns]

    for name, module in model.named_modules():
        if not LINEAR.search(f"{name}.weight"):
            continue
        tensors = {s: stored[f"{name}.{s}"] for s in ("weight", "weight_scale_inv")}
        with torch.no_grad():
            module.weight.copy_(dequantize(tensors, (16, 24), torch.float32))
        module.register_forward_pre_hook(quantized)
    plan = random_plan()
    theirs = library_logprobs(model, plan)
    ours = score(make_engine(packed, dtype="float32"), plan).logprob
    # A code that falls to the other side in one of them moves what follows.
    assert np.median(np.abs(ours - theirs)) < 1e-4 and np.abs(ours - theirs).mean() < 0.02


def test_a_tensor_that_nothing_uses(tmp_path):
    packed, _ = make_pair(tmp_path, "llama", (16, 16))
    name = "model.layers.0.self_attn.sink_scale"
    edit_tensors(packed, lambda t: t.update({name: torch.ones(1)}))
    with pytest.raises(CheckpointError, match=rf"tensor {name}"):
        make_engine(packed)


def test_a_dense_model_that_says_fp8_is_not_loaded(tmp_path):
    _, dense = make_pair(tmp_path, "llama", (16, 16))
    edit_config(dense, quantization_config={"quant_method": "fp8"})
    with pytest.raises(UnsupportedFormat, match=r"'fp8', and no tensor is a weight_scale_inv"):
        make_engine(dense)


@pytest.mark.parametrize("arithmetic", ["weights", "weights+activations"])
def test_a_scale_that_is_no_number_is_no_score(arithmetic, tmp_path):
    packed, _ = make_pair(tmp_path, "llama", (16, 16), torch.uint8, scale_fmt="ue8m0")
    name = "model.layers.1.mlp.up_proj.weight_scale_inv"
    edit_tensors(packed, lambda t: t[name].view(-1)[:1].fill_(255))
    with pytest.raises(ScoremodeError, match="is not finite"):
        score(make_engine(packed, dtype="float32", arithmetic=arithmetic), random_plan())
