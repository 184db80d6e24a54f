"""`quant_method: hqq`: what is read of it, and what is refused."""

import pytest
from support.families.hqq import config
from transformers.integrations.hqq import name_to_linear_tag

from scoremode.schemes.hqq import Parameters, parse_hqq, tag_of


def test_one_for_all():
    parsed = parse_hqq(config(3, 64, 0))
    assert parsed.of("model.layers.0.mlp.up_proj") == Parameters(3, 64, 0)
    assert parsed.skips("lm_head") and not parsed.skips("model.layers.0.mlp.up_proj")
    assert parsed.kv_cache is None and not parsed.claims("m")


def test_one_for_each_kind():
    by_kind = {"self_attn.q_proj": config(8)["quant_config"], "mlp.up_proj": None}
    parsed = parse_hqq({"quant_method": "hqq", "quant_config": by_kind})
    assert parsed.of("model.layers.5.self_attn.q_proj") == Parameters(8, 32, 1)
    assert parsed.of("model.layers.5.mlp.up_proj") is None and not parsed.skips("lm_head")


def test_what_is_claimed():
    parsed = parse_hqq(config() | {"skip_modules": ["lm_head", "mlp.gate"]})
    up = "layers.5.mlp.up_proj"
    for module in (f"model.{up}", f"language_model.model.{up}"):
        assert parsed.claims(module)
    left = ("lm_head", "language_model.lm_head", "model.layers.1.mlp.gate", "model.embed_tokens")
    assert not any(map(parsed.claims, left))
    assert not parsed.claims("language_model.model.layers.1.mlp.gate")
    # transformers 5 has them as one, and leaves them.
    assert not parsed.claims("model.layers.5.mlp.experts.3.up_proj")
    by_kind = {"self_attn.q_proj": config(8)["quant_config"], "mlp.up_proj": None}
    parsed = parse_hqq({"quant_method": "hqq", "quant_config": by_kind})
    assert parsed.claims("model.layers.5.self_attn.q_proj")
    assert not parsed.claims(f"model.{up}") and not parsed.claims("model.layers.5.self_attn.k_proj")


@pytest.mark.parametrize(
    "name",
    ["model.layers.31.self_attn.k_proj", "lm_head", "model.language_model.layers.0.mlp.1.up"],
)
def test_tags_are_transformers(name):
    assert tag_of(name) == name_to_linear_tag(name)
