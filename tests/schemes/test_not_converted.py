"""Lists of modules as transformers matches them."""

import re

import pytest
import transformers
from packaging.version import Version
from transformers.quantizers.quantizers_utils import should_convert_module

from scoremode.errors import CheckpointError
from scoremode.schemes.fields import Fields
from scoremode.schemes.patterns import NotConverted

NAMES = ["model.layers.1", "lm_head", "proj", r"model\.layers\.[23]\.mlp", "layers.1.", "visual.*"]
MODULES = [
    "lm_head", "model.lm_head", "lm_head_2", "model.layers.1.mlp.up_proj", "model.layers.11.mlp",
    "model.layers.2.mlp.gate", "model.layers.2.mlp_gate", "visual.blocks.0", "model.visual", "",
    "layers.1.up", "layers.11.up", "layers.1",
]  # fmt: skip

as_in_5_23 = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.23"),
    reason="transformers' rule is that of 5.23: 5.17's takes layers.11 for one in layers.1",
)


@as_in_5_23
@pytest.mark.parametrize("name", NAMES)
def test_names_match_as_in_transformers(name):
    found = NotConverted((name,))
    for module in MODULES:
        assert found.name(module) != should_convert_module(module, [name]), (name, module)


@as_in_5_23
def test_any_of_a_list():
    found = NotConverted(tuple(NAMES))
    assert [m for m in MODULES if found.name(m)] == [
        m for m in MODULES if not should_convert_module(m, NAMES)
    ]
    assert not NotConverted(()).name("lm_head")


def test_what_is_spared():
    """More than is named: what older releases named too, and other beginnings."""
    found = NotConverted((*NAMES, "temporal", "language_model.model.layers.7.mlp"))
    assert all(found.spares(module) for module in MODULES if found.name(module))
    for module in ("model.layers.8.temporal.x", "model.language_model.layers.7.mlp.up"):
        assert found.spares(module) and not found.name(module)
    for module in ("model.layers.8.temporal_block", "model.layers.17.mlp.up"):
        assert not found.spares(module)


@as_in_5_23
def test_gpt_oss_star_is_any_layer():
    keys = ["model.layers.*.self_attn", "model.layers.*.mlp.router"]
    names = NotConverted(tuple(keys))
    for module in ("model.layers.17.self_attn", "model.layers.1.mlp.router"):
        assert names.name(module) and not should_convert_module(module, keys)
    for module in ("model.layers.17.mlp.experts", "model.layers.1.mlp.router_norm"):
        assert not names.name(module) and should_convert_module(module, keys)


def test_the_first_field_that_is_there():
    fields = Fields({"b": ["x"], "c": ["y"]})
    assert NotConverted.of(fields, "a", "b", "c").names == ("x",)
    assert NotConverted.of(fields, "a").names == ()


def test_a_pattern_that_does_not_compile():
    with pytest.raises(CheckpointError, match=re.escape("skipped: pattern")):
        NotConverted.of(Fields({"skipped": ["("]}), "a", "skipped")
