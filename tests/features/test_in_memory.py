"""`scoremode.measure` and `scoremode.kld` of a module in memory."""

import numpy as np
import pytest
import torch
from compressed_tensors.quantization import (
    QuantizationConfig,
    QuantizationStatus,
    apply_quantization_config,
)
from safetensors.torch import load_file
from support.models import library_model

import scoremode
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.errors import GateNotMet, UsageError


@pytest.fixture
def asked(demo, tmp_path):
    text = (demo / "heldout.txt").read_text()[:4000]
    return {
        "text": text,
        "protocol": "disjoint",
        "context_length": 64,
        "batch_size": 4,
        "output": tmp_path / "runs",
        "quiet": True,
    }


def same_bits(one, other):
    assert one.scores.keys() == other.scores.keys()
    return all(np.array_equal(one.scores[name], other.scores[name]) for name in one.scores)


def test_a_run_of_a_module_is_that_of_its_folder(demo, asked):
    model = str(demo / "model")
    live = scoremode.measure(
        library_model(demo / "model", torch.bfloat16), tokenizer=model, **asked
    )
    saved = scoremode.measure(model, device="cpu", dtype="bfloat16", **asked)
    assert same_bits(live, saved) and live.metrics == saved.metrics
    record = live.record.document
    assert record["checkpoint"]["source"] == "LlamaForCausalLM in memory"
    assert record["checkpoint"]["files"].keys() == {"state_dict"}
    assert record["engine"]["layers"] == "the module's own forward"
    assert record["engine"]["arithmetic"] == "the module's own"
    assert "LlamaForCausalLM in memory" in str(live)
    found = scoremode.check(live)
    assert found["counts"]["wrong"] == 0
    # As of any text that is too long for a command line.
    assert any("the command has its length alone" in str(f) for f in found["runs"][0]["findings"])
    words = [f["words"] for f in found["runs"][0]["findings"] if f["part"] == "checkpoint"]
    assert words == ["was a module in memory, which can't be read again"]
    assert scoremode.open_run(live.folder).metrics == live.metrics


def test_a_tokenizer_may_be_one_in_memory(demo, asked):
    from transformers import AutoTokenizer

    module = library_model(demo / "model", torch.bfloat16)
    own = scoremode.measure(
        module, tokenizer=AutoTokenizer.from_pretrained(demo / "model"), **asked
    )
    named = scoremode.measure(module, tokenizer=str(demo / "model"), **asked)
    assert np.array_equal(own.scores["target"], named.scores["target"]) and same_bits(own, named)


def test_fake_quantized_weights_cost_what_stored_ones_do(demo, asked, tmp_path):
    """By compressed-tensors' own fake, with a checkpoint's scales; what llm-compressor itself saves has
    the same bits (tests/test_in_memory_docs.py)."""
    (form,) = [v for v in VARIANTS if v.name == "W4A16-g32"]
    quantize_folder(demo / "model", tmp_path / "w4", form)
    stored = scoremode.kld(tmp_path / "w4", reference=demo / "model", device="cpu", **asked)
    module = library_model(demo / "model", torch.bfloat16)
    config = {k: v for k, v in form.config().items() if k != "quantization_status"}
    apply_quantization_config(module, QuantizationConfig.model_validate(config))
    tensors = load_file(tmp_path / "w4" / "model.safetensors")
    for name, part in module.named_modules():
        if getattr(part, "quantization_scheme", None) is not None:
            part.weight_scale.data.copy_(tensors[f"{name}.weight_scale"])
            part.quantization_status = QuantizationStatus.FROZEN
    live = scoremode.kld(module, reference=demo / "model", tokenizer=str(demo / "model"), **asked)
    found, wanted = (run.metrics["kld"].value for run in (live, stored))
    # Codes differ where the demo's own quantizer divides in float32, and the library in bfloat16.
    assert wanted > 0.01 and found == pytest.approx(wanted, rel=0.1)


def test_a_gate_ends_a_pipeline(demo, asked):
    module = library_model(demo / "model", torch.bfloat16)
    with torch.no_grad():
        module.model.layers[1].mlp.down_proj.weight.mul_(1.5)
    kept = scoremode.measure(
        demo / "model", keep=True, **asked | {"output": asked["output"] / "kept"}
    )
    with pytest.raises(GateNotMet, match="max_kld"):
        scoremode.kld(
            module, reference=kept, tokenizer=str(demo / "model"), max_kld=1e-4,
            output=asked["output"], quiet=True, batch_size=4,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"dtype": "float32"}, "dtype='float32': a module in memory is what it is"),
        ({"device": "cpu"}, "device='cpu': a module"),
        ({"engine": "vllm"}, "engine='vllm': a module in memory computes by itself"),
        ({"tokenizer": None}, "has no tokenizer: give tokenizer="),
        ({"swap": ["a=b"]}, "swap="),
        ({"reference": torch.nn.Linear(1, 1)}, "reference: a Linear in memory can't be a base"),
    ],
)
def test_what_a_module_does_not_take_is_refused(demo, asked, more, words):
    module = library_model(demo / "model", torch.bfloat16)
    with pytest.raises(UsageError, match=words):
        scoremode.measure(module, **{"tokenizer": str(demo / "model")} | asked | more)
    assert not asked["output"].exists()
