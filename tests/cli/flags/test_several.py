"""Several models on one command line."""

import pytest

from scoremode.cli.flags.several import is_sweep
from scoremode.cli.main import command_parser
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
    args = command_parser("kld").parse_args(words)
    assert (args.model, *args.further_models) == models
    assert is_sweep(args) == (len(models) > 1)


def test_a_flag_that_there_is_not_is_refused_and_other_commands_take_one_model():
    with pytest.raises(UsageError, match="unrecognized arguments: b --none"):
        command_parser("kld").parse_args(["a", "b", "--none", "--reference", "r"])
    with pytest.raises(UsageError, match="unrecognized arguments: b"):
        command_parser("ppl").parse_args(["a", "b"])


def test_a_pattern_and_a_look_ahead_are_sweeps_and_a_file_of_that_name_is_not(tmp_path):
    parse = command_parser("kld").parse_args
    assert is_sweep(parse(["*.gguf", "--reference", "r"]))
    assert is_sweep(parse(["a", "--reference", "r", "--dry-run"]))
    (tmp_path / "[a].gguf").write_text("")
    assert not is_sweep(parse([f"{tmp_path}/[a].gguf", "--reference", "r"]))
    assert not is_sweep(parse(["--model", "a", "--reference", "r"]))
