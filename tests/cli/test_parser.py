"""Flags by property: for every flag of every command, a value that can't be is one line."""

import argparse
import re
from typing import Any

import pytest
from support.programs import error_of, run

from scoremode.cli import main as commands
from scoremode.cli.main import main
from scoremode.errors import UsageError
from scoremode.spec.engine import Engine
from scoremode.spec.flag import check_least
from scoremode.spec.text import names_file
from scoremode.spec.values import bytes_of, finite, probability_of, tokens_of, whole

LONG = "x" * 5000
ABSURD = {
    whole: [
        "99999999999999999999",
        "-99999999999999999999",
        "2147483648",
        "",
        "x",
        "1e3",
        "9" * 5000,
    ],
    finite: ["nan", "inf", "-inf", "1e999", "", "x", LONG],
}


def parsers() -> dict[str, argparse.ArgumentParser]:
    return {name: commands.command_parser(name) for name in commands.COMMANDS}


def flags(*, kinds: tuple = (whole, finite)) -> list[tuple[str, str, Any]]:
    return [
        (name, flag, action.type)
        for name, parser in parsers().items()
        for action in parser._actions
        for flag in action.option_strings
        if action.type in kinds and action.choices is None
    ]


def declared() -> list[tuple[str, str, Any]]:
    """Each flag with one command that has it: the others share its declaration."""
    return [(name, *flag) for flag, name in {each[1:]: each[0] for each in flags()}.items()]


def refused(capsys, *arguments: str, codes: tuple[int, ...] = (1, 2)) -> str:
    code = main(arguments)
    out, err = capsys.readouterr()
    assert code in codes and out == "", (arguments, code, out, err)
    line = error_of(err)
    assert "SCOREMODE_DEBUG" not in line and len(line) < 1300, line
    return line


def test_there_are_flags_to_try():
    assert len(flags()) > 40 and len(parsers()) == len(commands.COMMANDS)


@pytest.mark.parametrize(("name", "flag", "kind"), declared())
def test_a_number_that_is_none_or_too_large_is_refused_by_its_flag(name, flag, kind, capsys):
    for value in ABSURD[kind]:
        words = [f"{flag}={value}"] if flag.startswith("--") else [flag, value]
        assert flag in refused(capsys, name, *words, codes=(2,))


@pytest.mark.parametrize(
    ("name", "flag", "kind"),
    # These make their request as ppl does.
    [each for each in flags(kinds=(whole,)) if each[0] not in ("kld", "reference")],
)
def test_a_count_below_one_is_refused_before_a_model_is_loaded(
    name, flag, kind, demo, capsys, tmp_path, monkeypatch
):
    def load(*_):
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("scoremode.engines.torch.engine.build_engine", load)
    arguments = [name, str(demo / "model")]
    arguments += ["-f", str(demo / "heldout.txt"), "-c", "64", "--device", "cpu"]
    if name == "kld":
        arguments += ["--reference", str(demo / "model")]
    if name != "plan" and name != "verify":
        arguments += ["-o", str(tmp_path / "runs")]
    if name == "plan":
        arguments = arguments[:-2]
    if flag == "--num-samples":
        (tmp_path / "rows.jsonl").write_text('{"text": "a b"}\n' * 9)
        at = arguments.index("-f")
        arguments[at : at + 2] = ["--dataset-file", str(tmp_path / "rows.jsonl")]
    # 0 is a seed.
    for value in ["0"] * (flag != "--seed") + ["-1", "-2147483647"]:
        refused(capsys, *arguments, flag, value)
        assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", sorted(parsers()))
def test_a_name_that_no_file_can_have_is_one_line(name, demo, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    model, text = str(demo / "model"), ["--text", "a b"]
    tried = {
        "compare": [[LONG, LONG]],
        "demo": [["-o", LONG]],
        "inspect": [[LONG]],
    }.get(name)
    base = ["--reference", model] if name == "kld" else []
    others = [["-f", LONG], ["--dataset-file", LONG], [*text, "--tokenizer", LONG]]
    for arguments in tried or [[LONG, *text, *base], *([model, *o, *base] for o in others)]:
        refused(capsys, name, *arguments)


def test_an_error_of_the_parser_escapes_what_it_was_given(capsys):
    assert "\\x1b[31m" in refused(capsys, "plan", "--bos", "\x1b[31m")


@pytest.mark.parametrize(
    ("text", "tokens"), [("2048", 2048), ("32k", 32768), ("8K", 8192), ("128k", 131072), ("-1", -1)]
)
def test_lengths_may_be_in_thousands(text, tokens):
    assert tokens_of(text) == tokens


@pytest.mark.parametrize(
    "text", ["k", "1.5k", "32kb", "32 k k", "", "١k", "1e3", "9" * 20, "9999999k", "2M"]
)
def test_what_is_no_length(text, demo, capsys):
    for flag in ("-c", "--stride"):
        code, out, err = run(capsys, "plan", str(demo / "model"), "--text", "a b", flag, text)
        assert (code, out) == (2, "") and "Traceback" not in err and repr(text)[1:-1] in err


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 << 30),
        ("500MB", 500_000_000),
        ("1e9", 10**9),
        ("1.5k", 1500),
        (" 2 mib ", 2 << 20),
    ],
)
def test_sizes_have_binary_and_decimal_units(text, size):
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["lots", "", "GiB", "-1", "1e999", "1.2.3", "0", "0.5", "8XiB"])
def test_what_is_no_size(text):
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(repr(text))):
        bytes_of(text)


def test_a_flag_below_its_least_is_named_as_it_is_typed():
    spec = Engine(max_num_batched_tokens=0)
    check_least(0, spec, "batch_size", "max_num_batched_tokens")
    with pytest.raises(UsageError, match=r"^--max-num-batched-tokens 0: must be at least 1$"):
        check_least(1, spec, "batch_size", "max_num_batched_tokens")


@pytest.mark.parametrize(
    ("text", "value"), [("0.9", 0.9), ("50%", 0.5), ("0", 0.0), ("99.5%", 0.995)]
)
def test_probabilities_are_shares_below_1(text, value):
    assert probability_of(text) == value


@pytest.mark.parametrize("text", ["1", "100%", "-0.1", "nan", "inf", "", "x", "%"])
def test_anything_else_is_no_probability(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a probability below 1"):
        probability_of(text)


@pytest.mark.parametrize(
    "name",
    ["teknium/OpenHermes-2.5", "Magpie-Align/Magpie-Llama-3.1-Pro-300K", "allenai/c4", "wikitext"],
)
def test_a_version_at_the_end_of_a_name_is_no_suffix(name, tmp_path, monkeypatch):
    assert not names_file(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir(parents=True)
    assert names_file(name)


@pytest.mark.parametrize(
    "name", ["none.jsonl", "a/none.txt", "./none", "/none", "~/none", "a.b.gz"]
)
def test_what_is_a_file_though_it_is_not_here(name):
    assert names_file(name)
