"""Attention in blocks against the definition, and what it is for."""

from types import SimpleNamespace

import pytest
import torch
from support.engine import make_engine
from support.models import make_checkpoint
from torch import nn

from scoremode.engines.torch.model import attention as sliding
from scoremode.engines.torch.model.attention import (
    attend,
    attends_without_masks,
    block_of,
    has_narrow_values,
    slides,
)

CPU = torch.device("cpu")


def states(length: int = 40, values: int = 16) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((2, 4, length, 16), (2, 2, length, 16), (2, 2, length, values))
    return [torch.randn(size, generator=generator) for size in sizes]


def module() -> nn.Module:
    one = nn.Module()
    one.num_key_value_groups, one.is_causal = 2, True
    return one


def defined(query, key, value, scaling, window):
    """float32 [B, T, H, d'] of float64, from every two positions' scores."""
    q, k, v = query.double(), *(x.double().repeat_interleave(2, 1) for x in (key, value))
    behind = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])
    seen = (behind >= 0) & (behind < (window or q.shape[2]))
    scores = (q @ k.transpose(2, 3) * scaling).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).float()


@pytest.mark.parametrize("block", [1, 4, 16, 1024])
@pytest.mark.parametrize("window", [None, 1, 7, 39, 40, 100])
def test_blocks_are_the_attention_of_all_positions(window, block, monkeypatch):
    monkeypatch.setattr(sliding, "_LEAST_BLOCK", block)
    given = states()
    found, _ = attend(module(), *given, None, scaling=0.3, sliding_window=window, is_causal=None)
    expected = defined(*given, 0.3, window)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 1e-6 and expected.abs().max() > 1


@pytest.mark.parametrize("window", [None, 7])
def test_narrow_values_are_padded_for_a_cpus_kernel(window):
    query, key, value = states(values=8)
    found, _ = attend(module(), query, key, value, None, scaling=0.3, sliding_window=window)
    expected = defined(query, key, value, 0.3, window)
    assert found.shape[-1] == 8 and (found - expected).abs().max() < 1e-6


def test_a_block_never_sees_more_keys_than_are_counted(monkeypatch):
    seen = []

    def note(query, key, value, attn_mask, scale):
        seen.append((query.shape[2], key.shape[2]))
        assert attn_mask.shape == seen[-1]
        return torch.zeros(*query.shape[:3], value.shape[-1])

    monkeypatch.setattr(sliding, "_LEAST_BLOCK", 4)
    monkeypatch.setattr(sliding.functional, "scaled_dot_product_attention", note)
    attend(module(), *states(), None, scaling=0.3, sliding_window=7)
    assert sum(queries for queries, _ in seen) == 40
    assert tuple(map(max, zip(*seen, strict=True))) == block_of(7) == (7, 13)


def test_what_is_not_known_is_refused():
    given = states()
    mask = torch.ones(1, 1, 40, 40, dtype=torch.bool)
    for more in (
        {"attention_mask": mask},
        {"is_causal": False},
        {"softcap": 2.0},
        {"dropout": 0.1},
    ):
        arguments = {"attention_mask": None, "scaling": 0.3} | more
        with pytest.raises(AssertionError, match="known"):
            attend(module(), *given, **arguments)


def test_models_say_whether_they_slide():
    assert not slides(SimpleNamespace())
    assert not slides(SimpleNamespace(sliding_window=None))
    assert slides(SimpleNamespace(sliding_window=7))
    kinds = {"sliding_window": 7, "layer_types": ["full_attention"]}
    assert not slides(SimpleNamespace(**kinds))
    assert slides(SimpleNamespace(layer_types=["full_attention", "sliding_attention"]))
    assert slides(SimpleNamespace(layer_types=["full_attention", "chunked_attention"]))


def test_values_are_narrow_for_a_cpu_alone():
    config = SimpleNamespace(kv_lora_rank=16)
    assert has_narrow_values(config, CPU)
    assert not has_narrow_values(config, torch.device("cuda", 0))
    assert not has_narrow_values(SimpleNamespace(kv_lora_rank=None), CPU)


@pytest.mark.parametrize(
    ("name", "may"),
    # Llama 4 attends in chunks, which its sliding window doesn't say; gpt-oss has sinks.
    [("mistral", True), ("gemma3_text", True), ("llama4_text", False), ("gpt_oss", False)],
)
def test_it_is_for_models_that_flash_kernels_are_for(name, may, tmp_path):
    skeleton = make_engine(make_checkpoint(tmp_path, name)).parts.skeleton
    assert attends_without_masks(skeleton.model, skeleton.attention) == may
