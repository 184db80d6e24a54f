"""The torch engine against transformers' own forward of the same files."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.models import (
    ARCHITECTURES,
    library_logprobs,
    library_model,
    make_checkpoint,
    random_plan,
)

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.torch.engine import build_engine
from scoremode.engines.torch.options import TorchOptions
from scoremode.results.scores import Scores, check, concatenate

CAUSAL = sorted(set(ARCHITECTURES) - {"bert", "electra"})


def score(folder, plan, **options) -> Scores:
    engine = build_engine(open_checkpoint(str(folder)), TorchOptions(device="cpu", **options))
    schedule = engine.schedule(plan)
    parts = list(engine.score(plan, schedule))
    for windows, part in zip(schedule.passes(plan), parts, strict=True):
        check(part, plan, windows)
    return concatenate(parts)


def attention_of(name: str) -> str:
    return (
        "eager"
        if name in {"gemma2", "bloom", "mpt", "gptj", "gpt_oss", "inkling2_text"}
        else "sdpa"
    )


@pytest.mark.parametrize("name", CAUSAL)
def test_float32_equals_the_librarys_forward(name, tmp_path):
    folder = make_checkpoint(tmp_path, name)
    plan = random_plan()
    ours = score(folder, plan, batch_windows=2)
    theirs = library_logprobs(library_model(folder, torch.float32, attention_of(name)), plan)
    assert np.abs(ours.logprob - theirs).max() < 1e-5
    # A model that says nothing about its text would agree with anything.
    assert theirs.std() > 0.5


@pytest.mark.parametrize("name", CAUSAL)
def test_bfloat16_error_is_no_larger_than_the_librarys(name, tmp_path):
    folder = make_checkpoint(tmp_path, name, dtype=torch.bfloat16)
    plan = random_plan(windows=30)
    truth = library_logprobs(library_model(folder, torch.float32, attention_of(name)), plan)
    theirs = library_logprobs(library_model(folder, torch.bfloat16, attention_of(name)), plan)
    ours = score(folder, plan, dtype="bfloat16")
    error = np.abs(ours.logprob - truth)
    assert error.mean() <= np.abs(theirs - truth).mean() * 1.03
    assert error.max() <= np.abs(theirs - truth).max() * 1.25


def test_what_the_librarys_loader_overwrites_stays_the_files(tmp_path, monkeypatch):
    """Youtu's initialization zeroes the padding id's row of what was just loaded; its head is tied."""
    heads = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "kv_lora_rank": 16}
    settings = heads | {"q_lora_rank": 24, "num_key_value_heads": 4, "head_dim": None}
    monkeypatch.setitem(ARCHITECTURES, "youtu", settings)
    folder = make_checkpoint(tmp_path, "youtu")
    stored = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    model, plan = library_model(folder, torch.float32), random_plan()
    ours = score(folder, plan, batch_windows=1).logprob
    table = model.get_input_embeddings().weight
    assert not table[0].any() and torch.equal(table[1:], stored[1:])
    assert np.abs(ours - library_logprobs(model, plan)).max() > 1e-3
    with torch.no_grad():
        table.copy_(stored)
    assert np.abs(ours - library_logprobs(model, plan)).max() < 2e-6
