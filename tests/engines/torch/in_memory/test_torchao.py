"""torchao's quantized and fake-quantized modules in memory, against what they stand for."""

import numpy as np
import pytest
import torch
from support.models import library_model

import scoremode

pytest.importorskip("torchao", reason="torchao is not installed")
# Of its own libraries.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def asked(demo, tmp_path):
    return {
        "text": (demo / "heldout.txt").read_text()[:6000],
        "protocol": "disjoint",
        "context_length": 64,
        "tokenizer": str(demo / "model"),
        "reference": str(demo / "model"),
        "output": tmp_path / "runs",
        "batch_size": 4,
        "quiet": True,
    }


def test_int8_weights_have_the_scores_of_their_values(demo, asked):
    """As tensors of torchao's own class, whose scales it multiplies behind the product."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    module, dense = (library_model(demo / "model", torch.float32) for _ in range(2))
    quantize_(module.model, Int8WeightOnlyConfig())
    with torch.no_grad():
        for name, part in module.model.named_modules():
            if hasattr(getattr(part, "weight", None), "dequantize") and "proj" in name:
                dense.model.get_submodule(name).weight.copy_(part.weight.dequantize())
    live, values = (scoremode.kld(each, **asked) for each in (module, dense))
    assert 1e-5 < live.metrics["kld"].value < 0.01
    np.testing.assert_allclose(live.scores["logprob"], values.scores["logprob"], rtol=0, atol=2e-5)


def test_fake_quantized_weights_are_those_values(demo, asked):
    from torchao.quantization import quantize_
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

    module, dense = (library_model(demo / "model", torch.float32) for _ in range(2))
    weights = IntxFakeQuantizeConfig(torch.int4, group_size=32)
    quantize_(module.model, QATConfig(weight_config=weights, step="prepare"))
    with torch.no_grad():
        for name, part in module.model.named_modules():
            if hasattr(part, "weight_fake_quantizer"):
                own = dense.model.get_submodule(name)
                own.weight.copy_(part.weight_fake_quantizer(part.weight))
    live, values = (scoremode.kld(each, **asked) for each in (module, dense))
    assert 0.01 < live.metrics["kld"].value < 0.1
    assert np.array_equal(live.scores["kld"], values.scores["kld"])
