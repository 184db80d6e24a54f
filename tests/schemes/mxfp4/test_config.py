"""`quant_method: mxfp4`: published configs, and what is refused of others."""

import json

import pytest

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
