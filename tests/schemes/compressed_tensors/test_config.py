from pathlib import Path

import pytest
from support.schemes import group, quantization

from scoremode.checkpoint.files import Checkpoint
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.compressed_tensors_config import parse_quantization
from scoremode.schemes.fields import TensorFormat

LAYER = "model.layers.0.mlp.down_proj"


def claimed(groups: dict, module: str = LAYER, **others) -> str | None:
    found = parse_quantization(quantization(groups, **others)).group_of(module)
    return found and found.name


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


@pytest.mark.parametrize("module", ["model.embed_tokens", "transformer.wte", "gpt_neox.embed_in"])
def test_embeddings_have_a_class_of_their_own(module):
    groups = {"linears": group("Linear"), "embeddings": group("Embedding", num_bits=8)}
    assert claimed(groups, module) == "embeddings"
    assert claimed(groups) == claimed(groups, "lm_head") == "linears"
    assert claimed({"g": group("Linear")}, module) is None
    assert claimed({"g": group(module)}, module) == "g"
    assert claimed(groups, module, ignore=["Embedding"]) is None
    assert claimed(groups, ignore=["Embedding"]) == "linears"


@pytest.mark.parametrize(
    ("ignore", "module", "ignored"),
    [
        (["lm_head"], "lm_head", True),
        (["lm_head"], "text.lm_head", False),
        # Another beginning of the same name.
        (["lm_head"], "language_model.lm_head", True),
        (["re:.*lm_head"], "model.lm_head", True),
        (["re:.*self_attn.*"], "model.layers.3.self_attn.q_proj", True),
        (["re:self_attn.*"], "model.layers.3.self_attn.q_proj", False),
        (["Linear"], LAYER, True),
        ([r"re:.*\.mlp\.gate$"], "model.layers.3.mlp.gate", True),
        ([r"re:.*\.mlp\.gate$"], "model.layers.3.mlp.gate_proj", False),
        (None, "lm_head", False),
    ],
)
def test_ignored_modules_belong_to_no_group(ignore, module, ignored):
    groups = {"class": group("Linear"), "exact": group(module)}
    assert (claimed(groups, module, ignore=ignore) is None) is ignored


ATTENTION = "model.layers.0.self_attn"


@pytest.mark.parametrize("place", ["targets", "ignore"])
@pytest.mark.parametrize(
    ("pattern", "means"),
    [
        (f"{ATTENTION}.q_proj", "q"),
        (f"{ATTENTION}.qkv_proj", "qkv"),
        ("re:.*q_proj$", "q"),
        ("re:.*v_proj$", "v"),
        ("re:.*qkv_proj$", "qkv"),
        ("re:.*(qkv|o)_proj$", "qkvo"),
        ("re:.*self_attn.*", "qkvo"),
        ("re:.*[qk]_proj", "qk"),
    ],
)
def test_separate_modules_under_separate_and_fused_names(pattern, means, place):
    """A pattern for one part says nothing of the others, though it fits the fused name as well."""
    for part in "qkvo":
        module, named = f"{ATTENTION}.{part}_proj", part in means
        if place == "targets":
            groups = {"class": group("Linear"), "named": group(pattern, num_bits=8)}
            assert claimed(groups, module) == ("named" if named else "class"), part
        else:
            found = claimed({"class": group("Linear")}, module, ignore=[pattern])
            assert found == (None if named else "class"), part


@pytest.mark.parametrize(
    ("targets", "ignore", "expected"),
    [
        (["Linear"], [], "g"),
        (["re:.*gate_up_proj"], [], "g"),
        (["re:.*(gate|up)_proj$"], [], "g"),
        (["re:.*gate_proj$", "re:.*mlp.up_proj$"], [], "g"),
        (["model.mlp.gate_proj", "model.mlp.up_proj"], [], "g"),
        (["re:.*down_proj"], [], None),
        (["Linear"], ["model.mlp.gate_proj", "model.mlp.up_proj"], None),
        (["Linear"], ["model.mlp.gate_up_proj"], None),
        # Its own name decides, as in the library, though one part alone fits as well.
        (["Linear"], ["re:.*up_proj$"], None),
        (["re:.*up_proj$"], [], "g"),
    ],
)
def test_fused_module_under_separate_names(targets, ignore, expected):
    found = claimed({"g": group(*targets)}, "model.mlp.gate_up_proj", ignore=ignore)
    assert found == expected


@pytest.mark.parametrize(
    ("groups", "ignore"),
    [
        ({"g": group("model.mlp.gate_proj")}, []),
        ({"g": group("Linear")}, ["model.mlp.gate_proj"]),
        ({"g": group("Linear"), "h": group("model.mlp.gate_proj", num_bits=8)}, []),
    ],
)
def test_fused_module_whose_parts_differ(groups, ignore):
    with pytest.raises(CheckpointError, match="treats its parts gate_proj, up_proj differently"):
        claimed(groups, "model.mlp.gate_up_proj", ignore=ignore)


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
    group = {"targets": ["Linear"], "weights": {"num_bits": 4}, "input_activations": given}
    assert parse_quantization(quantization({"g": group})).groups[0].inputs == expected


def test_dynamic_weights_are_refused():
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "dynamic": True}}
    with pytest.raises(UnsupportedFormat, match="'g' has dynamic weights"):
        parse_quantization(quantization({"g": group}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse format 'sparse-24-bitmask'"),
        ({"sparsity_config": {"format": "sparse-bitmask"}}, "sparse format 'sparse-bitmask'"),
        ({"sparsity_config": "marlin-24"}, "sparse format 'marlin-24'"),
        ({"sparsity_config": {"format": "other"}}, "sparse format 'other': not known"),
        ({"config_groups": {"W5A4": ["Linear"]}}, "group 'W5A4': not a known preset"),
        ({"config_groups": {"Linear": ["Linear"]}}, "group 'Linear': not a known preset"),
        (
            {"config_groups": {"g": {"targets": ["LlamaAttention"], "input_activations": {}}}},
            r"group 'g' quantizes activations \(int8 tensor\) of LlamaAttention and no weights",
        ),
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
        ({"config_groups": {"g": group(block_structure="128")}}, "can't be understood"),
        ({"config_groups": {"g": group(block_structure="0x128")}}, "can't be understood"),
        ({"config_groups": {"g": group(block_structure=[128, -1])}}, "can't be understood"),
        ({"config_groups": {"g": group(dynamic="global")}}, "dynamic 'global' is not"),
    ],
)
def test_what_can_not_be_understood_is_said_in_one_line(change, message):
    with pytest.raises(CheckpointError, match=message) as error:
        parse_quantization(quantization({"g": group()}) | change)
    assert "\n" not in str(error.value)


def test_a_cache_may_be_all_that_is_quantized():
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    config = parse_quantization(quantization({}, "dense", kv_cache_scheme=scheme, ignore=[]))
    assert config.groups == () and str(config.kv_cache) == "float8 tensor"
    assert config.group_of("model.layers.0.self_attn.q_proj") is None


@pytest.mark.parametrize("sparsity", [None, {}, {"format": None}, {"format": "dense"}, "dense"])
def test_no_sparsity_is_written_in_many_ways(sparsity):
    given = quantization({"g": group()}, sparsity_config=sparsity, transform_config={})
    assert len(parse_quantization(given).groups) == 1


@pytest.mark.parametrize("given", ["128x64", [128, 64], (128, 64)])
def test_blocks_are_written_in_two_ways(given):
    config = quantization({"g": group(strategy="block", group_size=None, block_structure=given)})
    found = parse_quantization(config).groups[0].weights
    assert found and found.block == (128, 64)
    assert str(found) == "int4 block 128x64"


def test_short_form_names_presets():
    config = quantization({"W4A16": ["re:.*mlp.*"], "fp8_dynamic": ["Linear"]})
    mlp, others = (parse_quantization(config).group_of(m) for m in ("a.mlp.up", "a.attn.q"))
    assert mlp and mlp.weights == TensorFormat(4, "int", "group", 128)
    assert others and others.weights == TensorFormat(8, "float", "channel")
    assert others.inputs == TensorFormat(8, "float", "token", dynamic=True)


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


def test_a_group_is_what_its_fields_say_and_not_its_name():
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    config = quantization({"NVFP4A16": {"targets": ["Linear"], "weights": weights}})
    assert str(parse_quantization(config).groups[0].weights) == "int8 channel"
