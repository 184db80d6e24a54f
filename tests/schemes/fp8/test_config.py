"""`quant_method: fp8`: what is read of it, what is refused, and names as transformers matches them."""

import json

import pytest
from support.families.float8_blocks import config
from transformers.quantizers.quantizers_utils import should_convert_module

from scoremode.errors import UnsupportedFormat
from scoremode.schemes.fields import TensorFormat
from scoremode.schemes.fp8 import parse_fp8

PUBLISHED = {
    # Kinds of lists, of scales, and of what is not said.
    "Qwen--Qwen3-32B-FP8": ((128, 128), False, 0),
    "Qwen--Qwen3-235B-A22B-FP8": ((128, 128), False, 283),
    "deepseek-ai--DeepSeek-V3": ((128, 128), False, 0),
    "deepseek-ai--DeepSeek-V3.2": ((128, 128), True, 0),
    "MiniMaxAI--MiniMax-M2.7": ((128, 128), False, 3),
    "stepfun-ai--Step-3.7-Flash-FP8": ((128, 128), False, 0),
    "deepseek-ai--DeepSeek-V4-Flash": ((128, 128), True, 0),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs(name, data):
    fields = json.loads((data / "configs" / "published" / f"{name}.json").read_text())
    nested = fields.get("text_config") or {}
    found = fields.get("quantization_config") or nested["quantization_config"]
    parsed, (block, of_two, names) = parse_fp8(found, fields.get("expert_dtype")), PUBLISHED[name]
    assert parsed.fp4_experts is (name == "deepseek-ai--DeepSeek-V4-Flash")
    assert (parsed.block, parsed.inputs.powers_of_two) == (block, of_two)
    assert (parsed.inputs.group_size, parsed.inputs.dynamic) == (block[1], True)
    assert len(parsed.not_converted.names) == names
    assert parsed.kv_cache is None and not parsed.claims("model.layers.0.mlp.up_proj")


@pytest.mark.parametrize("name", ["DeepSeek-V4-Pro-NVFP4", "DeepSeek-V4-Flash-NVFP4"])
def test_modelopts_with_the_same_method_are_refused(name, data):
    fields = json.loads((data / "configs" / "published" / f"nvidia--{name}.json").read_text())
    with pytest.raises(UnsupportedFormat, match=r"^quantization method 'fp8' with quant_algo 'MIX"):
        parse_fp8(fields["quantization_config"])


def test_defaults_are_transformers():
    parsed = parse_fp8({"quant_method": "fp8"})
    assert parsed.block == (128, 128) and not parsed.inputs.powers_of_two
    assert parse_fp8(config((64, 32))).inputs.group_size == 32


@pytest.mark.parametrize(
    ("change", "described"),
    [
        ({"kv_cache_scheme": "static"}, "float8 tensor static"),
        ({"kv_cache_scheme": {"num_bits": 8}}, "not decoded: quantization method 'fp8' with kv_"),
        ({"kv_cache_quant_algo": "NVFP4"}, "not decoded: quantization method 'fp8' with kv_"),
    ],
)
def test_a_cache_never_stops_the_weights(change, described):
    cache = parse_fp8(config() | change).kv_cache
    assert cache is not None and cache.described.startswith(described)
    assert parse_fp8(config()).kv_cache is None


NAMES = [
    "lm_head",
    "model.embed_tokens",
    "model.layers.1.mlp.gate",
    "model.layers.1.mlp.gate_proj",
    "model.layers.11.mlp.up_proj",
    "model.layers.1.self_attn.q_proj",
    "model.layers.1.mlp.experts.3.down_proj",
    "visual.blocks.0.attn.qkv",
]
KEYS = [
    *("gate", "lm_head", "model.layers.1", "model.layers.1.", "mlp.gate", "q_proj", "proj"),
    *("model.layers.1.mlp", r"model.layers.\d+.mlp.gate", "model.*self_attn", "experts", "visual"),
    *("", "layers.1"),
    *("model.layers.1.mlp.gate|lm_head", r"re:.*q_proj", "model.layers.(0|1)$", "layers", "model"),
]  # fmt: skip


@pytest.mark.skipif(
    not should_convert_module("model.layers.11.mlp", ["model.layers.1"]),
    reason="this transformers takes any beginning of a name",
)
@pytest.mark.parametrize("key", KEYS)
def test_names_are_matched_as_transformers_does(key):
    for keys in ([key], [key, "nothing"]):
        parsed = parse_fp8(config(modules_to_not_convert=keys))
        theirs = [name for name in NAMES if not should_convert_module(name, keys)]
        assert [name for name in NAMES if parsed.excepts(name)] == theirs


def test_inputs_by_what_shares_a_scale():
    dynamic = {"dynamic": True, "powers_of_two": True}
    for change, expected in [
        ({"weight_block_size": None}, TensorFormat(8, "float", "token", dynamic=True)),
        (
            {"weight_block_size": None, "scale_fmt": "ue8m0"},
            TensorFormat(8, "float", "token", **dynamic),
        ),
        ({"scale_fmt": "ue8m0"}, TensorFormat(8, "float", "group", 128, **dynamic)),
        ({"activation_scheme": "STATIC"}, TensorFormat(8, "float", "tensor")),
        ({"activation_scheme": "static", "scale_fmt": "ue8m0"}, TensorFormat(8, "float", "tensor")),
    ]:
        assert parse_fp8(config() | change).inputs == expected


@pytest.mark.parametrize(
    ("model", "said", "fp4"),
    [(None, None, False), ("fp4", None, True), ("fp4", "fp8", False), (None, "fp4", True)],
)
def test_the_quantizations_own_expert_dtype_goes_before_the_models(model, said, fp4):
    assert parse_fp8(config(expert_dtype=said), model).fp4_experts is fp4


@pytest.mark.parametrize("value", ["fp6", 4, [], {}])
def test_experts_of_a_dtype_that_is_not_known(value):
    with pytest.raises(UnsupportedFormat, match="expert_dtype"):
        parse_fp8(config(), value)


def test_another_name_of_the_list():
    assert parse_fp8(config(ignored_layers=["lm_head"])).excepts("lm_head")
    both = config(ignored_layers=["lm_head"], modules_to_not_convert=[])
    assert not parse_fp8(both).excepts("lm_head")
