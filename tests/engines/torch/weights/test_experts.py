"""Mixtures of experts in the torch engine: packed, in groups, and what can be wrong with them."""

import re

import numpy as np
import pytest
import torch
from support.engine import make_engine, score
from support.families.packed_experts import FORMATS, Tensors, make_packed, pack_int4
from support.models import (
    edit_config,
    edit_tensors,
    library_logprobs,
    library_model,
    make_checkpoint,
    random_plan,
)

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.base import Schedule
from scoremode.engines.torch.weights import experts
from scoremode.schemes.summary import summarize

# Families that differ in their experts' names, gates, biases or layout.
PACKED = [
    "mixtral",
    "qwen3_moe",
    "gpt_oss",
    "deepseek_v3",
    "qwen2_moe",
    "nemotron_h",
    "llama4_text",
]


def attention_of(name: str) -> str:
    return "eager" if name == "gpt_oss" else "sdpa"


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("name", PACKED)
def test_packed_experts_equal_the_library_on_their_decoded_weights(name, form, tmp_path):
    packed, dense = make_packed(tmp_path, name, form)
    plan = random_plan()
    engine = make_engine(packed, dtype="float32")
    ours = score(engine, plan)
    assert engine.describe()["experts"] == "a layer at a time"
    theirs = library_logprobs(library_model(dense, torch.float32, attention_of(name)), plan)
    assert np.abs(ours.logprob - theirs).max() < 1e-5
    original = make_checkpoint(tmp_path / "original", name, dtype=torch.bfloat16)
    before = library_logprobs(library_model(original, torch.float32, attention_of(name)), plan)
    assert np.abs(before - theirs).max() > 1e-3


def test_llama_4s_experts_run_on_their_own_tokens_alone(tmp_path, monkeypatch):
    """The library gives each all of them, and zeros for those of others."""
    folder, plan = make_checkpoint(tmp_path, "llama4_text"), random_plan(windows=1, tail=0)
    tokens, apply = [], experts.ExpertPart.apply

    def counted(part, x):
        tokens.append(len(x))
        return apply(part, x)

    engine = make_engine(folder, dtype="float32")
    monkeypatch.setattr(experts.ExpertPart, "apply", counted)
    ours = score(engine, plan, Schedule(1, 1)).logprob
    theirs = library_logprobs(library_model(folder, torch.float32), plan)
    assert np.abs(ours - theirs).max() < 1e-5
    # One of three layers is a mixture, with two linears in each expert; the probe's tokens come first.
    assert sum(tokens) == 2 * (19 + 2 * 16)


# An expert takes 24 KiB in float32: a quarter of the memory holds this many.
@pytest.mark.parametrize(("memory", "places"), [(64 * 2**10, 1), (220 * 2**10, 2), (2**20, None)])
@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
@pytest.mark.parametrize("form", [*FORMATS, None], ids=str)
def test_groups_of_experts_change_no_bit(form, name, memory, places, tmp_path):
    if form is None:
        # Stored in another dtype than computed in, so that experts have to be decoded too.
        folder = make_checkpoint(tmp_path, name, dtype=torch.bfloat16)
    else:
        folder, _ = make_packed(tmp_path, name, form)
    plan = random_plan()
    schedule = Schedule(pass_windows=4, batch_windows=2)
    roomy = score(make_engine(folder, dtype="float32"), plan, schedule)
    engine = make_engine(folder, dtype="float32", max_memory=memory)
    tight = score(engine, plan, schedule)
    assert np.array_equal(roomy.logprob, tight.logprob)
    said = f"{places} at a time" if places else "a layer at a time"
    assert engine.describe()["experts"] == said


def test_experts_stay_within_the_budget_and_layers_share_their_memory(tmp_path):
    folder, _ = make_packed(tmp_path, "mixtral", FORMATS[0])
    held = {}
    for places, memory in ((1, 2**16), (2, 220 * 2**10), (6, 2**30)):
        engine = make_engine(folder, dtype="float32", max_memory=memory)
        before = engine.parts.slot.bytes
        score(engine, random_plan(windows=20), Schedule(2, 2))
        experts = [b for (role, *_), b in engine.parts.slot._buffers.items() if ".experts." in role]
        held[places] = sum(b.nbytes for b in experts)
        assert engine.parts.slot.bytes == before
    one = 3 * 32 * 64 * 4
    assert held == {1: one, 2: 2 * one, 6: 6 * one}


def test_dense_experts_in_the_compute_dtype_are_used_where_they_lie(tmp_path):
    for name in ("mixtral", "gpt_oss"):
        folder = make_checkpoint(tmp_path / name, name)
        engine = make_engine(folder, max_memory=2**16)
        score(engine, random_plan(), Schedule(2, 2))
        assert engine.describe()["experts"] == "a layer at a time"
        assert not [role for role, *_ in engine.parts.slot._buffers if ".experts." in role]


def test_experts_of_one_layer_may_differ_in_format(tmp_path):
    folder, dense = make_packed(tmp_path, "mixtral", FORMATS[0])
    plan, schedule = random_plan(), Schedule(2, 2)
    packed = score(make_engine(folder, dtype="bfloat16"), plan, schedule)
    weights = open_checkpoint(str(dense))

    def unpack(tensors: Tensors) -> None:
        for key in [k for k in tensors if ".experts.0." in k]:
            del tensors[key]
            name = f"{key.rpartition('.')[0]}.weight"
            tensors[name] = weights.read(name).clone()

    edit_tensors(folder, unpack)
    config = open_checkpoint(str(folder)).config["quantization_config"]
    config["ignore"].append(r"re:.*experts\.0\..*")
    edit_config(folder, quantization_config=config)
    # An expert takes 12 KiB in bfloat16, the first one nothing.
    engine = make_engine(folder, dtype="bfloat16", max_memory=110 * 2**10)
    assert np.array_equal(score(engine, plan, schedule).logprob, packed.logprob)
    assert engine.describe()["experts"] == "2 at a time"


def test_a_float32_routing_bias_stays_float32_in_a_bfloat16_model(tmp_path):
    folder = make_checkpoint(tmp_path, "deepseek_v3", dtype=torch.bfloat16)

    def set_bias(tensors: Tensors) -> None:
        for key in tensors:
            if key.endswith("e_score_correction_bias"):
                # In bfloat16 all of these are 64: the differences decide the routing.
                tensors[key] = 64 + torch.linspace(0, 0.12, len(tensors[key]))

    edit_tensors(folder, set_bias)
    plan = random_plan()
    ours = score(make_engine(folder, dtype="bfloat16"), plan)
    theirs = library_logprobs(library_model(folder, torch.bfloat16), plan)
    assert np.abs(ours.logprob - theirs).mean() < 1e-2


def test_routers_and_shared_experts_may_be_packed_like_any_linear(tmp_path):
    folder, dense = make_packed(tmp_path, "qwen2_moe", FORMATS[0])
    shared = re.compile(r"\.mlp\.shared_expert\.\w+\.weight$")

    def pack(tensors: Tensors) -> None:
        for key in [k for k in tensors if shared.search(k)]:
            stored, _ = pack_int4(tensors.pop(key))
            tensors |= {f"{key.removesuffix('.weight')}.{s}": t for s, t in stored.items()}

    def decode(tensors: Tensors) -> None:
        for key in [k for k in tensors if shared.search(k)]:
            tensors[key] = pack_int4(tensors[key])[1]

    edit_tensors(folder, pack)
    edit_tensors(dense, decode)
    ignored = ["re:.*self_attn", "re:.*gate$", "re:.*shared_expert_gate", "lm_head"]
    edit_config(folder, quantization_config=FORMATS[0].config | {"ignore": ignored})
    plan = random_plan()
    ours = score(make_engine(folder, dtype="float32"), plan)
    theirs = library_logprobs(library_model(dense, torch.float32), plan)
    assert np.abs(ours.logprob - theirs).max() < 1e-5


def test_bits_per_weight_count_experts_and_leave_routers_out(tmp_path):
    folder, _ = make_packed(tmp_path, "mixtral", FORMATS[0])
    summary = summarize(open_checkpoint(str(folder)))
    assert summary.formats["W4A16 g32"].modules == 3 * 6 * 3
    experts = 3 * 6 * 3 * 32 * 64
    attention = 3 * (2 * 32 * 32 + 2 * 16 * 32)
    bits = (experts * 4.5 + attention * 16) / (experts + attention)
    assert summary.body_bits == pytest.approx(bits)
