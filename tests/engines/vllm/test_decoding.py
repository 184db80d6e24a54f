"""What decode steps are started with, and how the flag is read. Needs no vLLM."""

import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from support import specs

from scoremode.cli.engines import torch_options, vllm_options
from scoremode.cli.measure import Ppl
from scoremode.engines.vllm.decoding import DecodeSettings, DecodingEngine
from scoremode.engines.vllm.engine import VllmEngine
from scoremode.engines.vllm.prompts import Kind
from scoremode.errors import UsageError
from scoremode.text.plan import make_plan
from scoremode.text.protocol import Protocol


@pytest.fixture
def settings(demo):
    config = json.loads((demo / "model" / "config.json").read_text())

    def make(longest: int, **given: Any) -> DecodeSettings:
        return DecodeSettings(demo / "model", config, longest, "model", given)

    return make


@pytest.mark.parametrize(
    ("device", "longest", "together"),
    [
        ("cpu", 255, 32),
        ("cpu", 4095, 16),
        ("cuda", 255, 256),
        ("cuda", 2047, 64),
        ("cuda", 2**20, 1),
    ],
)
def test_as_many_windows_run_together_as_a_fixed_cache_holds(device, longest, together, settings):
    asked = settings(longest).arguments(device, room=1)
    assert asked["max_num_seqs"] == together and asked["max_model_len"] == longest + 1
    # Keys and values of 2 heads of 32 in 3 layers, bfloat16; each window in blocks.
    tokens = together * (longest + 1 + 64)
    assert asked["kv_cache_memory_bytes"] == 2 * 2 * 32 * 3 * 2 * tokens
    # A prompt fits into a step where a release does not cut it.
    assert asked["max_num_batched_tokens"] >= max(longest + 1, together)


def test_graphs_are_vllms_own_choice_on_a_gpu(settings):
    assert "enforce_eager" not in settings(255).arguments("cuda", room=1)
    assert settings(255).arguments("cpu", room=1)["enforce_eager"]
    given = settings(255, enforce_eager=True, enable_prefix_caching=True, max_num_seqs=7)
    asked = given.arguments("cuda", room=1)
    assert asked["enforce_eager"] and asked["enable_prefix_caching"] and asked["max_num_seqs"] == 7
    assert not settings(255).arguments("cuda", room=1)["enable_prefix_caching"]
    shared = settings(255, gpu_memory_utilization=0.5).arguments("cuda", room=1)
    assert "kv_cache_memory_bytes" not in shared


def test_a_pass_is_whole_groups_of_windows():
    plan = make_plan(
        np.arange(2_000, dtype=np.int32), Protocol("test", context_length=20).resolve(None)
    )
    engine = VllmEngine.__new__(VllmEngine)
    engine._llm = cast(Any, SimpleNamespace(together=8))
    engine._facts = {"max_num_batched_tokens": 4_096, "device": {"type": "cpu"}}
    schedule = engine.schedule(plan)
    # 8,192 tokens are 53 groups of 8 windows of 19.
    assert (schedule.pass_windows, schedule.batch_windows) == (53 * 8, 8)


def test_rows_that_come_by_steps_are_each_windows():
    """Of three windows that end at other times, the second without a target."""
    kind = Kind()
    index = np.array([2, 0, 0, 2, 0, 2, 2], np.int32)
    rows = np.repeat(np.arange(7, dtype=np.float32)[:, None], len(kind.columns), 1)
    engine = DecodingEngine.__new__(DecodingEngine)
    engine.prefilled = 1
    engine.ask = lambda *_: [None, (index.tobytes(), rows.tobytes(), 2)]  # type: ignore[assignment]
    first, second, third = engine._taken(3, kind)
    assert first[:, 0].tolist() == [1, 2, 4] and third[:, 0].tolist() == [0, 3, 5, 6]
    assert second.shape == (0, len(kind.columns)) and engine.prefilled == 3


def test_the_flag_is_vllms():
    given = specs.given(Ppl, "model", "--decode")
    assert vllm_options(given).decode and not vllm_options(specs.given(Ppl, "model")).decode
    with pytest.raises(UsageError, match=r"--decode: replays windows in vLLM's decode steps"):
        torch_options(given)
