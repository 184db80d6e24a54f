"""A model whose keys and values are cached in a format, against transformers with its attention
patched, and static scales as they are measured."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.engine import make_engine, score
from support.kv_cache_formats import of_numpy
from support.models import (
    ARCHITECTURES,
    library_logprobs,
    library_model,
    make_checkpoint,
    random_plan,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from scoremode.engines.base import Schedule
from scoremode.engines.kv_formats import KvCache, cache_of, parse_kv_cache
from scoremode.engines.torch.kv_cache import formats as caches
from scoremode.errors import UnsupportedModel, UsageError

HEAD = 32
Change = Callable[[int, str, np.ndarray], np.ndarray]


def checkpoint(folder: Path, name: str = "llama") -> Path:
    return make_checkpoint(folder, name, change=lambda s: s.update(head_dim=HEAD))


def cache(name: str, **changes: Any) -> KvCache:
    made = parse_kv_cache(name)
    return KvCache(made.k, made.v, **changes)


def patched_logprobs(
    folder: Path, plan: Any, change: Change, monkeypatch: pytest.MonkeyPatch
) -> np.ndarray:
    """transformers' own forward with keys and values changed where its attention gets them."""

    def attend(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        key, value = (
            torch.from_numpy(change(module.layer_idx, side, x.detach().numpy()))
            for side, x in (("k", key), ("v", value))
        )
        return sdpa_attention_forward(module, query, key, value, *args, **kwargs)

    model = library_model(folder, torch.float32)
    with monkeypatch.context() as patch:
        patch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", attend)
        return library_logprobs(model, plan)


_EACH = [
    ("llama", "k=int8,v=int4-g32", "int8-token", "int4-g32"),
    ("llama", "nvfp4", "nvfp4", "nvfp4"),
    ("llama", "k=fp8_e5m2,v=none", "fp8_e5m2", None),
    *((kind, "k=q8_0,v=q4_0", "q8_0", "q4_0") for kind in ("qwen3", "gemma3_text", "mixtral")),
]


@pytest.mark.parametrize(("kind", "name", "k", "v"), _EACH)
def test_equals_a_patched_attention(kind, name, k, v, tmp_path, monkeypatch):
    """GQA and sliding windows among them; a window at a time, whose sums are transformers' own."""
    folder, plan = checkpoint(tmp_path / "model", kind), random_plan()
    names = {"k": k, "v": v}

    def change(_: int, side: str, x: np.ndarray) -> np.ndarray:
        return x if names[side] is None else of_numpy(x, names[side])

    theirs = patched_logprobs(folder, plan, change, monkeypatch)
    engine = make_engine(folder, dtype="float32", kv_cache=cache(name), batch_windows=1)
    ours = score(engine, plan).logprob
    plain = score(make_engine(folder, dtype="float32"), plan).logprob
    assert np.abs(ours - theirs).max() < 1e-5
    assert np.quantile(np.abs(plain - theirs), 0.5) > 1e-3
    assert engine.identity()["kv_cache_dtype"] == str(parse_kv_cache(name))
    described = engine.describe()["kv_cache"]
    assert described["layers"] == 3 and described["scales"] is None


def measured(folder: Path, plan: Any, windows: int, monkeypatch: Any) -> dict[tuple[int, str], Any]:
    """The largest magnitude of each head over the plan's first windows, of the model as it is."""
    found: dict[tuple[int, str], np.ndarray] = {}
    seen = []

    def note(layer: int, side: str, x: np.ndarray) -> np.ndarray:
        if layer == 0 and side == "k":
            seen.append(x)
        if len(seen) <= windows:
            largest = np.abs(x).max((0, 2, 3))
            found[layer, side] = np.maximum(found.get((layer, side), 0), largest)
        return x

    patched_logprobs(folder, plan, note, monkeypatch)
    return found


@pytest.mark.parametrize("scale", ["tensor", "head"])
@pytest.mark.parametrize("most", [50, 1, 10**6])
def test_scales_measured_in_the_run(scale, most, tmp_path, monkeypatch):
    """Of the first windows that are together within a number of tokens, 20 each; at least of one."""
    folder, plan = checkpoint(tmp_path / "model"), random_plan()
    monkeypatch.setattr(caches, "CALIBRATION_TOKENS", most)
    windows = {50: 2, 1: 1, 10**6: 6}[most]
    largest = measured(folder, plan, windows, monkeypatch)
    if scale == "tensor":
        largest = {where: values.max(keepdims=True) for where, values in largest.items()}

    def change(layer: int, side: str, x: np.ndarray) -> np.ndarray:
        each = largest[layer, side].reshape(-1, 1, 1) / np.float32(448)
        return of_numpy(x, "fp8_e4m3", each)

    name = f"fp8_e4m3-{scale}"
    theirs = patched_logprobs(folder, plan, change, monkeypatch)
    engine = make_engine(folder, dtype="float32", kv_cache=cache(name), batch_windows=1)
    assert np.abs(score(engine, plan).logprob - theirs).max() < 1e-5
    said = engine.describe()["kv_cache"]["scales"]
    assert (said["source"], said["windows"]) == ("measured", windows)
    assert said["tokens"] == plan.lengths[:windows].sum()
    wanted = [(largest[i, "k"] / np.float32(448)).tolist() for i in range(3)]
    assert np.allclose(said["k"], wanted, rtol=1e-5)


def test_scales_do_not_depend_on_passes_and_batches(tmp_path):
    folder, plan = checkpoint(tmp_path / "model"), random_plan()
    found = []
    for schedule in (Schedule(2, 1), Schedule(6, 3)):
        engine = make_engine(folder, kv_cache=cache("int8-head"))
        score(engine, plan, schedule)
        found.append(engine.describe()["kv_cache"])
    assert found[0] == found[1]
    # A run that goes on from its second pass measures the same.
    engine = make_engine(folder, kv_cache=cache("int8-head"))
    list(engine.score(plan, Schedule(2, 1), first_pass=1))
    assert engine.describe()["kv_cache"] == found[0]


def test_windows_in_chunks_have_the_same_cache(tmp_path):
    folder, plan = checkpoint(tmp_path / "model"), random_plan()
    name = cache("k=int8-head,v=q4_0")
    whole, cut = (make_engine(folder, dtype="float32", kv_cache=name) for _ in range(2))
    one = score(whole, plan, Schedule(6, 1)).logprob
    other = score(cut, plan, Schedule(6, 1, chunk_tokens=8)).logprob
    # A key at the border of two codes may fall to either side of it.
    assert np.quantile(np.abs(one - other), 0.5) < 1e-5


def test_scales_of_a_run_that_a_rule_may_end_are_of_all_its_windows(tmp_path):
    """Not of the windows of each look, whose scores would be of other scales than the ones before."""
    folder, plan = checkpoint(tmp_path / "model"), random_plan()
    whole = make_engine(folder, kv_cache=cache("int8-tensor"))
    wanted = score(whole, plan).logprob
    looks = make_engine(folder, kv_cache=cache("int8-tensor"))
    part = plan.first_windows(2)
    assert np.array_equal(score(looks, part).logprob, wanted[: part.offsets[-1]])
    assert looks.describe()["kv_cache"] == whole.describe()["kv_cache"]


def test_each_text_of_an_engine_has_its_own_scales(tmp_path):
    folder, one, other = checkpoint(tmp_path / "model"), random_plan(), random_plan(windows=3)
    other.tokens[:] = other.tokens[::-1].copy()
    alone = make_engine(folder, kv_cache=cache("int8-tensor"))
    wanted = score(alone, other).logprob
    both = make_engine(folder, kv_cache=cache("int8-tensor"))
    score(both, one)
    first = both.describe()["kv_cache"]["scales"]
    assert np.array_equal(score(both, other).logprob, wanted)
    assert both.describe()["kv_cache"] == alone.describe()["kv_cache"]
    assert both.describe()["kv_cache"]["scales"]["k"] != first["k"]


def test_a_records_scales_make_the_run_again(tmp_path):
    folder, plan = checkpoint(tmp_path / "model"), random_plan()
    engine = make_engine(folder, kv_cache=cache("k=nvfp4-tensor,v=int8-head-had"))
    first = score(engine, plan).logprob
    record = engine.describe()
    assert np.ndim(record["kv_cache"]["scales"]["v"]) == 2
    again = make_engine(folder, kv_cache=cache_of(record))
    assert np.array_equal(score(again, random_plan()).logprob, first)
    assert again.identity() == engine.identity()
    assert again.describe()["kv_cache"]["scales"]["source"] == "a record's"


def scales_file(path: Path, scales: list[list[float]], sides: str = "kv") -> str:
    tensors = {
        f"model.layers.{i}.self_attn.{side}_scale": torch.tensor(values)
        for i, values in enumerate(scales)
        for side in sides
    }
    save_file(tensors, path)
    return str(path)


def test_scales_of_a_file(tmp_path, monkeypatch):
    folder, plan = checkpoint(tmp_path / "model"), random_plan()
    file = scales_file(tmp_path / "scales.safetensors", [[0.1, 0.2], [0.3, 0.1], [0.2, 0.5]])
    each = np.array([[0.1, 0.2], [0.3, 0.1], [0.2, 0.5]], np.float32)

    def change(layer: int, side: str, x: np.ndarray) -> np.ndarray:
        return of_numpy(x, "int8", each[layer].reshape(-1, 1, 1)) if side == "k" else x

    theirs = patched_logprobs(folder, plan, change, monkeypatch)
    asked = cache("k=int8-head,v=none", scales=file)
    engine = make_engine(folder, dtype="float32", kv_cache=asked, batch_windows=1)
    assert np.abs(score(engine, plan).logprob - theirs).max() < 1e-5
    identity = engine.identity()
    assert identity["kv_cache_dtype"] == "k=int8-head,v=none" and identity["kv_scales_sha256"]
    assert engine.describe()["kv_cache"]["scales"]["source"] == file
    with pytest.raises(UsageError, match="has 2 scales, and -tensor wants one"):
        make_engine(folder, kv_cache=cache("int8-tensor", scales=file))
    with pytest.raises(UsageError, match="--kv-cache q4_0 has no scales to be given"):
        make_engine(folder, kv_cache=cache("q4_0", scales=file))
    three = scales_file(tmp_path / "three.safetensors", [[0.1] * 3] * 3)
    with pytest.raises(UsageError, match="layer 0 has 2 heads in its cache, and 3 scales for k"):
        score(make_engine(folder, kv_cache=cache("int8-head", scales=three)), plan)


_HYBRIDS = {
    "lfm2": {
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": HEAD, "layer": "conv",
    },
    "qwen3_next": {
        "num_experts": 0, "linear_num_value_heads": 2, "linear_num_key_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "head_dim": HEAD,
        "layer": "linear_attention",
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", _HYBRIDS)
def test_layers_without_keys_are_left(kind, tmp_path, monkeypatch):
    """Hybrids of attention with short convolutions or a linear one: one layer in three has a cache."""
    settings = dict(_HYBRIDS[kind])
    other = settings.pop("layer")
    settings["layer_types"] = [other, "full_attention", other]
    monkeypatch.setitem(ARCHITECTURES, kind, settings)
    folder, plan = make_checkpoint(tmp_path / "model", kind), random_plan()
    theirs = patched_logprobs(folder, plan, lambda _, __, x: of_numpy(x, "q4_0"), monkeypatch)
    engine = make_engine(folder, dtype="float32", kv_cache=cache("q4_0"), batch_windows=1)
    assert np.abs(score(engine, plan).logprob - theirs).max() < 1e-5
    plain = score(make_engine(folder, dtype="float32"), plan).logprob
    assert np.quantile(np.abs(plain - theirs), 0.5) > 1e-3
    assert engine.describe()["kv_cache"]["layers"] == 1


def test_models_whose_cache_is_of_something_else_are_refused(tmp_path):
    with pytest.raises(UnsupportedModel, match=r"compressed state.*--kv-cache none"):
        make_engine(make_checkpoint(tmp_path / "mla", "deepseek_v3"), kv_cache=cache("int8"))
    with pytest.raises(UnsupportedModel, match="past_key_values"):
        make_engine(make_checkpoint(tmp_path / "neox", "gpt_neox"), kv_cache=cache("int8"))
    with pytest.raises(UnsupportedModel, match=r"layer 0: heads of 8 values.*blocks of 32"):
        make_engine(make_checkpoint(tmp_path / "llama", "llama"), kv_cache=cache("q8_0"))
