"""Several models on one command line."""

import pytest
from support import specs

from scoremode.cli.measure import Kld, Ppl
from scoremode.errors import UsageError


@pytest.mark.parametrize(
    ("words", "models"),
    [
        (["a", "b", "--reference", "r"], ("a", "b")),
        (["a", "--reference", "r", "b", "c"], ("a", "b", "c")),
        (["--reference", "r", "a", "b"], ("a", "b")),
        (["--reference", "r", "a"], ("a",)),
    ],
)
def test_models_may_stand_anywhere(words, models):
    spec = specs.given(Kld, *words)
    assert (spec.model, *spec.further_models) == models
    assert spec.is_sweep == (len(models) > 1)


def test_a_flag_that_there_is_not_is_refused_and_other_commands_take_one_model():
    with pytest.raises(UsageError, match="unrecognized arguments: b --none"):
        specs.given(Kld, "a", "b", "--none", "--reference", "r")
    with pytest.raises(UsageError, match="unrecognized arguments: b"):
        specs.given(Ppl, "a", "b")


def test_a_pattern_and_a_look_ahead_are_sweeps_and_a_file_of_that_name_is_not(tmp_path):
    assert specs.given(Kld, "*.gguf", "--reference", "r").is_sweep
    assert specs.given(Kld, "a", "--reference", "r", "--dry-run").is_sweep
    (tmp_path / "[a].gguf").write_text("")
    assert not specs.given(Kld, f"{tmp_path}/[a].gguf", "--reference", "r").is_sweep
    assert not specs.given(Kld, "--model", "a", "--reference", "r").is_sweep
