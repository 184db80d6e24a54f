import json
from pathlib import Path

import pytest
from schemes_helpers import group, quantization

from scoremode.checkpoint.files import Checkpoint
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.config import TensorFormat, parse_quantization

LAYER = "model.layers.0.mlp.down_proj"


def claimed(groups: dict, module: str = LAYER, linear: bool = True, **others) -> str | None:
    found = parse_quantization(quantization(groups, **others)).group_of(module, linear=linear)
    return found and found.name


def published(file: Path) -> Checkpoint:
    """A checkpoint without tensors, whose config is the file's; some hold only its quantization."""
    config = json.loads(file.read_text())
    if "quantization_config" in file.name or "config_groups" in config:
        config = {"quantization_config": config}
    return Checkpoint(file.parent, file.name, config, {})


EXACT, PATTERN, CLASS = group(LAYER, num_bits=4), group("re:.*down_proj"), group("Linear")


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"exact": EXACT, "pattern": PATTERN, "class": CLASS}, "exact"),
        ({"exact": EXACT, "class": CLASS}, "exact"),
        ({"pattern": PATTERN, "class": CLASS}, "pattern"),
        ({"class": CLASS}, "class"),
        ({"other": group("re:.*up_proj"), "class": CLASS}, "class"),
        ({"other": group("re:.*up_proj")}, None),
    ],
)
def test_exact_name_before_pattern_before_class(groups, expected, order):
    assert claimed(dict(list(groups.items())[::order])) == expected


@pytest.mark.parametrize(
    ("target", "matches"),
    [
        (LAYER, True),
        ("down_proj", False),
        ("mlp.down_proj", False),
        ("re:down_proj", False),
        ("re:.*down_proj", True),
        ("re:model", True),
        ("re:.*down_proj$", True),
        ("re:.*mlp$", False),
        (r"re:.*\.layers\.\d+\.mlp\.(gate|up|down)_proj$", True),
        (".*down_proj", False),
    ],
)
def test_targets_match_as_the_library_matches(target, matches):
    assert (claimed({"g": group(target)}) == "g") is matches


def test_class_claims_only_linears():
    assert claimed({"g": group("Linear")}, "model.embed_tokens", linear=False) is None
    assert claimed({"g": group("model.embed_tokens")}, "model.embed_tokens", linear=False) == "g"


@pytest.mark.parametrize(
    ("ignore", "module", "ignored"),
    [
        (["lm_head"], "lm_head", True),
        (["lm_head"], "model.lm_head", False),
        (["re:.*lm_head"], "model.lm_head", True),
        (["re:.*self_attn.*"], "model.layers.3.self_attn.q_proj", True),
        (["re:self_attn.*"], "model.layers.3.self_attn.q_proj", False),
        ([r"re:.*\.mlp\.gate$"], "model.layers.3.mlp.gate", True),
        ([r"re:.*\.mlp\.gate$"], "model.layers.3.mlp.gate_proj", False),
        (None, "lm_head", False),
    ],
)
def test_ignored_modules_belong_to_no_group(ignore, module, ignored):
    groups = {"class": group("Linear"), "exact": group(module)}
    assert (claimed(groups, module, ignore=ignore) is None) is ignored


def test_groups_keep_their_own_bits():
    config = parse_quantization(
        quantization(
            {
                "four": group("re:.*mlp.*", num_bits=4),
                "eight": group("re:.*self_attn.*", num_bits=8, group_size=128),
            }
        )
    )
    for module, bits, size in [("a.mlp.up", 4, 32), ("a.self_attn.q", 8, 128)]:
        found = config.group_of(module)
        assert found and found.weights
        assert (found.weights.bits, found.weights.group_size) == (bits, size)


@pytest.mark.parametrize("target", [LAYER, "re:.*down_proj", "Linear"])
@pytest.mark.parametrize(
    "other", [{"num_bits": 8}, {"symmetric": False}, {"group_size": 64}, {"actorder": "group"}]
)
def test_two_different_claims_of_one_rank_are_refused(target, other):
    groups = {"first": group(target), "second": group(target, **other)}
    with pytest.raises(CheckpointError, match=f"first and second both claim {LAYER}"):
        claimed(groups)


def test_two_equal_claims_of_one_rank_are_one():
    assert claimed({"first": group("re:.*proj"), "second": group("re:.*down.*")}) == "first"


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_better_claim_settles_a_tie_below_it(position):
    groups = [("four", group("Linear")), ("eight", group("Linear", num_bits=8))]
    groups.insert(position, ("exact", group(LAYER)))
    assert claimed(dict(groups)) == "exact"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, TensorFormat(8, "int", "tensor", None, True, False, None)),
        ({"group_size": 64}, TensorFormat(8, "int", "group", 64, True, False, None)),
        ({"group_size": -1}, TensorFormat(8, "int", "channel", None, True, False, None)),
        (
            {"num_bits": 4, "type": "FLOAT", "strategy": "Tensor_Group", "dynamic": "local"},
            TensorFormat(4, "float", "tensor_group", None, True, "local", None),
        ),
        (
            {"symmetric": False, "actorder": "weight"},
            TensorFormat(8, "int", "tensor", None, False, False, "weight"),
        ),
        ({"actorder": True}, TensorFormat(8, "int", "tensor", None, True, False, "group")),
        ({"actorder": False}, TensorFormat(8, "int", "tensor", None, True, False, None)),
        ({"actorder": "dynamic"}, TensorFormat(8, "int", "tensor", None, True, False, "group")),
        ({"actorder": "static"}, TensorFormat(8, "int", "tensor", None, True, False, "weight")),
    ],
)
def test_defaults_of_a_tensor_format(given, expected):
    group = {"targets": ["Linear"], "input_activations": given}
    assert parse_quantization(quantization({"g": group})).groups[0].inputs == expected


def test_dynamic_weights_are_refused():
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "dynamic": True}}
    with pytest.raises(UnsupportedFormat, match="'g' has dynamic weights"):
        parse_quantization(quantization({"g": group}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "gptq"}, "quantization method 'gptq'"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse format 'sparse-24-bitmask'"),
        ({"sparsity_config": "marlin-24"}, "sparse format 'marlin-24'"),
        ({"transform_config": {"config_groups": {}}}, "transform_config"),
        ({"config_groups": {"W4A16": ["Linear"]}}, "group 'W4A16' names a preset"),
    ],
)
def test_what_is_not_supported_is_named(change, message):
    with pytest.raises(UnsupportedFormat, match=message):
        parse_quantization(quantization({"g": group()}) | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config_groups": {}}, "no config_groups"),
        ({"config_groups": None}, "no config_groups"),
        ({"config_groups": [group()]}, "no config_groups"),
        ({"config_groups": {"g": {"weights": {}}}}, "targets"),
        ({"config_groups": {"g": group() | {"targets": "Linear"}}}, "'Linear' is not a list"),
        ({"config_groups": {"g": group("re:(")}}, "can't be understood"),
        ({"config_groups": {"g": group(num_bits="four")}}, "four"),
        ({"config_groups": {"g": group(group_size="many")}}, "many"),
        ({"config_groups": {"g": group() | {"weights": 4}}}, "can't be understood"),
        ({"ignore": "lm_head"}, "'lm_head' is not a list"),
        ({"ignore": ["re:["]}, "can't be understood"),
        ({"ignore": [3]}, "can't be understood"),
    ],
)
def test_what_can_not_be_understood_is_said_in_one_line(change, message):
    with pytest.raises(CheckpointError, match=message) as error:
        parse_quantization(quantization({"g": group()}) | change)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("config", ["compressed-tensors", [1], 4])
def test_quantization_config_must_be_an_object(config):
    with pytest.raises(CheckpointError, match="quantization_config is a"):
        parse_quantization(config)


@pytest.mark.parametrize("sparsity", [{}, None, {"format": "dense"}])
def test_dense_sparsity_and_no_transform_mean_nothing(sparsity):
    config = quantization({"g": group()}, sparsity_config=sparsity, transform_config={})
    assert parse_quantization(config).groups[0].name == "g"


def test_kv_cache_is_kept():
    config = quantization({"g": group()}, kv_cache_scheme={"num_bits": 8, "type": "float"})
    assert str(parse_quantization(config).kv_cache) == "float8 tensor"


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": {"a": 1}},
        {"compression_config": {"a": 1}},
        {"text_config": {"quantization_config": {"a": 1}}},
        {"quantization_config": None, "text_config": {"quantization_config": {"a": 1}}},
    ],
)
def test_quantization_is_found_where_people_put_it(config):
    assert Checkpoint(Path(), "", config, {}).quantization == {"a": 1}


def test_a_group_is_what_its_fields_say_and_not_its_name(data):
    (file,) = (data / "configs/compressed-tensors").glob("*Mistral-Small-4*")
    quantized = published(file).quantization
    assert quantized
    (found,) = parse_quantization(quantized).groups
    assert found.name == "NVFP4A16"
    assert str(found.weights) == str(found.inputs) == "float4 group 16"


def test_published_configs_of_the_library_parse(data):
    files = sorted((data / "configs/compressed-tensors").glob("*.json"))
    assert files
    for file in files:
        quantized = published(file).quantization
        assert quantized, file.name
        config = parse_quantization(quantized)
        assert config.format and config.format in file.name
        assert all(g.weights for g in config.groups)
        assert bool(config.kv_cache) == ("kvfp8" in file.name), file.name


def test_kimi_nests_its_quantization(data):
    (file,) = (data / "configs/compressed-tensors").glob("*Kimi-K2.5*")
    checkpoint = published(file)
    assert "quantization_config" not in checkpoint.config
    assert checkpoint.quantization
    config = parse_quantization(checkpoint.quantization)
    expert = config.group_of("language_model.model.layers.1.mlp.experts.7.down_proj")
    assert expert and expert.weights
    assert (expert.weights.bits, expert.weights.group_size) == (4, 32)
    for name in ("self_attn.q_a_proj", "mlp.down_proj", "mlp.shared_experts.up_proj"):
        assert config.group_of(f"language_model.model.layers.1.{name}") is None


def test_published_configs_of_other_libraries_are_refused_by_name(data):
    methods = {}
    for file in sorted((data / "configs/other-quant").glob("*_config.json")):
        quantized = published(file).quantization
        if quantized and "hf_quant_config" not in file.name:
            methods[file.name] = quantized["quant_method"]
            with pytest.raises(UnsupportedFormat) as error:
                parse_quantization(quantized)
            assert repr(methods[file.name]) in str(error.value)
            assert "\n" not in str(error.value)
    assert set(methods.values()) == {"fp8", "modelopt", "mxfp4"}


def test_dense_models_have_no_quantization(data):
    files = sorted((data / "configs/unquantized").glob("*.json"))
    assert files
    assert [published(file).quantization for file in files] == [None] * len(files)
