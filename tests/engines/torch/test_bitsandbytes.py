"""Whole models of bitsandbytes against dense ones of the same weights."""

import numpy as np
import pytest
import torch
from bitsandbytes_models import make_pair
from engine_helpers import make_engine, score
from models import edit_config, edit_tensors, random_plan

from scoremode.errors import CheckpointError, UnsupportedFormat, UnsupportedModel


@pytest.mark.parametrize(
    ("name", "kind", "double"),
    [
        ("llama", "nf4", False),
        ("llama", "fp4", True),
        ("qwen3_moe", "nf4", True),
        ("llama", "int8", False),
    ],
)
def test_equals_the_dense_one_to_the_bit(name, kind, double, tmp_path):
    packed, dense = make_pair(tmp_path, name, kind, double)
    plan = random_plan()
    for dtype in ("float32", "bfloat16"):
        ours = score(make_engine(packed, dtype=dtype, arithmetic="weights"), plan)
        theirs = score(make_engine(dense, dtype=dtype), plan)
        assert np.array_equal(ours.logprob, theirs.logprob)
        assert theirs.logprob.std() > 0.5


def test_llm_int8_does_not_run_as_declared_without_being_told(tmp_path):
    packed, _ = make_pair(tmp_path, "llama", "int8")
    for arithmetic in ("auto", "weights+activations"):
        with pytest.raises(UnsupportedModel) as error:
            make_engine(packed, arithmetic=arithmetic)
        assert "int8 token, outliers from 6 apart" in str(error.value)
        assert str(error.value).endswith("--arithmetic weights measures it without")
    facts = make_engine(packed, arithmetic="weights").describe()
    assert facts["activations"] == {
        "declared": "int8 token, outliers from 6 apart",
        "ran": "not quantized",
    }


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
