"""`quant_method: quark`: what is read of it, and what is refused."""

import time

import pytest
from support.families.quark import KINDS, config, spec

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.fields import UnreadCache
from scoremode.schemes.quark import parse_quark

READ = {
    "fp8": ("float8 tensor static", "float8 tensor static"),
    "ptpc": ("float8 channel static", "float8 token dynamic"),
    "int8": ("int8 channel static", "int8 token dynamic"),
    "mxfp4": ("float4 group 32 static", "float4 group 32 dynamic"),
    "mxfp4 weights": ("float4 group 32 static", None),
    "int4": ("int4 group 32 static", None),
    "uint4": ("uint4 group 32 asymmetric static", None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_for_all(kind):
    parsed = parse_quark(config(kind))
    layer = parsed.of("model.layers.0.mlp.up_proj")
    found = (layer.weights and layer.weights.described, layer.inputs and layer.inputs.described)
    assert found == READ[kind]
    assert parsed.excludes("lm_head") and not parsed.excludes("model.layers.0.mlp.up_proj")
    assert parsed.kv_cache is None
    assert parsed.claims("model.layers.0.mlp.up_proj") and not parsed.claims("lm_head")


def test_layers_of_their_own_and_a_cache():
    """As AMD's FP8-KV exports have it: the cache is the output of two linears."""
    weight, inputs = KINDS["fp8"]
    of_cache = {"weight": weight, "input_tensors": inputs, "output_tensors": inputs}
    layers = {"*k_proj": of_cache, "*v_proj": of_cache, "model.layers.1.mlp.up_proj": {}}
    parsed = parse_quark(config("ptpc", layer_quant_config=layers, exclude=["*.gate", "lm_head"]))
    assert parsed.kv_cache and parsed.kv_cache.described == "float8 tensor static"
    first = parsed.of("model.layers.3.self_attn.k_proj").weights
    assert first and first.strategy == "tensor"
    assert parsed.of("model.layers.1.mlp.up_proj").weights is None
    other = parsed.of("model.layers.2.mlp.up_proj").weights
    assert other and other.strategy == "channel"
    assert parsed.excludes("model.layers.0.mlp.gate")
    assert not parsed.excludes("model.layers.0.mlp.gate_proj")
    named = parse_quark(
        config("fp8", kv_cache_quant_config={"*k_proj": {"output_tensors": inputs}})
    )
    assert named.kv_cache == parsed.kv_cache


def test_what_is_claimed():
    """As AMD publishes DeepSeek and Llama 4, and as exports of files list what they leave."""
    exclude = [
        *("lm_head", "model.layers.0.mlp.gate", "*.layers.1.*", "*self_attn*", "*gate_proj.weight"),
        *("language_model.model.layers.2.mlp.up_proj", "model.language_model.layers.3.mlp*"),
    ]
    layers = {"*.layers.9.*": {"weight": None}}
    parsed = parse_quark(config("mxfp4", exclude=exclude, layer_quant_config=layers))
    claimed = ("layers.0.mlp.up_proj", "layers.2.mlp.down_proj", "layers.11.mlp.up_proj")
    left = ("layers.0.mlp.gate", "layers.0.self_attn.q_proj", "layers.1.mlp.up_proj", "lm_head")
    left += ("layers.0.mlp.gate_proj", "layers.2.mlp.up_proj", "layers.3.mlp.up_proj")
    for beginning in ("model.", "language_model.model.", "model.language_model."):
        assert all(parsed.claims(f"{beginning}{name}") for name in claimed)
        assert not any(parsed.claims(f"{beginning}{name}") for name in (*left, "layers.9.x"))


def test_regular_expressions():
    """As Quark 0.12 lists all that is no expert's, and vLLM reads it."""
    others = r"re:^(?!.*\.mlp\.experts(?:\.|$)).*$"
    parsed = parse_quark(config("mxfp4", exclude=[others]))
    assert parsed.claims("model.layers.0.mlp.experts.7.up_proj")
    assert not any(map(parsed.claims, ("lm_head", "model.layers.0.self_attn.q_proj")))
    named = parse_quark(config("mxfp4", exclude=["re:lm_head"]))
    assert not named.claims("lm_head") and named.claims("model.layers.0.mlp.up_proj")
    layers = {r"re:.*\.layers\.\d\.": {}}
    parsed = parse_quark(config("mxfp4", layer_quant_config=layers))
    assert parsed.of("model.layers.9.mlp.up_proj").weights is None
    assert parsed.of("model.layers.10.mlp.up_proj").weights is not None


def test_how_inputs_are_rounded():
    """Powers of two of `even`, as AMD publishes them; a weight's are stored."""
    weight, inputs = KINDS["mxfp4"]
    assert inputs is not None
    even = {"scale_calculation_mode": "even"}
    floor = {"scale_calculation_mode": "floor"}

    def said(weight, inputs):
        both = {"weight": weight, "input_tensors": inputs}
        return parse_quark(config("mxfp4", global_quant_config=both)).default

    assert said(weight | floor, inputs | even) == said(weight, inputs)
    for fields in (floor, {"scale_calculation_mode": "ceil"}, {"round_method": "floor"}):
        ((name, value),) = fields.items()
        with pytest.raises(
            UnsupportedFormat, match=f"input_tensors, {name} '{value}': not decoded"
        ):
            said(weight, inputs | fields)


def changed(**fields):
    weight = KINDS["ptpc"][0] | fields
    return config("ptpc") | {"global_quant_config": {"weight": weight}}


def test_a_list_of_names_is_looked_up():
    """Of DeepSeek's checkpoints hundreds of attention's linears are excluded, beside 46,000 experts."""
    names = [f"layers.{n}.attn.{p}" for n in range(200) for p in "abcdefghij"]
    layers = dict.fromkeys(names[:1000])
    parsed = parse_quark(config("fp8", exclude=[*names, "*.gate[0-9]"], layer_quant_config=layers))
    began = time.process_time()
    modules = [f"layers.{n}.experts.{e}.up" for n in range(40) for e in range(250)]
    assert not any(parsed.excludes(m) or parsed.of(m) != parsed.default for m in modules)
    assert time.process_time() - began < 3
    assert parsed.excludes("layers.7.attn.c") and parsed.excludes("layers.7.gate3")


@pytest.mark.parametrize("field", ["exclude", "layer_quant_config"])
def test_a_pattern_that_is_not_supported_is_named(field):
    pattern = "*" + "a" * 2000
    value = [pattern] if field == "exclude" else {pattern: None}
    with pytest.raises(CheckpointError, match=rf"{field}: pattern .* is not supported"):
        parse_quark(config("fp8", **{field: value}))


ROTATION = {"name": "rotation", "r1": True, "r2": True, "r3": False, "r4": False}


@pytest.mark.parametrize(
    ("algorithms", "refused"),
    [
        ([{"name": "awq"}, {"name": "gptq"}], None),
        ({"name": "smooth"}, None),
        ([ROTATION], None),
        ([ROTATION | {"r4": True}], "rotation"),
        ([{"name": "rotation"}], "rotation"),
        ([ROTATION | {"online_r1_rotation": True}], "rotation"),
        ([{"name": "awq"}, {"name": "svdquant"}], "svdquant"),
        ([{}], "{}"),
    ],
)
@pytest.mark.parametrize("field", ["algo_config", "pre_quant_opt_config"])
def test_algorithms_whose_weights_want_other_inputs(field, algorithms, refused):
    fields = config("mxfp4", **{field: algorithms})
    if refused is None:
        assert parse_quark(fields) == parse_quark(config("mxfp4"))
        return
    with pytest.raises(UnsupportedFormat, match=rf"'quark' with {field} .*{refused}"):
        parse_quark(fields)


def test_a_cache_that_can_not_be_read_stops_no_weights():
    unread = {"output_tensors": {"dtype": "uint4", "qscheme": "per_group"}}
    of_layers = {"*k_proj": {"output_tensors": [1]}}
    for fields in (
        {"kv_cache_quant_config": {"*k_proj": unread}},
        {"layer_quant_config": of_layers},
    ):
        cache = parse_quark(config("mxfp4", **fields)).kv_cache
        assert isinstance(cache, UnreadCache) and "output_tensors" in cache.why
    two = {"*k_proj": {"output_tensors": spec("fp8_e4m3", "per_tensor")},
           "*v_proj": {"output_tensors": spec("int8", "per_tensor")}}  # fmt: skip
    cache = parse_quark(config("mxfp4", kv_cache_quant_config=two)).kv_cache
    assert isinstance(cache, UnreadCache) and "caches of several formats" in cache.why


def test_blocks_are_rows_and_columns():
    weights = parse_quark(changed(qscheme="per_block", block_size=[16, 32])).default.weights
    assert weights and weights.block == (16, 32)
