"""Lists of modules as transformers matches them; each rule is held to it in fp8/test_config.py."""

import pytest
from transformers.quantizers.quantizers_utils import should_convert_module

from scoremode.errors import CheckpointError
from scoremode.schemes.fields import Fields
from scoremode.schemes.not_converted import NotConverted


def test_gpt_oss_star_is_any_layer():
    keys = ["model.layers.*.self_attn", "model.layers.*.mlp.router"]
    names = NotConverted(tuple(keys))
    for module in ("model.layers.17.self_attn", "model.layers.1.mlp.router"):
        assert names.name(module) and not should_convert_module(module, keys)
    for module in ("model.layers.17.mlp.experts", "model.layers.1.mlp.router_norm"):
        assert not names.name(module) and should_convert_module(module, keys)


def test_the_first_field_that_is_there():
    fields = Fields({"b": ["x"], "c": ["y"]}, "its top")
    assert NotConverted.of(fields, "a", "b", "c").names == ("x",)
    assert NotConverted.of(fields, "a").names == ()


def test_a_pattern_that_does_not_compile():
    with pytest.raises(CheckpointError, match="modules_to_not_convert"):
        NotConverted.of(Fields({"a": ["("]}, "its top"), "a")
