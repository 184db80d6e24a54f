"""Whole models in llama.cpp's arithmetic, against transformers' with inputs rounded in numpy."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support import models
from support.engine import make_engine, score
from support.gguf.packed_models import make_pair
from support.models import CACHE_KEYWORD, library_model, make_checkpoint, random_plan
from torch import nn
from transformers import DynamicCache

from scoremode.errors import UsageError
from scoremode.schemes.activations.ggml import gelu

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


class HalfCache(DynamicCache):
    """Keys and values in float16."""

    def update(self, key_states, value_states, *args, **kwargs):
        return super().update(
            key_states.half().float(), value_states.half().float(), *args, **kwargs
        )


def rounded(x: np.ndarray, kind: str) -> np.ndarray:
    """float64: what is left of `x` float32 [..., I] in blocks of that kind."""
    if kind == "F16":
        return x.astype(np.float16).astype(np.float64)
    blocks = x.reshape(-1, 256 if kind == "Q8_K" else 32).astype(np.float32)
    first = np.abs(blocks).argmax(1)[:, None]
    largest = np.take_along_axis(blocks, first, 1)
    if kind == "Q8_K":
        inverse = np.float32(-127) / largest
        scale = np.float32(1) / inverse
    else:
        inverse = np.float32(127) / np.abs(largest)
        scale = (np.abs(largest) / np.float32(127)).astype(np.float16)
    return (np.rint(blocks * inverse) * scale.astype(np.float64)).reshape(x.shape)


def kinds_of(packed: Path) -> dict[str, str]:
    """Each linear's blocks."""
    from safetensors import safe_open

    with safe_open(packed / "model.safetensors", "pt") as file:
        names = file.keys()
        return dict(name.rsplit(".", 1) for name in names)


def library_logprobs(dense: Path, meets: dict[str, str], plan) -> np.ndarray:
    """The library's own forward of the dense model; `meets`: how each linear's input is rounded."""
    model = library_model(dense, torch.float32)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and (kind := meets.get(name)):

            def forward(x, module=module, kind=kind):
                y = rounded(x.numpy(), kind) @ module.weight.double().numpy().T
                return torch.from_numpy(y).float()

            module.__dict__["forward"] = forward
    forward = model.forward

    def cached(**arguments):
        return forward(**arguments | {"use_cache": True, CACHE_KEYWORD: HalfCache()})

    model.forward = cached
    return models.library_logprobs(model, plan)


@pytest.mark.parametrize(
    ("name", "kinds", "width", "meets"),
    [
        ("llama", ["Q4_K", "Q6_K", "Q2_K", "IQ4_XS"], 256, "Q8_K"),
        ("llama-tied", ["Q5_K", "IQ3_XXS", "Q3_K"], 256, "Q8_K"),
        ("qwen3", ["Q4_0", "Q8_0", "Q5_0", "IQ4_NL"], 64, "Q8_0"),
    ],
)
def test_equals_the_librarys_with_rounded_inputs(name, kinds, width, meets, tmp_path):
    packed, dense = make_pair(tmp_path, name, kinds, width)
    stored, plan = kinds_of(packed), random_plan()
    own = {module: meets for module in stored if module.endswith(LINEARS)}
    own.setdefault("lm_head", meets)
    expected = library_logprobs(dense, own, plan)
    engine = make_engine(packed, arithmetic="llama.cpp")
    found = score(engine, plan).logprob
    weights = score(make_engine(packed, dtype="float32"), plan).logprob
    distance, effect = (np.abs(x - expected).mean() for x in (found, weights))
    assert distance < effect / 20, (distance, effect)
    identity = engine.identity()
    assert identity["arithmetic"] == "llama.cpp" and identity["kv_cache_dtype"] == "float16"
    assert identity["dtype"] == "float32"
    assert {p["inputs"] for p in identity["products"]} == {meets}
    assert sum(p["linears"] for p in identity["products"]) == len(own)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "bfloat16"}, "--dtype bfloat16: --arithmetic llama.cpp computes in float32"),
        ({"kv_cache": "as-declared"}, "--kv-cache as-declared: --arithmetic llama.cpp has"),
        ({"arithmetic": "weights+activations"}, "llama.cpp's own: --arithmetic llama.cpp"),
    ],
)
def test_what_it_is_not(options, said, tmp_path):
    packed, _ = make_pair(tmp_path, "llama", ["Q8_0"], 64)
    with pytest.raises(UsageError, match=said):
        make_engine(packed, **{"arithmetic": "llama.cpp"} | options)


def test_only_of_gguf_files(tmp_path):
    with pytest.raises(UsageError, match="is for GGUF files"):
        make_engine(make_checkpoint(tmp_path / "m", "llama"), arithmetic="llama.cpp")


def test_experts_and_no_router(tmp_path):
    packed, dense = make_pair(tmp_path, "qwen3_moe", ["Q4_1", "Q8_0", "Q5_1"], 64)
    plan = random_plan()
    engine = make_engine(packed, arithmetic="llama.cpp")
    found, exact = score(engine, plan).logprob, score(make_engine(dense), plan).logprob
    assert 1e-5 < np.abs(found - exact).mean() < 0.1
    products = engine.identity()["products"]
    assert {p["inputs"] for p in products} == {"Q8_0", "Q8_1"}
    assert any("minimums" in p["product"] for p in products)


def test_a_gated_layers_gelu_is_rounded_as_llama_cpp_rounds_it(tmp_path):
    packed, _ = make_pair(tmp_path, "gemma3_text", ["Q8_0"], 64)
    x = torch.linspace(-12, 12, 1000)
    found = []
    for arithmetic in ("llama.cpp", "weights"):
        layers = make_engine(packed, arithmetic=arithmetic).parts.skeleton.layers
        found.append([layer.get_submodule("mlp.act_fn")(x) for layer in layers])
    assert all(torch.equal(y, gelu(x)) for y in found[0])
    assert not any(torch.equal(y, gelu(x)) for y in found[1])
