"""Whole models of AMD Quark against dense ones of the same weights."""

import numpy as np
import pytest
import torch
from support.engine import check_equal, make_engine, score
from support.families.quark import KINDS, make_pair
from support.models import edit_tensors, random_plan


@pytest.mark.parametrize(
    ("name", "kind"),
    [("llama", "fp8"), ("llama", "ptpc"), ("qwen3_moe", "int8"), ("llama", "mxfp4")],
)
def test_equals_the_dense_one_to_the_bit(name, kind, tmp_path):
    packed, dense = make_pair(tmp_path, name, kind)
    theirs = check_equal(packed, dense, "float32", "bfloat16")
    engine = make_engine(packed, dtype="float32")
    assert engine.describe()["arithmetic"] == "weights+activations"
    declared = score(engine, random_plan()).logprob
    assert 0 < np.abs(declared - theirs.logprob).mean() < 3


@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_four_bits_in_words_equal_the_dense_ones(kind, tmp_path):
    packed, dense = make_pair(tmp_path, "llama", kind)
    check_equal(packed, dense, "float32", "bfloat16")


def test_a_cache_as_declared(tmp_path):
    inputs = KINDS["fp8"][1]
    cache = {f"*{which}_proj": {"output_tensors": inputs} for which in "kv"}
    packed, _ = make_pair(tmp_path, "llama", "fp8", kv_cache_quant_config=cache)

    def add(tensors):
        for layer in range(3):
            for which in "kv":
                name = f"model.layers.{layer}.self_attn.{which}_proj.output_scale"
                tensors[name] = torch.tensor(0.01)

    edit_tensors(packed, add)
    plan = random_plan()
    plain = score(make_engine(packed, dtype="float32"), plan).logprob
    cached = score(make_engine(packed, dtype="float32", kv_cache="as-declared"), plan).logprob
    assert (plain != cached).any()
