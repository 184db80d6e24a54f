"""A head's scale and softcap, found by its model's own forward."""

import numpy as np
import pytest
import torch
from support.engine import make_engine, score
from support.models import (
    ARCHITECTURES,
    library_logprobs,
    library_model,
    make_checkpoint,
    random_plan,
)
from torch import nn
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from scoremode.engines.torch.weights.head import HeadShape, probe_head
from scoremode.errors import UnsupportedModel

ROWS = 50


def probe(made_of_product, config=None, rows=ROWS):
    head = nn.Linear(4, rows)

    def own_logits(ids):
        return made_of_product(head(torch.zeros(*ids.shape, 4)))

    return probe_head("Model", head, rows, own_logits, config or {}, torch.device("cpu"))


@pytest.mark.parametrize("scale", [1.0, 0.0625, 1 / 3, 8.0, 0.01953125, -0.7, 13.7, 1e-4])
@pytest.mark.parametrize("softcap", [None, 30.0, 3.0, 500.0, 17.3])
def test_scale_and_softcap_are_measured_to_float32(scale, softcap):
    def logits(z):
        z = z * scale
        return z if softcap is None else softcap * torch.tanh(z / softcap)

    found = probe(logits)
    assert found.width == ROWS
    assert found.scale == pytest.approx(scale, rel=2e-7)
    assert found.softcap == (None if softcap is None else pytest.approx(softcap, rel=1e-7))


def test_a_scale_after_the_cap_is_the_same_as_another_scale_and_cap():
    assert probe(lambda z: torch.tanh(z / 20.0) * 30.0) == HeadShape(
        pytest.approx(1.5, rel=2e-7), 30.0, ROWS
    )


def test_the_configs_number_is_taken_where_it_is_the_measured_one():
    config = {"a": 1 / 3 * 1.001, "nested": {"scale": 1 / 3, "cap": 29.7}, "b": 7}
    found = probe(lambda z: 29.7 * torch.tanh(z * (1 / 3) / 29.7), config)
    assert (found.scale, found.softcap) == (1 / 3, 29.7)
    # Divided by, as Granite does it.
    assert probe(lambda z: z / 1.3, {"logits_scaling": 1.3}).scale == 1.0 / 1.3
    # One that only looks like it stays out of it.
    assert probe(lambda z: z * 0.5, {"scale": 0.50001}).scale == 0.5


def test_entries_that_the_model_cuts_off_are_not_of_its_vocabulary():
    assert probe(lambda z: z[..., :37]) == HeadShape(1.0, None, 37)


@pytest.mark.parametrize(
    "logits, message",
    [
        (lambda z: z + 1e-3, "more than a matrix, a scale and a softcap"),
        (lambda z: z.clamp(-100, 100) + z * 0.1, "more than a matrix"),
        (lambda z: z * 0, "logits are the same whatever"),
        (lambda z: z * torch.nan, "more than a matrix"),
        (lambda z: torch.sign(z) * z.abs().sqrt(), "more than a matrix"),
        (lambda z: 30 * torch.atan(z / 30), "more than a matrix"),
        (lambda z: z.bfloat16().float(), "49 of its 50 logits"),
        (lambda z: z.log_softmax(-1), "more than a matrix"),
        (lambda z: z.index_fill(-1, torch.tensor([7, 9]), -3.4e38), "2 of its 50 logits"),
        (lambda z: torch.cat((z, z), -1), "logits of shape"),
        (lambda z: z.flip(-1), "more than a matrix|something else"),
    ],
)  # fmt: skip
def test_any_other_function_is_refused_with_what_it_does(logits, message):
    with pytest.raises(UnsupportedModel, match=f"^Model: .*({message})"):
        probe(logits)


HEADS = {
    "recurrent_gemma": (
        {"logits_soft_cap": 3.0, "lru_width": 32, "attention_window_size": 7}, 1.0, 3.0,
    ),
    "xlstm": (
        {"output_logit_soft_cap": 2.0, "embedding_dim": 32, "num_heads": 4, "num_blocks": 3},
        1.0, 2.0,
    ),
    "minicpm3": (
        {
            "dim_model_base": 8, "num_key_value_heads": 4, "head_dim": None, "kv_lora_rank": 16,
            "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
        },
        1.0, None,
    ),
    "hyperclovax": ({"logits_scaling": 0.7}, 0.7, None),
    "falcon_h1": (
        {
            "lm_head_multiplier": 0.3, "mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8,
            "mamba_d_state": 8,
        },
        0.3, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_heads_that_each_name_it_otherwise_equal_the_library(name, tmp_path, monkeypatch):
    settings, scale, softcap = HEADS[name]
    monkeypatch.setitem(ARCHITECTURES, name, settings)
    folder, plan = make_checkpoint(tmp_path, name), random_plan()
    engine = make_engine(folder)
    ours = score(engine, plan)
    attention = "eager" if name == "xlstm" else "sdpa"
    theirs = library_logprobs(library_model(folder, torch.float32, attention), plan)
    assert np.abs(ours.logprob - theirs).max() < 1e-5
    assert (engine.head.scale, engine.head.softcap) == (scale, softcap)


@pytest.mark.parametrize(
    "name, scale, softcap",
    [("gemma2", 1.0, 3.0), ("cohere", 0.5, None), ("granite", 1 / 1.5, None), ("llama", 1.0, None)],
)
def test_what_fields_of_configs_said_is_found_to_the_last_bit(name, scale, softcap, tmp_path):
    head = make_engine(make_checkpoint(tmp_path, name)).head
    assert (head.scale, head.softcap) == (scale, softcap)


def test_logits_that_are_cut_bound_the_vocabulary(tmp_path, monkeypatch):
    """As Inkling leaves the padding of its table out."""
    folder, plan = make_checkpoint(tmp_path, "llama"), random_plan(vocabulary=90)
    own = LlamaForCausalLM.forward

    def forward(self, *args, **kwargs):
        out = own(self, *args, **kwargs)
        out.logits = out.logits[..., :95]
        return out

    monkeypatch.setattr(LlamaForCausalLM, "forward", forward)
    engine = make_engine(folder)
    assert engine.vocabulary == 95
    theirs = library_logprobs(library_model(folder, torch.float32), plan)
    assert np.abs(score(engine, plan).logprob - theirs).max() < 1e-5
