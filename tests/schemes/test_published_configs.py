"""Every config in the data folder, judged: what it parses to, or by which words it is refused."""

import json
from pathlib import Path

import pytest

from scoremode.checkpoint.files import Checkpoint
from scoremode.schemes.compressed_tensors import FORMATS
from scoremode.schemes.compressed_tensors_config import parse_quantization
from scoremode.schemes.fp8 import parse_fp8
from scoremode.schemes.modelopt_config import parse_modelopt
from scoremode.schemes.mxfp4 import parse_mxfp4
from scoremode.schemes.resolve import READ, method_of

# compressed-tensors: format, weights, inputs, whether a quantized cache is declared.
PARSES = {
    "DERIVED.nvfp4-pack-quantized.NVFP4A16.quantization_config.json": (
        "nvfp4-pack-quantized", "float4 group 16", None, False
    ),
    "float-quantized.FP8_BLOCK-kvfp8.Laguna-S.quantization_config.json": (
        "float-quantized", "float8 block 128x128", "dynamic float8 group 128", True
    ),
    "float-quantized.FP8_DYNAMIC.Command-A-Plus.config.json": (
        "float-quantized", "float8 channel", "dynamic float8 token", False
    ),
    "int-quantized.W8A8-kvfp8.EXAONE-4.0-1.2B.config.json": (
        "int-quantized", "int8 channel", "dynamic int8 token", True
    ),
    "mxfp4-pack-quantized.MXFP4-W4A4.ct-README.quantization_config.json": (
        "mxfp4-pack-quantized", "float4 group 32", "dynamic float4 group 32", False
    ),
    "mxfp4-pack-quantized.MXFP4A16.Kimi-K3.config.json": (
        "mxfp4-pack-quantized", "float4 group 32", None, False
    ),
    "naive-quantized.W8A8-static.ct-example.json": (
        "naive-quantized", "int8 tensor", "static int8 tensor", False
    ),
    "nvfp4-pack-quantized.NVFP4-W4A4-kvfp8.Laguna-M.1.quantization_config.json": (
        "nvfp4-pack-quantized", "float4 group 16", "local float4 group 16", True
    ),
    # Its group's name is NVFP4A16.
    "nvfp4-pack-quantized.W4A4-in-group-named-NVFP4A16.Mistral-Small-4.quantization_config.json": (
        "nvfp4-pack-quantized", "float4 group 16", "local float4 group 16", False
    ),
    "pack-quantized.W4A16-g32.Kimi-K2.5.config.json": (
        "pack-quantized", "int4 group 32", None, False
    ),
    "pack-quantized.int4-asym-tensor.ct-example.json": (
        "pack-quantized", "int4 tensor asymmetric", None, False
    ),
}  # fmt: skip
# ModelOpt's: quant_algo, layers that have their own, whether a quantized cache is declared.
MODELOPT = {
    "nvidia--Qwen3.6-27B-NVFP4_config.json": ("MIXED_PRECISION", 401, True),
    "nvidia--Llama-3.1-70B-Instruct-FP8_hf_quant_config.json": ("FP8", 0, True),
    "nvidia--Qwen3-235B-A22B-NVFP4_hf_quant_config.json": ("NVFP4", 0, True),
    "nvidia--Qwen3.6-27B-NVFP4_hf_quant_config.json": ("MIXED_PRECISION", 401, True),
}
# In blocks of float8, as transformers has them.
FLOAT8 = {"Qwen--Qwen3-32B-FP8_config.json"}
# Experts in MXFP4.
GPT_OSS = {"openai--gpt-oss-20b_config.json"}
# Say nothing themselves; ModelOpt's are quantized by the file beside them.
DENSE = {
    "nvidia--Llama-3.1-70B-Instruct-FP8_config.json",
    "nvidia--Qwen3-235B-A22B-NVFP4_config.json",
    "Qwen--Qwen3-0.6B_config.json",
    "meta-llama--Meta-Llama-3.1-8B_config.json",
}
NO_CONFIGS = {"int-quantized.W8A8-kvfp8.EXAONE-4.0-1.2B.recipe.yaml"}


@pytest.fixture
def published(data):
    """A checkpoint without tensors, whose config is the file's; some hold only its quantization."""

    def read(name: str) -> Checkpoint:
        (file,) = (data / "configs").rglob(name)
        config = json.loads(file.read_text())
        if "hf_quant_config" in name:
            return Checkpoint(Path(), name, {}, {}, modelopt=config)
        if "quantization_config" in name or "config_groups" in config:
            config = {"quantization_config": config}
        return Checkpoint(Path(), name, config, {})

    return read


def test_every_file_is_judged(data):
    files = {
        file.name
        for file in (data / "configs").rglob("*")
        # Those of whole models are judged in tests/published.
        if file.is_file() and file.parent.name != "published"
    }
    assert files == set(PARSES) | set(MODELOPT) | FLOAT8 | GPT_OSS | DENSE | NO_CONFIGS


@pytest.mark.parametrize("name", PARSES)
def test_parses(published, name):
    form, weights, inputs, cache = PARSES[name]
    quantized = published(name).quantization
    assert quantized
    config = parse_quantization(quantized)
    (group,) = config.groups
    assert config.format == form
    assert (group.format or form) == form
    assert form in FORMATS
    assert str(group.weights) == weights
    how = {False: "static", True: "dynamic", "local": "local"}
    found = group.inputs and f"{how[group.inputs.dynamic]} {group.inputs}"
    assert found == inputs
    assert group.outputs is None
    assert bool(config.kv_cache) is cache


@pytest.mark.parametrize("name", sorted(FLOAT8))
def test_blocks_of_float8(published, name):
    quantized = published(name).quantization
    assert quantized
    config = parse_fp8(quantized)
    assert config.block == (128, 128) and str(config.inputs) == "float8 group 128"


@pytest.mark.parametrize("name", sorted(GPT_OSS))
def test_experts_in_mxfp4(published, name):
    quantized = published(name).quantization
    assert quantized
    assert method_of(quantized) in READ
    assert parse_mxfp4(quantized).not_converted.name("model.layers.0.mlp.router")


@pytest.mark.parametrize("name", MODELOPT)
def test_modelopt(published, name):
    """tests/schemes/modelopt/test_config.py says what their modules are, and the whole models'."""
    quantized = published(name).quantization
    assert quantized and method_of(quantized) == "modelopt"
    config = parse_modelopt(quantized)
    found = config.stated, len(config.layers), config.kv_cache is not None
    assert found == MODELOPT[name]


@pytest.mark.parametrize("name", sorted(DENSE))
def test_says_nothing(published, name):
    assert published(name).quantization is None


def test_kimi_nests_its_quantization(published):
    checkpoint = published("pack-quantized.W4A16-g32.Kimi-K2.5.config.json")
    assert "quantization_config" not in checkpoint.config
    assert checkpoint.quantization
    config = parse_quantization(checkpoint.quantization)
    expert = config.group_of("language_model.model.layers.1.mlp.experts.7.down_proj")
    assert expert and str(expert.weights) == "int4 group 32"
    for name in ("self_attn.q_a_proj", "mlp.down_proj", "mlp.shared_experts.up_proj"):
        assert config.group_of(f"language_model.model.layers.1.{name}") is None


def test_laguna_names_fused_modules_and_separate_ones(published):
    quantized = published(
        "nvfp4-pack-quantized.NVFP4-W4A4-kvfp8.Laguna-M.1.quantization_config.json"
    ).quantization
    assert quantized
    config = parse_quantization(quantized)
    for name in ("mlp.gate_proj", "mlp.up_proj", "mlp.gate_up_proj", "mlp.experts.3.down_proj"):
        assert config.group_of(f"model.layers.5.{name}"), name
    for name in ("self_attn.q_proj", "self_attn.qkv_proj", "self_attn.o_proj"):
        assert config.group_of(f"model.layers.5.{name}") is None, name
