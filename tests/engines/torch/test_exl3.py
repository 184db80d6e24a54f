"""Whole models of ExLlamaV3, heads included, against dense ones of the same weights."""

import numpy as np
import pytest
import torch
from support.engine import make_engine, score
from support.families.exl3 import make_pair
from support.models import edit_tensors, random_plan

from scoremode.errors import CheckpointError, UnsupportedFormat


def test_a_model_whose_sizes_are_padded(tmp_path):
    """97 entries of vocabulary, 96 inputs, 160 inside."""

    def odd(settings):
        settings.update(hidden_size=96, intermediate_size=160, num_hidden_layers=2, vocab_size=101)

    packed, dense = make_pair(tmp_path, "llama", 4, "mul1", change=odd)
    plan = random_plan()
    ours, theirs = (score(make_engine(path, dtype="float32"), plan) for path in (packed, dense))
    assert np.array_equal(ours.logprob, theirs.logprob)


def test_a_part_that_is_missing_or_of_another_size(tmp_path):
    packed, _ = make_pair(tmp_path, "phi3", 2, "mcg")
    home = "model.layers.0.self_attn"

    def wide(tensors):
        for suffix in ("trellis", "suh"):
            name = f"{home}.k_proj.{suffix}"
            tensors[name] = torch.cat([tensors[name]] * 2)

    edit_tensors(packed, wide)
    words = rf"{home}.k_proj.weight has shape \[128, 256\], and {home}.qkv_proj.weight, which it is"
    with pytest.raises(CheckpointError, match=words):
        make_engine(packed)

    def without(tensors):
        for name in [name for name in tensors if name.startswith(f"{home}.k_proj")]:
            del tensors[name]

    edit_tensors(packed, without)
    with pytest.raises(CheckpointError, match=rf"no tensor for parameter {home}.qkv_proj.weight"):
        make_engine(packed)


def test_a_tensor_that_nothing_uses(tmp_path):
    packed, _ = make_pair(tmp_path, "llama", 2, "mcg")
    name = "model.layers.0.mlp.up_proj.scale"
    edit_tensors(packed, lambda t: t.update({name: torch.ones(1)}))
    with pytest.raises(UnsupportedFormat, match=r"up_proj: .* with scale is not supported"):
        make_engine(packed)


def test_a_linear_of_another_size(tmp_path):
    packed, _ = make_pair(tmp_path, "llama", 2, "mcg")
    name = "model.layers.1.mlp.up_proj"

    def narrow(tensors):
        for suffix, kept in (("trellis", 8), ("suh", None), ("svh", 128)):
            tensor = tensors[f"{name}.{suffix}"]
            cut = tensor[:, :kept] if suffix == "trellis" else tensor[:kept]
            tensors[f"{name}.{suffix}"] = cut.contiguous()

    edit_tensors(packed, narrow)
    with pytest.raises(CheckpointError, match=rf"{name}.weight has shape \[128, 128\], the model"):
        make_engine(packed)
