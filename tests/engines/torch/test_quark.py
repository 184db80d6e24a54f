"""Whole models of AMD Quark against dense ones of the same weights."""

import torch
from support.engine import make_engine, score
from support.families.quark import KINDS, make_pair
from support.models import edit_tensors, random_plan


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
