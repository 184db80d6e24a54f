"""Whole models of bitsandbytes against dense ones of the same weights."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.engine import make_engine, score
from support.families.bitsandbytes import config, make_pair
from support.families.llm_int8 import one_window
from support.models import edit_config, edit_tensors, library_logprobs, library_model, random_plan

from scoremode.engines.base import Schedule
from scoremode.errors import CheckpointError, UnsupportedFormat, UnsupportedModel


def int8_pair(folder, name: str, threshold: float, head: bool = False):
    """A model that runs as declared, and the dense one of its weights, whose inputs are as they are."""
    packed, dense = make_pair(
        folder, name, "int8", linear=r"_proj\.weight$|lm_head" if head else None
    )
    edit_config(packed, quantization_config=config("int8", llm_int8_threshold=threshold))
    return packed, dense


def library_int8(packed, dense, threshold: float, dtype: torch.dtype):
    """transformers' model of `dense` whose linears multiply by plain numpy, a window at a time."""
    model = library_model(dense, dtype)
    stored = load_file(packed / "model.safetensors")

    def forward(name: str, bias: torch.Tensor | None):
        weight, largest = stored[f"{name}.weight"], stored[f"{name}.SCB"]

        def run(x: torch.Tensor) -> torch.Tensor:
            return torch.stack([one_window(w, weight, largest, bias, threshold).y for w in x])

        return run

    for name, module in model.named_modules():
        if f"{name}.SCB" in stored:
            module.forward = forward(name, module.bias)
    return model


# Random states have no outliers from 6 on: every tenth column of a window has one from 3 on.
@pytest.mark.parametrize(
    ("name", "threshold", "head"),
    [("llama", 0.0, False), ("llama", 3.0, False), ("qwen2", 3.0, False), ("llama", 3.0, True)],
)
def test_llm_int8_as_declared(name, threshold, head, tmp_path):
    """A state at the border of two codes may fall to either side, which is a step of quantization."""
    packed, dense = int8_pair(tmp_path, name, threshold, head)
    plan = random_plan(length=24, windows=4)
    engine = make_engine(packed, dtype="float32")
    ours = score(engine, plan).logprob
    theirs = library_logprobs(library_int8(packed, dense, threshold, torch.float32), plan)
    agreeing = np.quantile(np.abs(ours - theirs), 0.2)
    others = [score(make_engine(packed, dtype="float32", arithmetic="weights"), plan).logprob]
    if threshold:
        others.append(library_logprobs(library_int8(packed, dense, 0.0, torch.float32), plan))
    for other in others:
        assert np.quantile(np.abs(other - theirs), 0.2) > 20 * agreeing
    assert agreeing < 1e-5
    facts = engine.describe()
    label = f"int8 token, outliers from {threshold:g} apart" if threshold else None
    label = label or "int8 token, no outliers apart"
    assert facts["arithmetic"] == "weights+activations"
    assert facts["activations"] == {"declared": label, "ran": "quantized"}
    assert {p["inputs"] for p in facts["products"]} == {label}
    assert sum(p["linears"] for p in facts["products"]) == 3 * 7 + head


def test_windows_of_a_batch_do_not_meet(tmp_path):
    """Neither do a window's scores depend on its batch, nor is a probe of the model misled by columns
    that tokens to come choose."""
    packed, _ = int8_pair(tmp_path, "llama", 3.0, head=True)
    plan = random_plan(length=24, windows=4, tail=0)
    alone, pairs, together = (
        score(make_engine(packed, dtype="float32"), plan, Schedule(4, batch)).logprob
        for batch in (1, 2, 4)
    )
    for other in (pairs, together):
        # Float32 matmuls of other sizes may move a state over a border.
        assert np.quantile(np.abs(alone - other), 0.2) < 1e-5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "qwen3_moe",
            r"experts\.0\.gate_proj\.weight is an expert's, which gets tokens of many wind",
        ),
        ("opt", r"layers\.0\.fc1 gets its tokens as \[2, 32\], its windows not apart"),
    ],
)
def test_llm_int8_where_windows_are_not_told_apart(name, words, tmp_path):
    packed, _ = make_pair(tmp_path, name, "int8", linear=r"(_proj|fc[12])\.weight$")
    with pytest.raises(UnsupportedModel, match=words) as error:
        make_engine(packed)
    assert "has its outliers by the window" in str(error.value)
    assert str(error.value).endswith("--arithmetic weights measures it without")
    facts = make_engine(packed, arithmetic="weights").describe()
    declared = "int8 token, outliers from 6 apart"
    assert facts["activations"] == {"declared": declared, "ran": "not quantized"}
    edit_config(packed, quantization_config=config("int8", llm_int8_threshold=0.0))
    assert make_engine(packed).describe()["activations"]["ran"] == "quantized"


def test_a_tensor_that_nothing_uses(tmp_path):
    packed, _ = make_pair(tmp_path, "llama", "nf4")
    name = "model.layers.0.mlp.up_proj.weight.other"
    edit_tensors(packed, lambda t: t.update({name: torch.ones(1)}))
    with pytest.raises(CheckpointError, match=rf"tensor {name} belongs to a layer"):
        make_engine(packed)


def test_a_dense_model_that_is_quantized_on_loading_is_not_loaded(tmp_path):
    _, dense = make_pair(tmp_path, "llama", "nf4")
    edit_config(dense, quantization_config={"load_in_4bit": True})
    with pytest.raises(
        UnsupportedFormat, match=r"no tensor is a weight.absmax: a dense checkpoint"
    ):
        make_engine(dense)
