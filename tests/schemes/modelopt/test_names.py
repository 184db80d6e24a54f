"""Names and wildcards of ModelOpt's lists."""

from fnmatch import fnmatchcase

import pytest

from scoremode.errors import CheckpointError
from scoremode.schemes.modelopt_config import Names, around


def test_modules_around():
    assert list(around("a.b.c")) == ["a.b.c", "a.b", "a"]


MODULES = [
    *("lm_head", "layers.1.mlp.gate", "layers.1.mlp.gate_proj", "layers.1.self_attn.q_proj"),
    *("layers.11.mlp.up_proj", "layers.1.mlp.shared_expert.up_proj", "visual.blocks.0.qkv"),
    *("layers.1.mlp.shared_expert_gate", "mtp.layers.0.mlp.up_proj", "mtp.fc"),
]
PATTERNS = [
    *("lm_head", "layers.1*", "layers.1.*", "mtp*", "mtp.layers.0*", "*.mlp.shared_expert.*"),
    *("*gate", "*.self_attn.*", "layers.?.mlp.gate*", "layers.1[01].*", "*", "x*"),
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_as_fnmatch(pattern):
    names = Names([pattern, "nothing"], "here")
    assert [names.has(m) for m in MODULES] == [fnmatchcase(m, pattern) for m in MODULES]


def test_a_plain_name_is_of_all_below_it_and_of_nothing_beside_it():
    names = Names(["layers.1.mlp.gate", "vision_tower"], "here")
    assert names.has("layers.1.mlp.gate") and not names.has("layers.1.mlp.gate_proj")
    assert names.has("vision_tower.blocks.3.fc1") and not names.has("layers.1.vision_tower")


@pytest.mark.parametrize(
    "listed", ["model.language_model.layers.3*", "language_model.model.layers.3*"]
)
@pytest.mark.parametrize("module", ["model.layers.3.mlp", "model.language_model.layers.3.mlp"])
def test_beginnings_may_differ(listed, module):
    assert Names([listed], "here").has(module)
    assert not Names([listed], "here").has(module.replace("3", "4"))


def test_a_pattern_that_takes_for_ever(monkeypatch):
    names = Names(["*a" * 60 + "b"], "here")
    # fnmatch's own form of it never goes back.
    assert not names.has("a" * 5000)


def test_a_pattern_that_is_not_supported():
    with pytest.raises(CheckpointError, match=r"here: pattern .* is not supported"):
        Names(["?" * 3000], "here")
