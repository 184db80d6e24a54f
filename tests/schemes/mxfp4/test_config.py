"""`quant_method: mxfp4`: published configs, and what is refused of others."""

import json

import pytest

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.mxfp4 import parse_mxfp4

EXPERTS = "model.layers.3.mlp.experts"


@pytest.mark.parametrize(
    "name", ["published/openai--gpt-oss-120b.json", "other-quant/openai--gpt-oss-20b_config.json"]
)
def test_published_configs(name, data):
    found = json.loads((data / "configs" / name).read_text())["quantization_config"]
    parsed = parse_mxfp4(found)
    assert len(parsed.not_converted.names) == 4
    for module in ("model.layers.11.self_attn.q_proj", "model.layers.0.mlp.router", "lm_head"):
        assert parsed.not_converted.name(module)
    assert not parsed.not_converted.name(EXPERTS)
    assert parsed.kv_cache is None and not parsed.claims(EXPERTS)


def test_the_list_may_be_missing():
    parsed = parse_mxfp4({"quant_method": "mxfp4", "modules_to_not_convert": None})
    assert not parsed.not_converted.name(EXPERTS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dequantize", True),
        ("config_groups", {"g": {}}),
        ("global_quant_config", {"weight": 1}),
        ("kv_cache_scheme", {"num_bits": 8}),
        ("activation_scheme", "static"),
    ],
)
def test_what_is_not_decoded_is_named(name, value):
    with pytest.raises(UnsupportedFormat) as error:
        parse_mxfp4({"quant_method": "mxfp4", name: value})
    words = f"quantization method 'mxfp4' with {name} {value!r}: not decoded"
    assert str(error.value) == words


@pytest.mark.parametrize("value", ["lm_head", [1], {}, ["("]])
def test_what_can_not_be_understood_is_named(value):
    with pytest.raises(CheckpointError, match="modules_to_not_convert") as error:
        parse_mxfp4({"quant_method": "mxfp4", "modules_to_not_convert": value})
    assert not isinstance(error.value, UnsupportedFormat)
