"""Keys and values as a quantized cache holds them, against compressed-tensors' own cache."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.modeling.kvcache import initialize_hooked_kv_cache
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, QuantizationStatus
from support.engine import make_engine, score
from support.models import (
    CACHE_KEYWORD,
    edit_config,
    edit_tensors,
    library_logprobs,
    library_model,
    make_checkpoint,
    random_plan,
)

from scoremode.engines.torch.kv_cache.layer_caches import (
    HalfCache,
    build_half_caches,
    cache_keywords,
    check_used,
)
from scoremode.errors import CheckpointError, UnsupportedFormat, UnsupportedModel, UsageError
from scoremode.text.plan import make_plan
from scoremode.text.protocol import preset

STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
DYNAMIC = STATIC | {"dynamic": True}
HEADS = 2


def checkpoint(
    folder: Path, scheme: dict[str, Any], name: str = "llama", shape: tuple[int, ...] = (1,)
) -> Path:
    """A dense model that declares a cache's scheme and holds its scales, too small for some keys."""
    make_checkpoint(folder, name)
    edit_config(
        folder,
        quantization_config={
            "quant_method": "compressed-tensors",
            "format": "dense",
            "config_groups": {},
            "kv_cache_scheme": scheme,
        },
    )

    def add(tensors: dict[str, torch.Tensor]) -> None:
        generator = torch.Generator().manual_seed(0)
        for i in range(3):
            for which in "kv":
                scale = (torch.rand(shape, generator=generator) + 0.5) / 100
                tensors[f"model.layers.{i}.self_attn.{which}_scale"] = scale

    if not scheme["dynamic"]:
        edit_tensors(folder, add)
    return folder


def by_its_own_name(module, args, kwargs):
    """Hands the cache on by the attention's own keyword: compressed-tensors' hook knows those before
    transformers 5.24, and a cache of another name is not used there."""
    for name in ("past_key_values", "past_key_value"):
        if name != CACHE_KEYWORD and name in kwargs:
            kwargs[CACHE_KEYWORD] = kwargs.pop(name)
    assert kwargs[CACHE_KEYWORD] is module.kv_cache
    return args, kwargs


def library_logprobs_with_cache(folder: Path, scheme: dict[str, Any], plan) -> np.ndarray:
    model = library_model(folder, torch.float32)
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    args = QuantizationArgs(**scheme)
    for i, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        initialize_hooked_kv_cache(model, attention)
        attention.register_forward_pre_hook(by_its_own_name, with_kwargs=True)
        attention.quantization_scheme = QuantizationScheme(
            targets=["attention"], input_activations=args
        )
        attention.quantization_status = QuantizationStatus.FROZEN
        for which in "kv":
            scale = tensors.get(f"model.layers.{i}.self_attn.{which}_scale")
            if scale is not None:
                attention.register_parameter(
                    f"{which}_scale", torch.nn.Parameter(scale, requires_grad=False)
                )
    return library_logprobs(model, plan)


@pytest.mark.parametrize(
    ("scheme", "shape"),
    [(STATIC, (1,)), (STATIC | {"strategy": "attn_head"}, (HEADS, 1, 1)), (DYNAMIC, (1,))],
    ids=["static", "a head", "dynamic"],
)
def test_equals_the_library(scheme, shape, tmp_path):
    folder = checkpoint(tmp_path / "model", scheme, shape=shape)
    plan = random_plan()
    ours = make_engine(folder, dtype="float32", kv_cache="as-declared")
    theirs = library_logprobs_with_cache(folder, scheme, plan)
    plain = make_engine(folder, dtype="float32")
    scored = score(ours, plan).logprob
    # A key at the border of two codes may fall to either side of it.
    assert np.quantile(np.abs(scored - theirs), 0.5) < 1e-5
    assert np.quantile(np.abs(score(plain, plan).logprob - theirs), 0.5) > 1e-3
    assert ours.identity()["kv_cache_dtype"] and plain.identity()["kv_cache_dtype"] is None


class Layer(torch.nn.Module):
    """One of which the library hands a cache on to an attention; `Attention.forward` names it."""

    def __init__(self, attention: torch.nn.Module):
        super().__init__()
        self.self_attn = attention

    def forward(self, hidden_states, **kwargs):
        return self.self_attn(hidden_states, **kwargs)


class Before(torch.nn.Module):
    def forward(self, hidden_states, past_key_values=None, **kwargs): ...


class Since(torch.nn.Module):
    def forward(self, hidden_states, cache=None, **kwargs): ...


def test_each_layer_is_handed_its_cache_by_its_own_keyword():
    """Those of transformers 5.24, those before it, and a model's own code of either time."""
    layers = [Layer(Before()), Layer(Since())]
    skeleton: Any = SimpleNamespace(
        model=torch.nn.Module(), layers=layers, config=SimpleNamespace(layer_types=None)
    )
    assert cache_keywords(skeleton, "--kv-cache none") == ["past_key_values", "cache"]
    caches = build_half_caches(skeleton)
    assert [list(cache.arguments()) for cache in caches] == [["past_key_values"], ["cache"]]
    layers.append(Layer(torch.nn.Linear(1, 1)))
    with pytest.raises(UnsupportedModel, match="take no cache or past_key_values: --kv-cache none"):
        cache_keywords(skeleton, "--kv-cache none")


def test_a_published_cases_cache_is_the_declared_one(data, tmp_path):
    """float8 weights and keys and values, against transformers with a cache that rounds."""
    make = data / "cases" / "tf-cache-keyword" / "make.py"
    if not make.is_file():
        pytest.skip("needs SCOREMODE_DATA's cases")
    subprocess.run([sys.executable, make, tmp_path], check=True, capture_output=True)
    engine = make_engine(
        tmp_path / "model", dtype="float32", arithmetic="weights", kv_cache="as-declared"
    )
    words = (tmp_path / "t.txt").read_text().split()
    ids = np.array([int(word[1:]) for word in words])
    found = score(
        engine, make_plan(ids, preset("disjoint").override(context_length=48).resolve(48))
    )
    assert np.abs(found.logprob - np.load(tmp_path / "expected.npy")).max() < 1e-5


def test_a_window_does_not_depend_on_its_neighbours(tmp_path):
    from scoremode.engines.base import Schedule

    folder = checkpoint(tmp_path / "model", DYNAMIC)
    plan = random_plan(windows=6, tail=0)
    engine = make_engine(folder, dtype="float32", kv_cache="as-declared")
    alone = score(engine, plan, Schedule(pass_windows=6, batch_windows=1))
    together = score(engine, plan, Schedule(pass_windows=6, batch_windows=6))
    assert np.abs(alone.logprob - together.logprob).max() < 1e-5


def test_old_names_of_scales(tmp_path):
    folder = checkpoint(tmp_path / "model", STATIC)
    plan = random_plan()
    new = score(make_engine(folder, kv_cache="as-declared"), plan).logprob

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for key in [k for k in tensors if k.endswith("_scale")]:
            parent, _, last = key.rpartition(".")
            tensors[f"{parent}.{last[0]}_proj.output_scale"] = tensors.pop(key)

    edit_tensors(folder, rename)
    assert np.array_equal(new, score(make_engine(folder, kv_cache="as-declared"), plan).logprob)


def test_its_scales_are_used_where_it_is(tmp_path):
    folder = checkpoint(tmp_path / "model", STATIC)
    assert make_engine(folder, kv_cache="as-declared").describe()["unused_tensors"] == []
    assert len(make_engine(folder).describe()["unused_tensors"]) == 6


def test_nothing_is_applied_unless_asked(tmp_path):
    folder = checkpoint(tmp_path / "model", STATIC)
    dense = make_checkpoint(tmp_path / "dense", "llama")
    plan = random_plan()
    assert np.array_equal(
        score(make_engine(folder), plan).logprob, score(make_engine(dense), plan).logprob
    )
    with pytest.raises(UsageError, match="declares no KV cache scheme"):
        make_engine(dense, kv_cache="as-declared")


def test_scales_that_are_missing_or_no_scales(tmp_path):
    folder = checkpoint(tmp_path / "model", STATIC)
    key = "model.layers.1.self_attn.v_scale"
    edit_tensors(folder, lambda t: t.update({key: torch.zeros(1)}))
    with pytest.raises(CheckpointError, match=r"1\.self_attn\.v_scale is not a positive scale"):
        make_engine(folder, kv_cache="as-declared")
    edit_tensors(folder, lambda t: t.update({key: torch.ones(2)}))
    with pytest.raises(CheckpointError, match=r"v_scale has shape \[2\]"):
        make_engine(folder, kv_cache="as-declared")
    edit_tensors(folder, lambda t: t.pop(key))
    with pytest.raises(CheckpointError, match=r"layers\.1 has 0 tensors for its cache's v_scale"):
        make_engine(folder, kv_cache="as-declared")


@pytest.mark.parametrize(
    "change",
    [
        {"type": "int"},
        {"num_bits": 4},
        {"strategy": "token", "dynamic": True},
        {"symmetric": False},
    ],
)
def test_other_schemes_are_refused(change, tmp_path):
    folder = checkpoint(tmp_path / "model", STATIC | change)
    with pytest.raises(UnsupportedFormat, match="KV cache scheme"):
        make_engine(folder, kv_cache="as-declared")


def test_a_layer_that_uses_no_cache_is_refused():
    cache = HalfCache("cache")
    with pytest.raises(
        UnsupportedModel, match="layer 0 does not use its KV cache: --arithmetic weights"
    ):
        check_used([cache], "Model")
    cache.update(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1))
    check_used([cache], "Model")
