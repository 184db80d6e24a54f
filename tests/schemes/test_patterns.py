import time
from contextlib import suppress

import pytest

from scoremode.errors import CheckpointError
from scoremode.schemes.patterns import PATIENCE, Patterns, is_one_of_layers, plain

NAME = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize(
    ("pattern", "rank"),
    [
        (NAME, 0),
        ("re:.*down_proj", 1),
        ("re:" + ".*" * 6 + "down_proj", 1),
        ("re:(model|language)(\\.[a-z0-9_]+)+", 1),
        ("re:(?=model)", 1),
        ("re:down", None),
        ("down_proj", None),
        ("re:(model\\.)+norm", None),
    ],
)
def test_quick_and_slow_patterns_match_alike(pattern, rank):
    assert Patterns([pattern], "ignore").rank(NAME) == rank


HOSTILE = [
    "re:(.|.)*=$",
    "re:(.+)+=$",
    "re:((a*)*)*!",
    "re:" + ".*" * 12 + "=$",
    "re:(.?){60}.{60}!",
]


@pytest.mark.parametrize("pattern", HOSTILE)
def test_a_pattern_never_takes_for_ever(pattern):
    """Every one of them would, with `re`, or with another engine's tricks left out."""
    patterns = Patterns([pattern], "ignore")
    begin = time.process_time()
    for i in range(50):
        with suppress(CheckpointError):
            assert patterns.rank(f"model.{'a' * 60}=b{i}") is None
    assert time.process_time() - begin < PATIENCE + 3


def test_a_pattern_that_takes_too_long_is_named():
    with pytest.raises(CheckpointError, match=r"ignore: pattern .* takes too long on model"):
        Patterns(["re:(.|.)*=$"], "ignore").rank("model." + "a" * 60 + "=b")


def test_long_names_are_matched_under_the_clock():
    patterns = Patterns(["re:.*a.*b.*c!"], "ignore")
    with pytest.raises(CheckpointError, match="takes too long"):
        patterns.rank("abc" * 100_000)


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj"),
        ("model.language_model.layers.0.mlp", "layers.0.mlp"),
        ("language_model.model.layers.0.mlp", "layers.0.mlp"),
        ("language_model.lm_head", "lm_head"),
        ("lm_head", "lm_head"),
        ("backbone.layers.0.mixer", "backbone.layers.0.mixer"),
        ("model", "model"),
        ("model*", "model*"),
    ],
)
def test_beginnings_that_do_not_count(name, rest):
    assert plain(name) == rest


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ("model.layers.3.mlp.up_proj", True),
        ("transformer.h.3.attn.c_proj", True),
        ("lm_head", False),
        ("model.decoder.project_in", False),
        ("model.layers.3.mlp.experts.4.up_proj", False),
    ],
)
def test_linears_of_layers(name, one):
    assert is_one_of_layers(name) is one


def test_names_with_other_beginnings():
    """Listed by the model's names, stored under those that it is saved with."""
    patterns = Patterns(["model.language_model.layers.0.mlp.up_proj", "lm_head"], "ignore")
    for module in ("layers.0.mlp.up_proj", "layers.0.mlp.gate_up_proj", "layers.10.mlp.up_proj"):
        found = [patterns.rank(f"{b}{module}") for b in ("model.", "language_model.model.", "")]
        assert found == [0 if module == "layers.0.mlp.up_proj" else None] * 3
    assert patterns.rank("language_model.lm_head") == 0
    assert patterns.rank("visual.layers.0.mlp.up_proj") is None
    # A part of what the list has fused.
    fused = Patterns(["language_model.model.layers.0.mlp.gate_up_proj"], "ignore")
    assert fused.rank("model.language_model.layers.0.mlp.up_proj") == 0


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("re:(", "is not a regular expression"),
        ("re:a{99999999999999999999}", "is not a regular expression"),
        ("re:.*(?i)q_proj", "is not a regular expression"),
        ("re:" + "(" * 900 + ")" * 900, "is not a regular expression"),
        ("re:" + "x" * 3000, "is not supported"),
        ("re:(?:foo){e<=2}", "is not supported"),
        ("re:[[:alpha:]]+", "is not supported"),
    ],
)
def test_patterns_that_are_refused(pattern, message):
    with pytest.raises(CheckpointError, match=message) as error:
        Patterns([pattern], "group g, targets")
    assert "group g, targets" in str(error.value) and len(str(error.value)) < 400


def test_lists_of_names_are_looked_up():
    """Tens of thousands of names against as many modules: no product of the two."""
    names = [f"model.layers.{i}.mlp.experts.{j}.up_proj" for i in range(60) for j in range(700)]
    begin = time.process_time()
    patterns = Patterns(names, "ignore")
    assert all(patterns.rank(name) == 0 for name in names)
    # A tenth of a second, however busy the machine is.
    assert time.process_time() - begin < 60
    assert patterns.has("Linear") is False and patterns.has(names[0])


def test_the_first_pattern_that_matches():
    patterns = Patterns(["re:a.*", "re:.*b$", "re:b+", "c"], "dynamic")
    assert [patterns.first(name) for name in ("ab", "xb", "bb", "b.c", "c")] == [0, 1, 1, 2, None]
    assert patterns.matches("b.c") and not patterns.matches("c")


def test_all_patterns_of_a_list_have_one_clock():
    """Each may end soon enough by itself: a hundred of them would take minutes."""
    patterns = Patterns([f"re:(.|.)*=$|{number}~" for number in range(100)], "dynamic")
    begin = time.process_time()
    for length in range(8, 40):
        with suppress(CheckpointError):
            patterns.first("model." + "a" * length + "=b")
    assert time.process_time() - begin < 2 * PATIENCE + 3
