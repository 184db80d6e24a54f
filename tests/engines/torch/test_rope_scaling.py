"""Scaled positions against transformers' own forward of windows below and above the length before
scaling: each window as if it were the only one."""

import json

import numpy as np
import pytest
import torch
from support.engine import make_engine, score
from support.models import (
    edit_config,
    library_logprobs,
    library_model,
    make_checkpoint,
    random_plan,
)

from scoremode.engines.base import Schedule

BEFORE = 16
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": BEFORE}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": BEFORE,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.5],
    "long_factor": [1.0, 2.0, 5.0, 9.0],
    "original_max_position_embeddings": BEFORE,
}
# The model, its scaling, and its number of positions: the length before scaling, for dynamic NTK.
KINDS = {
    "none": ("llama", {"rope_type": "default"}, 64),
    "linear": ("llama", {"rope_type": "linear", "factor": 4.0}, 64),
    "dynamic": ("llama", {"rope_type": "dynamic", "factor": 4.0}, BEFORE),
    "yarn": ("llama", YARN, 64),
    "yarn of Qwen 3": ("qwen3", YARN, 64),
    "yarn of DeepSeek": ("deepseek_v3", YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}, 64),
    "yarn of gpt-oss": ("gpt_oss", YARN | {"truncate": False, "beta_fast": 32.0}, 64),
    "llama3": ("llama", LLAMA3, 64),
    "longrope": ("phi3", LONGROPE, 64),
}


def make(folder, kind: str):
    name, scaling, positions = KINDS[kind]

    def change(settings):
        settings["max_position_embeddings"] = positions
        settings["rope_parameters"] = {"rope_theta": 10_000.0} | scaling
        if kind == "longrope":
            settings["original_max_position_embeddings"] = BEFORE
        settings["sliding_window"] = 128

    return make_checkpoint(folder, name, change=change)


def alone(folder, plan) -> np.ndarray:
    """The library's own, window by window."""
    attention = "eager" if "gpt_oss" in (folder / "config.json").read_text() else "sdpa"
    return library_logprobs(library_model(folder, torch.float32, attention), plan)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [None, 8], ids=["whole", "chunks"])
def test_windows_of_every_length_are_the_librarys(kind, chunk, tmp_path):
    folder = make(tmp_path, kind)
    engine = make_engine(folder, dtype="float32")
    results = {}
    for length in (12, BEFORE, BEFORE + 1, 40):
        plan = random_plan(length, windows=2, tail=0)
        results[length] = score(engine, plan, Schedule(2, 1, chunk)).logprob
        assert np.abs(results[length] - alone(folder, plan)).max() < 1e-5
    # Long and short ones of one text, in one pass and in either order of passes.
    plan = random_plan(40, windows=2, tail=12)
    together = score(engine, plan, Schedule(3, 1, chunk)).logprob
    apart = score(engine, plan, Schedule(1, 1, chunk)).logprob
    assert np.abs(together - apart).max() < 1e-5
    assert plan.lengths.tolist() == [40, 40, 12]
    assert np.abs(together - alone(folder, plan)).max() < 1e-5


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"none"}))
def test_scaling_is_no_idle_field(kind, tmp_path):
    """A window beyond the length before scaling would score otherwise without it."""
    folder, plan = make(tmp_path, kind), random_plan(40, windows=2, tail=0)
    scaled = score(make_engine(folder, dtype="float32"), plan).logprob
    edit_config(folder, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    plain = score(make_engine(folder, dtype="float32"), plan).logprob
    assert np.abs(scaled - plain).max() > 1e-2


def test_longrope_and_dynamic_scaling_depend_on_the_windows_length(tmp_path):
    """The same first tokens score otherwise in a longer window, as the library has it; of others they
    score the same."""
    for kind in KINDS:
        folder = make(tmp_path / kind.replace(" ", "-"), kind)
        engine = make_engine(folder, dtype="float32")
        first = score(engine, random_plan(12, windows=1, tail=0)).logprob
        longer = score(engine, random_plan(40, windows=1, tail=0)).logprob[: len(first)]
        assert (np.abs(first - longer).max() > 1e-3) == (kind in ("longrope", "dynamic")), kind


def published_scaling(data) -> dict[str, dict]:
    """The rotary settings of published configs whose scaling says where it begins, by file."""
    found = {}
    for file in sorted((data / "configs" / "published").glob("*.json")):
        config = json.loads(file.read_text())
        text = config.get("text_config") or config
        scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
        kind = scaling.get("rope_type") or scaling.get("type")
        if kind in ("yarn", "llama3", "longrope") and isinstance(
            scaling.get("factor"), (int, float)
        ):
            before = scaling.get("original_max_position_embeddings")
            if isinstance(before, int) and before <= 8192:
                theta = text.get("rope_theta") or 10_000.0
                found[file.stem] = {"rope_theta": theta} | scaling | {"rope_type": kind}
    return found


def test_scaling_as_published_beyond_its_first_length(data, tmp_path):
    """Of each published setting a tiny model, and a window just longer than those before scaling."""
    different = {json.dumps(s, sort_keys=True): s for s in published_scaling(data).values()}
    assert {s["rope_type"] for s in different.values()} >= {"yarn", "llama3"}
    for number, scaling in enumerate(different.values()):

        def change(settings, scaling=scaling):
            settings |= {"num_hidden_layers": 1, "max_position_embeddings": 131_072}
            settings |= {"rope_parameters": scaling, "num_attention_heads": 1, "hidden_size": 64}
            settings |= {"num_key_value_heads": 1, "head_dim": 64}

        folder = make_checkpoint(tmp_path / str(number), "llama", change=change)
        length = scaling["original_max_position_embeddings"] + 64
        plan = random_plan(length, windows=1, tail=0)
        found = score(make_engine(folder, dtype="float32"), plan).logprob
        assert np.abs(found - alone(folder, plan)).max() < 1e-5
