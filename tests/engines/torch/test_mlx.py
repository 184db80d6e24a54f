"""Whole models of MLX, embeddings and heads included, against dense ones of the same weights."""

import numpy as np
import pytest
from engine_helpers import make_engine, score
from mlx_models import make_pair
from models import edit_config, edit_tensors, random_plan

from scoremode.errors import CheckpointError


@pytest.mark.parametrize(
    ("name", "bits", "key", "named"),
    [
        ("llama", 4, "quantization", {}),
        ("llama-tied", 3, "quantization", {"embed_tokens": 8}),
        ("qwen3", 5, "quantization_config", {"down_proj": 6, "lm_head": 8}),
    ],
)
def test_equals_the_dense_one_to_the_bit(name, bits, key, named, tmp_path):
    packed, dense = make_pair(tmp_path, name, bits, 32, key, **named)
    plan = random_plan()
    for dtype in ("float32", "bfloat16"):
        ours = score(make_engine(packed, dtype=dtype), plan)
        theirs = score(make_engine(dense, dtype=dtype), plan)
        assert np.array_equal(ours.logprob, theirs.logprob)
        assert theirs.logprob.std() > 0.3


def test_a_module_that_is_named_and_stored_dense(tmp_path):
    packed, dense = make_pair(tmp_path, "llama")
    name = "model.layers.0.mlp.up_proj"

    def unpack(tensors):
        from safetensors.torch import load_file

        for suffix in ("scales", "biases"):
            del tensors[f"{name}.{suffix}"]
        tensors[f"{name}.weight"] = load_file(dense / "model.safetensors")[f"{name}.weight"]

    edit_tensors(packed, unpack)
    make_engine(packed)
    edit_config(packed, quantization={"group_size": 32, "bits": 4, name: {"bits": 4}})
    with pytest.raises(CheckpointError, match=rf"{name} is stored dense"):
        make_engine(packed)
