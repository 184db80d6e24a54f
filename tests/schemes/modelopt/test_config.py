"""ModelOpt's configs: the published ones module by module, both forms, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.families.modelopt import config, file

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.fields import UnreadCache
from scoremode.schemes.modelopt_config import ModelOptConfig, parse_modelopt

# A module of each kind, and its algorithm; None for what is excluded.
Modules = dict[str, str | None]
EXPERT, SHARED = "mlp.experts.7.down_proj", "mlp.shared_expert.up_proj"
QWEN = "model.language_model.layers.3"
PUBLISHED: dict[str, Modules] = {
    "Gemma-4-26B-A4B-NVFP4": {
        "model.language_model.layers.0.experts.3.down_proj": "NVFP4",
        "model.language_model.layers.0.mlp.up_proj": None,
        "model.language_model.layers.9.self_attn.q_proj": None,
        "model.vision_tower.encoder.layers.0.mlp.fc1": None,
        "lm_head": None,
    },
    "GLM-5-NVFP4": {
        f"model.layers.30.{EXPERT}": "NVFP4",
        "model.layers.9.self_attn.q_b_proj": None,
        "model.layers.0.self_attn.indexer.wk": None,
        "lm_head": None,
    },
    "Kimi-K2.6-NVFP4": {
        f"language_model.model.layers.1.{EXPERT}": "NVFP4",
        "language_model.model.layers.0.mlp.up_proj": None,
        "language_model.model.layers.10.self_attn.kv_b_proj": None,
        "vision_tower.encoder.blocks.0.wqkv": None,
        "language_model.lm_head": None,
    },
    "Kimi-K2.7-Code-NVFP4": {
        f"language_model.model.layers.1.{EXPERT}": "NVFP4",
        "language_model.model.layers.1.mlp.shared_experts.up_proj": None,
    },
    "MiniMax-M2.5-NVFP4": {
        "model.layers.10.block_sparse_moe.experts.3.w1": "NVFP4",
        "model.layers.10.block_sparse_moe.gate": None,
        "model.layers.10.self_attn.q_proj": None,
    },
    "MiniMax-M2.7-NVFP4": {
        "model.layers.10.block_sparse_moe.experts.3.w1": "NVFP4",
        "model.layers.9.self_attn.o_proj": None,
    },
    "MiniMax-M3-NVFP4": {
        "language_model.model.layers.0.mlp.down_proj": "MXFP8",
        "language_model.model.layers.10.block_sparse_moe.experts.3.w1": "NVFP4",
        "language_model.model.layers.8.block_sparse_moe.gate": None,
        "vision_tower.vision_model.encoder.layers.0.mlp.fc1": None,
        "model.layers.10.block_sparse_moe.experts.3.w1": "NVFP4",
    },
    "NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": {
        "backbone.layers.1.mixer.experts.3.up_proj": "NVFP4",
        "backbone.layers.4.mixer.in_proj": None,
        "backbone.layers.50.mixer.conv1d": None,
        "lm_head": None,
    },
    "NVIDIA-Nemotron-3-Super-120B-A12B-FP8": {"backbone.layers.1.mixer.experts.3.up_proj": "FP8"},
    "NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": {
        "backbone.layers.1.mixer.experts.3.up_proj": "NVFP4"
    },
    "NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": {
        "backbone.layers.0.mixer.in_proj": "FP8",
        "backbone.layers.1.mixer.experts.0.down_proj": "W4A16_NVFP4",
        "backbone.layers.12.mixer.k_proj": None,
        "mtp.layers.0.mixer.o_proj": None,
    },
    "Qwen3-235B-A22B-NVFP4": {
        f"model.layers.1.{EXPERT}": "NVFP4",
        "model.layers.1.self_attn.q_proj": "NVFP4",
        "model.layers.1.mlp.gate": None,
        "lm_head": None,
    },
    "Qwen3.5-122B-A10B-NVFP4": {
        f"{QWEN}.{EXPERT}": "NVFP4",
        f"{QWEN}.{SHARED}": None,
        "model.language_model.layers.0.linear_attn.in_proj_qkv": None,
        "mtp.layers.0.mlp.experts.3.up_proj": None,
    },
    "Qwen3.5-397B-A17B-NVFP4": {
        f"{QWEN}.{EXPERT}": "NVFP4",
        f"mtp.layers.1.{SHARED}": None,
        "model.visual.blocks.0.attn.qkv": None,
    },
    "Qwen3.6-27B-NVFP4": {
        "model.language_model.layers.0.linear_attn.in_proj_z": "FP8",
        "model.language_model.layers.9.mlp.up_proj": "W4A16_NVFP4",
        "lm_head": "W4A16_NVFP4",
        "mtp.layers.0.mlp.up_proj": None,
    },
    "Qwen3.6-35B-A3B-NVFP4": {
        "model.language_model.layers.0.linear_attn.in_proj_z": "FP8",
        # Named as the module of all of them.
        f"{QWEN}.{EXPERT}": "W4A16_NVFP4",
        f"{QWEN}.{SHARED}": "W4A16_NVFP4",
        "lm_head": "W4A16_NVFP4",
    },
}
NO_CACHE = {"MiniMax-M3-NVFP4"}
# Of config.json method fp8, which refuses them: most of their linears are DeepSeek's.
DEEPSEEK = {"DeepSeek-V4-Flash-NVFP4", "DeepSeek-V4-Pro-NVFP4"}


def found(parsed: ModelOptConfig, module: str) -> str | None:
    algorithm = parsed.algorithm_of(module)
    if parsed.excluded.has(module):
        return None
    assert algorithm is not None, module
    return algorithm.name


def read(data: Path, name: str) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """What config.json says, and the file beside it."""
    folder = data / "configs" / "published"
    whole = json.loads((folder / f"nvidia--{name}.json").read_text())
    beside = folder / f"nvidia--{name}.hf_quant_config.json"
    own = whole.get("quantization_config") or (whole.get("text_config") or {}).get(
        "quantization_config"
    )
    return own, json.loads(beside.read_text()) if beside.exists() else None


def test_all_published_are_judged(data):
    files = (data / "configs" / "published").glob("*.hf_quant_config.json")
    names = {f.name.removesuffix(".hf_quant_config.json").removeprefix("nvidia--") for f in files}
    assert names == set(PUBLISHED) | DEEPSEEK


@pytest.mark.parametrize("name", PUBLISHED)
def test_published(name, data):
    """By config.json with the file beside it, and by the file alone."""
    own, beside = read(data, name)
    assert beside is not None
    readings = [parse_modelopt({**beside, "quant_method": "modelopt"}, beside)]
    readings += [parse_modelopt(own, beside)] if own else []
    for parsed in readings:
        assert {module: found(parsed, module) for module in PUBLISHED[name]} == PUBLISHED[name]
        assert (parsed.kv_cache is None) == (name in NO_CACHE)
        if parsed.kv_cache:
            assert parsed.kv_cache.described == "float8 tensor static"
        # What a list excludes is nowhere said to be quantized.
        assert not any(parsed.excluded.has(layer) for layer in parsed.layers)


@pytest.mark.parametrize("name", sorted(DEEPSEEK))
def test_deepseeks_file_alone(name, data):
    _, beside = read(data, name)
    assert beside is not None
    parsed = parse_modelopt({**beside, "quant_method": "modelopt"}, beside)
    assert found(parsed, "layers.3.ffn.experts.200.w1") == "NVFP4"
    assert found(parsed, "layers.3.ffn.shared_experts.w1") is None
    assert parsed.algorithm_of("layers.3.hc_attn_fn") is None


def test_llamas_file(data):
    file = (
        data / "configs" / "other-quant" / "nvidia--Llama-3.1-70B-Instruct-FP8_hf_quant_config.json"
    )
    parsed = parse_modelopt({**json.loads(file.read_text()), "quant_method": "modelopt"})
    assert found(parsed, "model.layers.0.mlp.up_proj") == "FP8" and found(parsed, "lm_head") is None


def test_what_quantized_layers_name_is_claimed_and_no_more(data):
    own, beside = read(data, "Qwen3.6-35B-A3B-NVFP4")
    assert own
    parsed = parse_modelopt(own, beside)
    assert parsed.claims("lm_head") and parsed.claims(f"{QWEN}.{EXPERT}")
    assert not parsed.claims("mtp.layers.0.mlp.experts.3.up_proj")
    assert not parsed.claims("model.visual.blocks.0.attn.qkv")
    # A list of others is no claim: Nemotron-3-Super's is missing, and its head is dense.
    assert not parse_modelopt(config("FP8")).claims("lm_head")


@pytest.mark.parametrize("algorithm", ["NVFP4", "nvfp4", "FP8", "fp8_pb_wo", "MXFP8"])
def test_both_forms_say_the_same(algorithm):
    new, old = (
        parse_modelopt(config(algorithm, "lm_head")),
        parse_modelopt(file(algorithm, "lm_head")),
    )
    assert new.algorithm == old.algorithm and new.stated == old.stated == algorithm.upper()
    assert new.excluded.has("lm_head") and old.excluded.has("lm_head")
    assert parse_modelopt(config(algorithm), file(algorithm)).algorithm == new.algorithm


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}, "float8 tensor"),
        ({"kv_cache_quant_algo": "FP8"}, "float8 tensor"),
        ({"kv_cache_scheme": "NVFP4"}, "float4 group 16"),
        ({"kv_cache_quant_algo": "NVFP4_AFFINE"}, "float4 group 16 asymmetric"),
        ({"kv_cache_quant_algo": "int8"}, "int8 tensor"),
        ({"kv_cache_quant_algo": None, "kv_cache_scheme": {}}, "None"),
    ],
)
def test_caches(fields, said):
    assert str(parse_modelopt(config("NVFP4", **fields)).kv_cache) == said


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kv_cache_scheme": {"num_bits": 4}}, "kv_cache_scheme {'num_bits': 4}"),
        ({"kv_cache_quant_algo": "W3"}, "kv_cache_quant_algo 'W3'"),
        ({"kv_cache_scheme": "static"}, "kv_cache_scheme 'static'"),
        ({"kv_cache_scheme": 8}, "kv_cache_scheme 8 is not a string"),
    ],
)
def test_a_cache_that_can_not_be_read_stops_no_weights(fields, words):
    parsed = parse_modelopt(config("FP8", **fields))
    assert isinstance(parsed.kv_cache, UnreadCache) and words in parsed.kv_cache.why
    # The file beside it may say it in words that are read.
    beside = file("FP8", kv_cache_quant_algo="FP8")
    assert str(parse_modelopt(config("FP8", **fields), beside).kv_cache) == "float8 tensor"


def test_a_cache_that_only_the_file_declares_is_declared():
    """Of Qwen3.6-35B-A3B, whose config.json is an earlier release's."""
    beside = file("FP8", kv_cache_quant_algo="FP8")
    assert str(parse_modelopt(config("FP8"), beside).kv_cache) == "float8 tensor"


def group(inputs: dict[str, Any] | None) -> dict[str, Any]:
    weights = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    return {"weights": weights, "targets": ["Linear"], "input_activations": inputs}


def test_groups_that_quantize_no_inputs():
    alone = parse_modelopt(config("NVFP4", config_groups={"group_0": group(None)}))
    assert alone.algorithm and alone.algorithm.name == "W4A16_NVFP4"
    one = {"group_0": group(None), "group_1": group({"num_bits": 4})}
    for groups in (one, {}, None):
        both = parse_modelopt(config("NVFP4", config_groups=groups))
        assert both.algorithm and both.algorithm.name == "NVFP4"


def test_the_file_of_a_model_whose_cache_alone_is_quantized():
    parsed = parse_modelopt(file(None, kv_cache_quant_algo="FP8"))
    assert parsed.stated is None and parsed.algorithm_of("m") is None and not parsed.claims("m")
    assert str(parsed.kv_cache) == "float8 tensor"


AWQ = {"quant_algo": "W4A16_AWQ"}
MIXED = {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "NVFP4", "group_size": 16}}


def groups(*sizes: int | None, **more: Any) -> dict[str, Any]:
    """`config_groups` as the newest exports have them, of these sizes."""
    weights = [{"dynamic": False, "num_bits": 4, "type": "int", "group_size": n} for n in sizes]
    return {f"group_{n}": {"weights": w} | more for n, w in enumerate(weights)}


@pytest.mark.parametrize("algorithm", ["W4A16_AWQ", "W4A8_AWQ"])
def test_a_group_size_is_read_wherever_it_is_said(algorithm):
    """Of these algorithms, in four places, which must agree; nothing is taken where none says it."""
    silent = {"group_size": None}
    own, beside = config(algorithm, **silent), file(algorithm, **silent)
    said, said_beside = config(algorithm, group_size=64), file(algorithm, group_size=64)
    of_groups = own | {"config_groups": groups(64, targets=["Linear"])}
    for pair, size in (
        ((own, None), None),
        ((own, beside), None),
        ((said, None), 64),
        ((said, beside), 64),
        ((own, said_beside), 64),
        ((of_groups, None), 64),
        ((of_groups, said_beside), 64),
        ((own | {"config_groups": groups(None)}, beside), None),
    ):
        found = parse_modelopt(*pair).algorithm
        assert found is not None and (found.name, found.group) == (algorithm, size)
    # In a layer of several kinds: only groups that name it.
    layers = {"a": {"quant_algo": algorithm}, "b": {"quant_algo": algorithm, "group_size": 32}}
    mixed = config("MIXED_PRECISION", quantized_layers=layers)
    mixed["config_groups"] = groups(64, targets=["a"]) | {"g": groups(32, targets=["b"])["group_0"]}
    sizes = {name: layer.group for name, layer in parse_modelopt(mixed).layers.items()}
    assert sizes == {"a": 64, "b": 32}
    del mixed["config_groups"]["group_0"]
    assert parse_modelopt(mixed).layers["a"].group is None
    file_says = file("MIXED_PRECISION", quantized_layers={"a": layers["a"] | {"group_size": 128}})
    assert parse_modelopt(mixed, file_says).layers["a"].group == 128


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"group_size": 128, "config_groups": groups(64)},
            "group_size 128, and 64 in config_groups, group_0",
        ),
        (
            {"group_size": None, "config_groups": groups(64, 32)},
            "group_size 64, and 32 in config_groups, group_1",
        ),
    ],
)
def test_group_sizes_that_differ(fields, words):
    with pytest.raises(CheckpointError) as caught:
        parse_modelopt(config("W4A16_AWQ", **fields))
    assert str(caught.value) == f"quantization method 'modelopt' with {words}"
    # Of NVFP4 they follow from the algorithm, or were made up.
    found = parse_modelopt(config("NVFP4", config_groups=groups(64))).algorithm
    assert found is not None and found.group == 16


@pytest.mark.parametrize(
    ("own", "beside", "words"),
    [
        (
            config("NVFP4"),
            file("FP8"),
            "config.json says quant_algo NVFP4, and hf_quant_config.json",
        ),
        (config("NVFP4"), file(None), "quant_algo NVFP4, and hf_quant_config.json beside it None"),
        (
            config("MIXED_PRECISION", quantized_layers=MIXED),
            file("MIXED_PRECISION", quantized_layers=MIXED | {"a": {"quant_algo": "MXFP8"}}),
            "a: config.json says quant_algo FP8, and hf_quant_config.json beside it MXFP8",
        ),
        (
            config("W4A16_AWQ", group_size=64),
            file("W4A16_AWQ", group_size=32),
            "config.json says group_size 64, and hf_quant_config.json beside it 32",
        ),
        (
            config("MIXED_PRECISION", quantized_layers={"a": AWQ | {"group_size": 64}}),
            file("MIXED_PRECISION", quantized_layers={"a": AWQ | {"group_size": 128}}),
            "a: config.json says group_size 64, and hf_quant_config.json beside it 128",
        ),
    ],
)
def test_files_that_differ(own, beside, words):
    with pytest.raises(CheckpointError) as caught:
        parse_modelopt(own, beside)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (config("NVFP4_SVD"), "quant_algo 'NVFP4_SVD'"),
        (config("NVFP4_SVDQUANT"), "quant_algo 'NVFP4_SVDQUANT'"),
        (config("W8A8_SQ_PER_CHANNEL"), "quant_algo 'W8A8_SQ_PER_CHANNEL'"),
        (config("W4A8_MXFP4_FP8"), "quant_algo 'W4A8_MXFP4_FP8'"),
        (config("fp8_pb_real"), "quant_algo 'fp8_pb_real'"),
        (config("NVFP4", group_size=32), "quant_algo NVFP4 and group_size 32"),
        (config("FP8", transform_config={"a": 1}), "transform_config {'a': 1}"),
        (file("FP8", lora_rank=16), "lora_rank 16"),
        (config("NVFP4", has_zero_point=True), "has_zero_point True"),
        (
            config("MIXED_PRECISION", quantized_layers={"a": {"quant_algo": "FP8", "scale": 2}}),
            "scale 2",
        ),
    ],
)
def test_what_is_not_decoded_is_named(fields, words):
    with pytest.raises(UnsupportedFormat) as caught:
        parse_modelopt(fields)
    assert str(caught.value) == f"quantization method 'modelopt' with {words}: not decoded"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"quant_method": "modelopt"}, "without a quant_algo"),
        (config("NVFP4") | {"quant_algo": 4}, "quant_algo 4 is not a string"),
        (config("NVFP4", group_size="16"), "group_size '16' is not an integer"),
        (config("NVFP4", group_size=-1), "group_size -1 is not a number of columns"),
        (config("NVFP4") | {"ignore": "lm_head"}, "ignore 'lm_head' is not a list of names"),
        (config("NVFP4") | {"ignore": [3]}, "ignore [3] is not a list of names"),
        (config("NVFP4", pre_quant_scale=True, has_zero_point=1), "has_zero_point 1 is not true"),
        ({"quantization": 7}, "quantization 7 is not an object"),
        (config("MIXED_PRECISION"), "MIXED_PRECISION, and no quantized_layers"),
        (config("MIXED_PRECISION", quantized_layers=["a"]), "quantized_layers ['a'] is not an obj"),
        (config("MIXED_PRECISION", quantized_layers={"a": None}), "a None is not an object"),
        (config("MIXED_PRECISION", quantized_layers={"a": "FP8"}), "a 'FP8' is not an object"),
        (
            config(
                "MIXED_PRECISION",
                quantized_layers={"model.a": MIXED["a"], "language_model.model.a": MIXED["b"]},
            ),
            "quantized_layers have two quant_algo for a: FP8 and NVFP4",
        ),
    ],
)
def test_what_can_not_be_understood_is_named(fields, words):
    with pytest.raises(CheckpointError) as caught:
        parse_modelopt(fields)
    assert not isinstance(caught.value, UnsupportedFormat)
    assert words in str(caught.value) and "\n" not in str(caught.value)
