"""Whole models of MLX, embeddings and heads included, against dense ones of the same weights."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.engine import check_equal, make_engine, score
from support.families.mlx import make_pair, switched
from support.families.mxfp4_experts import make_pair as make_mxfp4_pair
from support.models import edit_config, edit_tensors, make_checkpoint, random_plan

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.base import Schedule
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.summary import summarize


@pytest.mark.parametrize(
    ("name", "bits", "key", "named"),
    [
        ("llama", 4, "quantization", {}),
        ("llama-tied", 3, "quantization", {"embed_tokens": 8}),
        ("qwen3", 5, "quantization_config", {"down_proj": 6, "lm_head": 8}),
        ("qwen2_moe", 4, "quantization", {"gate": 8}),
        ("qwen3_moe", 3, "quantization", {"up_proj": 6}),
        ("mixtral", 4, "quantization", {}),
        ("gpt_oss", 8, "quantization", {"down_proj": 4}),
        ("deepseek_v3", 4, "quantization", {}),
        ("granitemoe", 4, "quantization", {}),
        ("llama4_text", 4, "quantization", {}),
    ],
)
def test_equals_the_dense_one_to_the_bit(name, bits, key, named, tmp_path):
    packed, dense = make_pair(tmp_path, name, bits, 32, key, **named)
    check_equal(packed, dense, "float32", "bfloat16")


@pytest.mark.parametrize(
    "name", ["mixtral", "qwen3_moe", "olmoe", "glm4_moe", "granitemoe", "gpt_oss", "llama4_text"]
)
def test_stacked_experts_are_the_librarys(name, tmp_path):
    """Stored dense, so that nothing else differs; gpt-oss' gate and up are other products then, and
    Llama 4's lie transposed otherwise, which a product of few tokens may sum in another order."""
    folder, plan = make_checkpoint(tmp_path, name), random_plan()
    expected = score(make_engine(folder, dtype="float32"), plan).logprob
    edit_tensors(folder, switched)
    assert any("gate_proj.weight" in name for name in load_file(folder / "model.safetensors"))
    found = score(make_engine(folder, dtype="float32"), plan).logprob
    lies_alike = name not in ("gpt_oss", "llama4_text")
    assert np.abs(found - expected).max() < (1e-12 if lies_alike else 1e-5)


def test_gpt_oss_as_mlx_converts_its_blocks(tmp_path):
    """mlx-community's gpt-oss: the published blocks as words, half of the rows each for gate and up."""
    packed, _ = make_mxfp4_pair(tmp_path)
    plan = random_plan()
    expected = score(make_engine(packed, dtype="float32"), plan).logprob

    def convert(tensors):
        for name in [name for name in tensors if "experts." in name]:
            own, tensor = name, tensors.pop(name)
            if name.endswith("_blocks"):
                tensor = tensor.flatten(2).view(torch.uint32)
            for ending, suffix in (("_blocks", "weight"), ("_scales", "scales"), ("_bias", "bias")):
                own = own.replace(ending, f".{suffix}")
            if "gate_up" in own:
                for start, part in enumerate(("gate", "up")):
                    half = tensor[:, start::2].contiguous()
                    tensors[own.replace("gate_up", part)] = half
            else:
                tensors[own] = tensor

    edit_tensors(packed, convert)
    config = {"group_size": 32, "bits": 4, "mode": "mxfp4", "model.embed_tokens": False}
    edit_config(packed, quantization=config, quantization_config=config)
    found = score(make_engine(packed, dtype="float32"), plan).logprob
    assert np.abs(found - expected).max() < 1e-5


def test_experts_count_in_bits_per_weight_and_in_turns(tmp_path):
    packed, _ = make_pair(tmp_path, "qwen3_moe", gate=8)
    summary = summarize(open_checkpoint(str(packed)))
    assert summary.body_bits == 4 + 2 * 16 / 32
    assert summary.formats["MLX 4-bit g32"].kinds["gate_proj"] == 3
    plan, schedule = random_plan(), Schedule(pass_windows=4, batch_windows=2)
    roomy = score(make_engine(packed, dtype="float32"), plan, schedule)
    engine = make_engine(packed, dtype="float32", max_memory=220 * 2**10)
    assert engine.describe()["experts"] == "2 at a time"
    assert np.array_equal(score(engine, plan, schedule).logprob, roomy.logprob)


EXPERTS = "model.layers.2.mlp.switch_mlp"


def edited(name, change):
    """Changes one tensor of the third layer's experts, or takes it away."""

    def edit(tensors):
        tensor = tensors.pop(f"{EXPERTS}.{name}")
        if change is not None:
            tensors[f"{EXPERTS}.{name}"] = change(tensor)

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            edited("up_proj.scales", None),
            r"up_proj\.weight: quantized, and its tensor scales is mis",
        ),
        (
            edited("up_proj.weight", None),
            r"up_proj\.weight: quantized, and its tensor weight is mis",
        ),
        (
            edited("up_proj.scales", lambda t: t[:5].clone()),
            r"scales has shape \[5, 64, 1\], expected",
        ),
        (edited("up_proj.biases", lambda t: t.float()), r"up_proj\.biases has dtype F32, expected"),
        (
            edited("up_proj.weight", lambda t: t[0].clone()),
            r"weight has shape \[64, 4\], not \[n, n",
        ),
        (
            lambda tensors: [
                edited(f"down_proj.{s}", lambda t: t[:5].clone())(tensors)
                for s in ("weight", "scales", "biases")
            ],
            r"down_proj\.weight has shape \[5, 32, 64\], the model needs \[6, 32, 64\]",
        ),
        (
            lambda tensors: [
                edited(f"up_proj.{s}", None)(tensors) for s in ("weight", "scales", "biases")
            ],
            r"no tensor model\.layers\.2\.mlp\.experts\.up_proj\.weight, which .*experts needs",
        ),
    ],
)
def test_experts_that_do_not_fit(edit, words, tmp_path):
    packed, _ = make_pair(tmp_path, "qwen3_moe")
    edit_tensors(packed, edit)
    with pytest.raises(CheckpointError, match=words):
        make_engine(packed)


def test_two_tensors_for_one_of_an_experts(tmp_path):
    """The second would be the scales of a module that is called as the parameter is."""
    packed, _ = make_pair(tmp_path, "qwen3_moe")
    name = f"{EXPERTS}.up_proj"
    edit_tensors(packed, lambda t: t.update({f"{name}.weight.scales": torch.ones(3)}))
    words = rf"tensors .* are both the scales of {name}\.weight"
    with pytest.raises(CheckpointError, match=words):
        make_engine(packed)


@pytest.mark.parametrize("module", [f"{EXPERTS}.up_proj", "model.layers.0.mlp.up_proj"])
def test_a_module_that_is_named_and_stored_dense(module, tmp_path):
    name = "qwen3_moe" if module.startswith(EXPERTS) else "llama"
    packed, dense = make_pair(tmp_path, name)

    def unpack(tensors):
        for suffix in ("scales", "biases"):
            del tensors[f"{module}.{suffix}"]
        tensors[f"{module}.weight"] = load_file(dense / "model.safetensors")[f"{module}.weight"]

    edit_tensors(packed, unpack)
    make_engine(packed)
    edit_config(packed, quantization={"group_size": 32, "bits": 4, module: {"bits": 4}})
    with pytest.raises(CheckpointError, match=rf"{module} is stored dense"):
        make_engine(packed)


def test_latent_heads_are_refused(tmp_path):
    """DeepSeek's `kv_b_proj` as newer releases of mlx-lm cut it into heads."""
    packed, _ = make_pair(tmp_path, "deepseek_v3")
    name = "model.layers.0.self_attn"

    def cut(tensors):
        for suffix in ("weight", "scales", "biases"):
            whole = tensors.pop(f"{name}.kv_b_proj.{suffix}")
            tensors[f"{name}.unembed_out.{suffix}"] = whole.unflatten(0, (4, -1))

    edit_tensors(packed, cut)
    with pytest.raises(UnsupportedFormat, match=rf"{name}\.unembed_out: .* of 3 dimensions"):
        make_engine(packed)
