"""Whole models of AWQ's, GPTQ's and AutoRound's against dense ones of the same weights."""

import json
import re

import numpy as np
import pytest
import torch
from support.engine import check_equal, make_engine, score
from support.families.qweight import Recipe, make_pair, quantize
from support.models import edit_config, edit_tensors, make_checkpoint, random_plan

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError, UnsupportedFormat, UnsupportedModel
from scoremode.schemes.summary import summarize

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": True}
ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True}
CASES = {
    "awq": (Recipe(order="outputs"), AWQ),
    "awq gemv": (Recipe(order="gemv"), AWQ | {"version": "gemv"}),
    "awq gemv_fast": (Recipe(order="gemv_fast"), AWQ | {"version": "gemv_fast"}),
    "gptq": (Recipe(less_one=True), GPTQ),
    "gptq in activation order": (Recipe(less_one=True, ordered=True), GPTQ),
    "gptq_v2 at 8 bits": (Recipe(8), GPTQ | {"bits": 8, "checkpoint_format": "gptq_v2"}),
    "auto-round": (
        Recipe(symmetric=True, less_one=True),
        ROUND | {"packing_format": "auto_round:auto_gptq"},
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_dense_one_to_the_bit(case, name, dtype, tmp_path):
    recipe, config = CASES[case]
    packed, dense = make_pair(tmp_path, name, recipe, **config)
    check_equal(packed, dense, dtype)


@pytest.mark.parametrize(
    ("case", "name", "fields"),
    [
        ("gptq in activation order", "quantize_config.json",
         {"bits": 4, "group_size": 32, "damp_percent": 0.01, "desc_act": True, "sym": False,
          "static_groups": False, "true_sequential": True, "model_name_or_path": None,
          "model_file_base_name": "model"}),
        ("awq", "quant_config.json",
         {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}),
    ],
)  # fmt: skip
def test_early_files_that_config_json_says_nothing_of(case, name, fields, tmp_path):
    """As AutoGPTQ and AutoAWQ wrote them before transformers read their formats."""
    recipe, config = CASES[case]
    packed, dense = make_pair(tmp_path, "llama", recipe, **config)
    edit_config(packed, quantization_config=None)
    with pytest.raises(CheckpointError, match=r"stored quantized .*, and config.json says nothing"):
        make_engine(packed)
    (packed / name).write_text(json.dumps(fields))
    check_equal(packed, dense, "float32")


# Experts by names of Mixtral's, with shared ones, of models that have theirs in one parameter.
MIXTURES = ["mixtral", "qwen2_moe", "deepseek_v2", "deepseek_v3", "gpt_oss", "llama4_text"]


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("case", ["awq", "gptq in activation order", "auto-round"])
def test_experts_equal_the_dense_ones_to_the_bit(case, name, tmp_path):
    recipe, config = CASES[case]
    packed, dense = make_pair(tmp_path, name, recipe, **config, provider="auto-round")
    plan = random_plan()
    engine = make_engine(packed, dtype="float32")
    assert engine.describe()["experts"] == "a layer at a time"
    ours, theirs = score(engine, plan), score(make_engine(dense, dtype="float32"), plan)
    assert np.array_equal(ours.logprob, theirs.logprob)
    assert theirs.logprob.std() > 0.3
    formats = summarize(open_checkpoint(str(packed))).formats
    of_experts = [f for f in formats.values() if any("experts" in kind for kind in f.kinds)]
    assert all(f.bits < 8 for f in of_experts) and of_experts


def test_an_expert_that_is_missing(tmp_path):
    config = CASES["gptq"][1] | {"provider": "auto-round"}
    packed, _ = make_pair(tmp_path, "gpt_oss", CASES["gptq"][0], **config)
    name = "model.layers.1.mlp.experts.4.up_proj"

    def remove(tensors):
        for suffix in ("qweight", "qzeros", "scales", "g_idx"):
            del tensors[f"{name}.{suffix}"]

    edit_tensors(packed, remove)
    with pytest.raises(CheckpointError, match=rf"no tensor {name}.weight, which expert 4 needs"):
        make_engine(packed)


@pytest.mark.parametrize("case", ["awq", "gptq"])
def test_gates_that_may_be_halves_are_refused(case, tmp_path):
    """GPTQModel's of 5.8 and later, which don't say so either."""
    recipe, config = CASES[case]
    packed, _ = make_pair(tmp_path, "gpt_oss", recipe, **config)
    with pytest.raises(
        UnsupportedFormat, match=r"experts\.0\.gate_proj\.qweight: of GPTQModel since"
    ):
        make_engine(packed)


def test_experts_as_gptqmodel_stored_gpt_oss_before(tmp_path):
    """One linear for gates and ups in turns, `gate_up.N`, each row of which is quantized by itself."""
    recipe, config = CASES["gptq"][0], CASES["gptq"][1] | {"provider": "auto-round"}
    packed, _ = make_pair(tmp_path, "gpt_oss", recipe, **config)
    plan = random_plan()
    expected = score(make_engine(packed, dtype="float32"), plan).logprob

    def in_turns(tensors):
        for name in [n for n in tensors if re.search(r"experts\.\d+\.", n)]:
            home, expert, part, suffix = name.rsplit(".", 3)
            if part == "down_proj":
                tensors[f"{home}.down.{expert}.{suffix}"] = tensors.pop(name)
            elif part == "gate_proj":
                gate = tensors.pop(name)
                up = tensors.pop(f"{home}.{expert}.up_proj.{suffix}")
                if suffix in ("qweight", "scales", "bias"):
                    gate = torch.stack((gate, up), dim=-1).flatten(-2)
                elif suffix == "qzeros":
                    gate = zeros_in_turns(gate, up)
                tensors[f"{home}.gate_up.{expert}.{suffix}"] = gate.contiguous()

    edit_tensors(packed, in_turns)
    edit_config(packed, quantization_config=CASES["gptq"][1])
    found = score(make_engine(packed, dtype="float32"), plan).logprob
    assert np.abs(found - expected).max() < 1e-5 and expected.std() > 0.3

    def remove(tensors):
        del tensors["model.layers.1.mlp.experts.gate_up.3.bias"]

    edit_tensors(packed, remove)
    with pytest.raises(
        CheckpointError, match=r"no tensor .*gate_up\.3\.bias, which expert 3 needs"
    ):
        make_engine(packed)


def zeros_in_turns(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """int32 [groups, 2 · words]: four bits of each in turns."""
    codes = [(words[..., None] >> torch.arange(0, 32, 4)).flatten(1) & 15 for words in (gate, up)]
    both = torch.stack(codes, dim=-1).flatten(1).unflatten(1, (-1, 8)).long()
    return (both << torch.arange(0, 32, 4)).sum(-1).to(torch.uint32).view(torch.int32)


def test_biases_of_zeros_that_the_model_has_no_place_for(tmp_path):
    """AutoGPTQ writes them for Llama."""
    packed, dense = make_pair(tmp_path, "llama", CASES["gptq"][0], **CASES["gptq"][1])
    name = "model.layers.0.self_attn.q_proj"
    edit_tensors(packed, lambda t: t.update({f"{name}.bias": torch.zeros(64, dtype=torch.half)}))
    check_equal(packed, dense, "float32")
    edit_tensors(packed, lambda t: t[f"{name}.bias"].__setitem__(5, 1e-4))
    with pytest.raises(CheckpointError, match=f"tensor {name}.bias belongs to a layer"):
        make_engine(packed)


def test_a_module_that_has_its_weight_transposed_is_refused(tmp_path):
    """GPT-2's, where a square weight would fit either way."""
    folder = make_checkpoint(tmp_path, "gpt2", dtype=torch.float16)
    name = "transformer.h.0.attn.c_proj"

    def pack(tensors):
        stored, _ = quantize(tensors.pop(f"{name}.weight").T.contiguous(), CASES["gptq"][0])
        tensors |= {f"{name}.{suffix}": tensor for suffix, tensor in stored.items()}

    edit_tensors(folder, pack)
    edit_config(folder, quantization_config=CASES["gptq"][1])
    with pytest.raises(UnsupportedModel, match=rf"{name}.weight is stored in GPTQ W4A16 g32 asym"):
        make_engine(folder)
