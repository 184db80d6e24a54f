"""Long windows in chunks against the same windows whole, for every architecture of the tests."""

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from support.engine import make_engine, score
from support.families.bitsandbytes import config, make_pair
from support.models import ARCHITECTURES, edit_config, make_checkpoint, random_plan
from torch import nn

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.base import Schedule
from scoremode.engines.torch.model import attention as sliding
from scoremode.engines.torch.passes.chunks import in_chunks, is_tokenwise

CAUSAL = sorted(set(ARCHITECTURES) - {"bert", "electra"})
WHOLE, CHUNKED = Schedule(4, 1), Schedule(4, 1, 8)
EAGER = {"gemma2", "bloom", "mpt", "gptj", "gpt_oss", "inkling2_text"}
SLIDING = {"mistral", "gemma3_text", "cohere2", "starcoder2"}
NARROW = {"deepseek_v2", "deepseek_v3", "longcat_flash"}
LENGTH = 40


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(sliding, "_LEAST_BLOCK", 4)


@pytest.mark.parametrize("name", CAUSAL)
def test_chunks_give_the_scores_of_whole_windows(name, tmp_path):
    folder = make_checkpoint(tmp_path, name)
    plan = random_plan(LENGTH, windows=2, tail=21)
    engine = make_engine(folder)
    whole = score(engine, plan, WHOLE)
    assert engine.describe().get("chunks") is None
    chunked = score(engine, plan, CHUNKED)
    assert np.abs(whole.logprob - chunked.logprob).max() < 1e-5
    ran = engine.parts.chunks.describe()
    assert any("MLP" in c or "MoE" in c or "Moe" in c or "Block" in c or "Norm" in c for c in ran)
    assert (sliding.APART in ran) == (name in SLIDING | NARROW)
    assert np.array_equal(score(engine, plan, CHUNKED).logprob, chunked.logprob)
    # And back again to what ran before.
    assert np.array_equal(score(engine, plan, WHOLE).logprob, whole.logprob)


MIXERS: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 8},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8},
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
}


@pytest.mark.parametrize("name", MIXERS)
def test_what_carries_a_state_along_the_window_is_run_whole(name, tmp_path, monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, name, MIXERS[name])
    folder, plan = make_checkpoint(tmp_path, name), random_plan(LENGTH, windows=2, tail=21)
    engine = make_engine(folder)
    whole = score(engine, plan, WHOLE)
    chunked = score(engine, plan, CHUNKED)
    assert np.abs(whole.logprob - chunked.logprob).max() < 1e-5
    ran = " ".join(engine.describe().get("chunks") or engine.parts.chunks.describe())
    assert "Norm" in ran
    assert not any(word in ran for word in ("Mixer", "Conv", "Delta", "Attention"))


class Shifted(nn.Module):
    """What a token is with a half of the one before."""

    def forward(self, x):
        return x + 0.5 * nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]


class Counted(nn.Module):
    """What a token is and where it stands."""

    def forward(self, x):
        return x + torch.arange(x.shape[1])[:, None]


class Scaled(nn.Module):
    """By the largest value of all tokens."""

    def forward(self, x):
        return x / x.abs().max()


class Backwards(nn.Module):
    def forward(self, x):
        return x.flip(1)


class Pooled(nn.Module):
    def forward(self, x):
        return x.mean(1)


class Named(nn.Module):
    def forward(self, x):
        return {"states": x}


def rows(length: int = 8) -> torch.Tensor:
    return torch.randn(1, length, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [Shifted, Counted, Scaled, Backwards, Pooled, Named])
def test_what_looks_at_other_tokens_is_found_out(kind):
    assert not is_tokenwise(kind(), rows(), 1)


class Experts(nn.Module):
    """Rows of one expert behind those of another, as Llama 4's have them."""

    def forward(self, x):
        return (x.unflatten(0, (4, -1)) * torch.arange(1, 5)[:, None, None]).flatten(0, 1)


def test_zeros_hide_nothing():
    """Of a token that another expert takes, an expert gets zeros."""
    x = torch.zeros(32, 6)
    assert not is_tokenwise(Experts(), x, 0)
    assert not is_tokenwise(Scaled(), x, 0)
    x[::8] = 1
    assert not is_tokenwise(Experts(), x, 0)
    assert is_tokenwise(nn.Tanh(), x, 0)


_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "use_sliding_window": True}  # fmt: skip


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe"])
def test_experts_of_several_windows_go_in_chunks(name, tmp_path):
    """They take rows of all windows in one piece."""
    folder, plan = make_checkpoint(tmp_path, name), random_plan(LENGTH, windows=4, tail=21)
    engine = make_engine(folder)
    whole, chunked = (score(engine, plan, Schedule(4, 2, chunk)) for chunk in (None, 8))
    assert np.abs(whole.logprob - chunked.logprob).max() < 1e-5
    assert any("SparseMoeBlock" in name for name in engine.parts.chunks.describe())


SLIDING_MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": _LOCAL,
    "qwen3_moe": _EXPERTS,
    # Their masks slide, and their attention is not told how far.
    "qwen2_moe": _EXPERTS | {"shared_expert_intermediate_size": 32},
    "phimoe": _LOCAL,
    # Its attention is told, and its mask doesn't slide.
    "olmoe": _EXPERTS,
}


@pytest.mark.parametrize("name", SLIDING_MIXTURES)
def test_mixtures_that_slide(name, tmp_path, monkeypatch):
    told = {"sliding_window": 7, "max_window_layers": 3}
    monkeypatch.setitem(ARCHITECTURES, name, SLIDING_MIXTURES[name] | told)
    folder, plan = make_checkpoint(tmp_path, name), random_plan(LENGTH, windows=2, tail=21)
    engine = make_engine(folder)
    whole, chunked = score(engine, plan, WHOLE), score(engine, plan, CHUNKED)
    assert np.abs(whole.logprob - chunked.logprob).max() < 1e-5
    ran = engine.parts.chunks.describe()
    assert (sliding.APART in ran) == (name in ("mixtral", "qwen3_moe"))


class Routed(nn.Module):
    """A result a token, and which way each went, of all windows in one row after the other."""

    def forward(self, x):
        return x * 2, None, x.flatten(0, 1)[:, :3]


def test_a_result_may_have_several_parts():
    x = rows(21)
    assert is_tokenwise(Routed(), x.narrow(1, 0, 8), 1)
    out, nothing, ways = in_chunks(Routed(), x, 1, 8)
    assert nothing is None
    assert torch.equal(out, x * 2) and torch.equal(ways, x[0, :, :3])


def test_chunks_are_along_the_tokens_wherever_they_lie():
    x = torch.randn(2, 3, 21, 6, generator=torch.Generator().manual_seed(0))
    for axis, given in ((2, x), (1, x.transpose(1, 2)), (0, x[0, 0])):
        sizes = []

        def norm(part, axis=axis, sizes=sizes):
            sizes.append(part.shape[axis])
            return nn.functional.rms_norm(part, (6,))

        assert torch.equal(in_chunks(norm, given, axis, 8), nn.functional.rms_norm(given, (6,)))
        assert sizes == [8, 8, 5]


def test_a_result_lies_in_memory_as_it_would_of_a_whole_window():
    """Queries that are normed a head: their tokens lie further apart than their heads."""
    x = torch.randn(1, 21, 3, 6, generator=torch.Generator().manual_seed(0)).transpose(1, 2)
    whole = x * 2
    assert whole.stride() == in_chunks(lambda part: part * 2, x, 2, 8).stride()
    assert whole.stride() != whole.contiguous().stride()


def test_what_a_chunk_holds_is_let_go_before_the_next():
    alive = []

    class Held(nn.Module):
        def forward(self, x):
            out = x * 2
            alive.append(weakref.ref(out))
            assert sum(ref() is not None for ref in alive) <= 2
            return out

    in_chunks(Held(), rows(64), 1, 8)
    assert len(alive) == 8


@pytest.mark.parametrize("name", ["W4A16-g32", "FP8_DYNAMIC", "W8A8", "NVFP4", "FP8-block64"])
def test_packed_weights_and_quantized_inputs_give_the_same_in_chunks(name, demo, tmp_path):
    (variant,) = (v for v in VARIANTS if v.name == name)
    quantize_folder(demo / "model", tmp_path / "model", variant)
    engine = make_engine(tmp_path / "model", dtype="float32")
    plan = random_plan(LENGTH, windows=2, tail=21)
    whole, chunked = score(engine, plan, WHOLE), score(engine, plan, CHUNKED)
    assert np.abs(whole.logprob - chunked.logprob).max() < 2e-5
    # A linear whose inputs are quantized holds more than its output, and goes in chunks as well.
    assert ("Linear" in engine.parts.chunks.describe()) == (name != "W4A16-g32")


def test_a_scale_of_a_whole_window_keeps_its_linears_whole(tmp_path):
    """LLM.int8's columns of outliers are those of all tokens."""
    folder, _ = make_pair(tmp_path, "llama", "int8")
    edit_config(folder, quantization_config=config("int8", llm_int8_threshold=3.0))
    engine = make_engine(folder, dtype="float32")
    plan = random_plan(LENGTH, windows=2, tail=21)
    whole, chunked = score(engine, plan, WHOLE), score(engine, plan, CHUNKED)
    assert np.array_equal(whole.logprob, chunked.logprob)
    ran = engine.parts.chunks.describe()
    assert "LlamaMLP" not in ran and "Linear" not in ran and "LlamaRMSNorm" in ran


def test_a_record_says_what_ran_in_chunks(tmp_path):
    """Of long windows alone, with the memory that was expected."""
    folder = make_checkpoint(
        tmp_path, "llama", change=lambda s: s.update(max_position_embeddings=16_384)
    )
    plan = random_plan(8200, windows=1, tail=0)
    engine = make_engine(folder, max_memory=40 << 20)
    schedule = engine.schedule(plan)
    assert schedule.chunk_tokens == 8192
    score(engine, plan, schedule)
    facts = engine.describe()
    assert facts["estimated_bytes"] == engine.parts.memory.estimate(8200, schedule)
    assert facts["chunks"] == ["LlamaMLP", "LlamaRMSNorm"]
