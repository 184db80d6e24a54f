"""What a layer is said to hold of a long window, against what was alive while it ran."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.engine import make_engine, score
from support.models import make_checkpoint, random_plan
from support.peak_bytes import live_bytes

from scoremode.engines.base import Schedule
from scoremode.engines.torch.memory.activations import Activations, activations
from scoremode.engines.torch.model.attention import block_of

LENGTH, CHUNK = 2048, 256
WIDE = {
    "hidden_size": 192,
    "intermediate_size": 640,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": LENGTH,
}


def measured(folder: Path, chunk: int | None, dtype: str) -> tuple[int, int]:
    """The most bytes of tensors alive in a second run, and those that were expected."""
    engine, plan = make_engine(folder, dtype=dtype), random_plan(LENGTH, windows=1, tail=0)
    schedule = Schedule(1, 1, chunk)
    score(engine, plan, schedule)
    with live_bytes() as counted:
        score(engine, plan, schedule)
    return counted.peak, engine.parts.memory.estimate(LENGTH, schedule)


@pytest.mark.parametrize("chunk", [None, CHUNK])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "all heads"])
def test_the_estimate_is_within_15_percent_of_the_peak(name, dtype, chunk, tmp_path):
    more = {"num_key_value_heads": 6} if name == "all heads" else {}
    kind = "llama" if name == "all heads" else name
    folder = make_checkpoint(tmp_path, kind, change=lambda s: s.update(WIDE | more))
    peak, estimate = measured(folder, chunk, dtype)
    assert abs(estimate / peak - 1) < 0.15, (estimate, peak)
    if chunk is not None:
        assert peak < 0.75 * measured(folder, None, dtype)[0]


@pytest.mark.parametrize("name", ["gemma3_text", "qwen3_moe", "deepseek_v3", "gpt_oss", "phi"])
def test_no_other_model_takes_more_than_is_said(name, tmp_path):
    """With chunks; a mask of every two positions would be four times all that is said."""
    wide = WIDE | {"sliding_window": 512, "num_key_value_heads": 6}
    if name == "deepseek_v3":
        # Its layers read neither.
        del wide["head_dim"], wide["sliding_window"]
    folder = make_checkpoint(tmp_path, name, change=lambda s: s.update(wide))
    peak, estimate = measured(folder, CHUNK, "float32")
    assert 0.85 * peak < estimate
    if name != "gpt_oss":
        assert estimate < 4 * LENGTH * LENGTH * 4


def made(**more):
    given = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4}
    return SimpleNamespace(**given | {"num_key_value_heads": 2, "head_dim": 16} | more)


def count(config, attention="sdpa", *, fused=False, quantized=False, **more) -> Activations:
    return activations(config, torch.bfloat16, attention, fused=fused, quantized=quantized, **more)


def test_halves_of_a_layer_are_not_held_at_once():
    layer = Activations(10, 1, 4, 40)
    # Whole, the second half; in chunks of 10 the first.
    assert layer.bytes(1, 100, None) == 100 * 44
    assert layer.bytes(1, 100, 10) == 100 * 10 + 10 * 1
    assert layer.bytes(3, 100, 10) == 3 * layer.bytes(1, 100, 10)
    assert layer.bytes(1, 100, 1000) == layer.bytes(1, 100, None)


def test_pairs_and_blocks_count():
    layer = Activations(0, 0, 0, 0, pair=2, chunked_pair=1, block=7)
    assert layer.bytes(1, 100, None) == 20_000
    assert layer.bytes(1, 100, 10) == 10_007


def test_a_kernel_holds_less_than_the_librarys_steps():
    plain, fused = count(made()), count(made(), fused=True)
    assert fused.attention < plain.attention
    assert fused.gated_chunk == 2 * (2 * 256 + 64) < plain.gated_chunk == 2 * (3 * 256 + 64)
    assert fused.attention_chunk == 0 < plain.attention_chunk


def test_what_a_whole_window_says_is_never_of_a_chunk():
    whole = count(made(), quantized=True, whole=True)
    assert whole.attention_chunk == whole.gated_chunk == 0
    assert whole.bytes(1, 100, 10) == whole.bytes(1, 100, None)
    assert whole.bytes(1, 100, None) == count(made(), quantized=True).bytes(1, 100, None)


def test_scores_and_masks_of_every_two_positions():
    assert count(made()).pair == 0
    # Scores of four heads, and the mask.
    assert count(made(), "eager").pair == count(made(), "eager").chunked_pair == 4 * 10 + 2
    sliding = made(sliding_window=512)
    assert count(sliding).pair == count(sliding).chunked_pair == 4
    apart = count(sliding, attends_apart=True)
    assert (apart.pair, apart.chunked_pair) == (4, 0)
    queries, seen = block_of(512)
    assert apart.block >= queries * seen
    # Some models name their layers, and say a width that none has.
    full = made(sliding_window=512, layer_types=["full_attention"])
    assert count(full).pair == 0
    narrow = made(kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8)
    assert count(narrow, narrow_values=True).pair == 8 * 4 + 4
    assert count(narrow, narrow_values=True, attends_apart=True).chunked_pair == 0


def test_a_rounded_cache_has_copies_in_float32():
    config = made(num_key_value_heads=4)
    assert count(config, rounds_cache=True).attention > count(config, fused=True).attention


def test_llama_4_copies_all_tokens_for_each_expert():
    mixture = made(model_type="llama4_text", num_local_experts=16)
    assert count(mixture).gated_chunk == count(made()).gated_chunk + 4 * 2 * 64 * 16


def test_layers_of_unlike_heads_count_as_the_widest():
    """Gemma 4's: transformers raises for a width that is asked of the whole."""
    layers = [made(head_dim=16), made(head_dim=64, num_key_value_heads=1), made(head_dim=32)]
    mixed = SimpleNamespace(is_heterogeneous=True, per_layer_config=layers)
    assert count(mixed) == count(layers[1])
