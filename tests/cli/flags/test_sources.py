"""Every flag of a text with every source of one: it is used, or refused by a line that names both."""

import argparse
import json
from itertools import product

import pytest

import scoremode
from scoremode.checkpoint.model_files import resolve_local
from scoremode.cli.flags.arguments import add_text, corpus_of
from scoremode.cli.flags.calibration import CALIBRATIONS, add_calibration, calibration_of
from scoremode.cli.flags.parser import Parser, flag_of
from scoremode.cli.flags.sources import KEPT, NAMING, SOURCES, named_source
from scoremode.cli.generate import _PROMPTS, _prompts
from scoremode.cli.main import main, parsed_command
from scoremode.cli.process.screen import shown
from scoremode.errors import ScoremodeError, UsageError

DEFAULT = "the default text, WikiText-2"
# A source's words on the command line.
WORDS = {
    "--text": ["--text", "a b"],
    "-f": ["-f", "TEXT"],
    "--dataset-file": ["--dataset-file", "ROWS"],
    "--dataset": ["--dataset", "org/set"],
    DEFAULT: [],
    "--conversations FILE": ["--conversations", "CHATS"],
    "--conversations of the hub": ["--conversations", "org/chats"],
    "--preset": ["--preset", "mbpp"],
    "--preset with --dataset-file": ["--preset", "c4-gptq", "--dataset-file", "ROWS"],
    "--preset of conversations": ["--preset", "smoltalk"],
    "--preset of conversations with --dataset-file": [
        *("--preset", "smoltalk", "--dataset-file", "CHATS")
    ],
}
# A value of each flag that some source takes.
VALUES = {
    "bos": "always", "chat_date": "2025-02-03", "chat_template": "T", "chat_template_kwargs": "{}",
    "dataset_config": "en", "dataset_revision": "v2", "group_by": "file", "long": "skip",
    "num_samples": "2", "score": "all", "skip_bad_rows": "1", "split": "train", "stride": "7",
    "text_field": "body",
}  # fmt: skip
# What every text has.
OF_ALL = {"protocol", "context_length", "limit", "vocabulary", "list_presets"}


class Reached(Exception):
    """A reader was called: the flags were taken."""


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    parser = Parser(add_help=False)
    add_text(parser, parser.add_argument_group("most used"))
    add_calibration(parser)
    return parser


@pytest.fixture
def reached(monkeypatch, tmp_path):
    """Replaces what reads files and the hub, and returns the words with files in them."""

    def reader(*_, **__):
        raise Reached

    for place in (
        *("corpus.from_string", "corpus.from_dataset_file", "hub.from_hub", "presets.load_text"),
        *("corpus.from_files", "calibration.calibration_of_file"),
        *("calibration.calibration_of_hub", "conversations.corpus.from_conversations_file"),
        "conversations.corpus.from_conversations_hub",
    ):
        monkeypatch.setattr(f"scoremode.text.{place}", reader)
    for name in ("file", "hub"):
        monkeypatch.setattr(f"scoremode.runs.generation.replies.prompts_from_{name}", reader)
    files = {"TEXT": "t.txt", "ROWS": "rows.jsonl", "CHATS": "chats.jsonl"}
    return lambda words: [str(tmp_path / files[w]) if w in files else w for w in words]


def outcome(args: argparse.Namespace, read) -> str | None:
    """The line that refuses the flags, None where the text was read."""
    with shown(args, hidden=True):
        try:
            read(args)
        except Reached:
            return None
        except UsageError as error:
            return str(error)
    raise AssertionError("nothing was read")


def test_every_flag_of_a_text_has_its_place(parser):
    """A new one fails here until the table says which sources use it."""
    groups = {a.dest for a in parser._actions if not a.dest.startswith("calibration")}
    placed = frozenset().union(*SOURCES.values())
    assert groups == {*NAMING, *OF_ALL, *placed}
    assert placed == VALUES.keys() and not placed & {*NAMING, *OF_ALL}
    assert SOURCES.keys() == {*WORDS, KEPT}


@pytest.mark.parametrize("source", WORDS)
def test_a_flag_is_used_or_refused_by_a_line_that_names_both(source, parser, reached):
    words = reached(WORDS[source])
    assert named_source(parser.parse_args(words)) == source
    assert outcome(parser.parse_args(words), corpus_of) is None
    for name, value in VALUES.items():
        flag = flag_of(name)
        line = outcome(parser.parse_args([*words, flag, value]), corpus_of)
        if name in SOURCES[source]:
            assert line is None, (flag, line)
        else:
            assert line and line.startswith(flag) and f"changes nothing with {source}; " in line
            assert "it is for -" in line


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("no calibration text", []),
        ("--calibration TEXT", ["--calibration", "TEXT"]),
        ("--calibration ROWS", ["--calibration", "ROWS"]),
        ("--calibration of the hub", ["--calibration", "org/set"]),
    ],
)
def test_a_calibration_texts_flags_too(source, words, parser, reached):
    assert source in CALIBRATIONS
    for action in parser._actions:
        if not action.dest.startswith("calibration_"):
            continue
        flag = flag_of(action.dest)
        args = parser.parse_args([*reached(words), flag, "x"])
        line = outcome(args, calibration_of)
        if action.dest in CALIBRATIONS[source]:
            assert line is None
        else:
            assert line and line.startswith(f"{flag} x: changes nothing with ")
            assert (args.calibration or source) in line


def test_prompts_flags_too(reached):
    for (source, names), flag in product(_PROMPTS.items(), ("dataset_config", "split")):
        prompts = "org/set" if names else "p.jsonl"
        words = ["generate", "m", "--prompts", prompts, flag_of(flag), "x"]
        line = outcome(parsed_command(words), _prompts)
        assert (line is None) == (flag in names)
        assert line is None or f"{flag_of(flag)} x: changes nothing with {source}" in line


def test_two_texts_are_refused_but_a_named_ones_copy(parser, reached):
    """A data set's name beside a local file of it would change nothing."""
    flags = {"--text": "a", "-f": "TEXT", "--dataset-file": "ROWS", "--dataset": "org/set",
             "--conversations": "CHATS", "--preset": "mbpp"}  # fmt: skip
    for one, other in product(flags, flags):
        if one >= other:
            continue
        args = parser.parse_args(reached([one, flags[one], other, flags[other]]))
        line = outcome(args, corpus_of)
        if {one, other} == {"--dataset-file", "--preset"}:
            assert line is None
        else:
            assert line and line.startswith("several texts: ") and one in line and other in line


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--bos", "always"], "--bos always: changes nothing with --conversations FILE"),
        (["--stride", "64"], "--stride 64: changes nothing with --conversations FILE"),
    ],
)
def test_conversations_have_no_bos_but_their_templates(flags, line, demo, tmp_path, capsys):
    """It would be another protocol's name for the same windows."""
    chats = tmp_path / "chats.jsonl"
    message = {"role": "user", "content": "a"}
    chats.write_text(json.dumps({"messages": [message, message | {"role": "assistant"}]}))
    argv = ["ppl", str(demo / "model"), "--conversations", str(chats), *flags]
    assert main([*argv, "-o", str(tmp_path / "runs")]) == 2
    err = capsys.readouterr().err
    assert line in err and err.count("\n") == 1 and not (tmp_path / "runs").exists()


def test_keywords_and_a_sweeps_keys_are_refused_alike(demo, tmp_path, capsys):
    model, line = str(demo / "model"), "--split train: changes nothing with -f; it is for --dataset"
    text = demo / "heldout.txt"
    with pytest.raises(ScoremodeError, match=line):
        scoremode.measure(model, file=text, split="train", output=tmp_path / "runs", quiet=True)
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(
        f'base = "{model}"\nmodels = ["{model}"]\ntexts = [{{file = "{text}", split = "train"}}]\n'
    )
    assert main(["sweep", str(sweep)]) == 2
    assert line in capsys.readouterr().err and list(tmp_path.iterdir()) == [sweep]


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (
            ["kld", "M", "--reference", "M", "-f", "T", "--reference-revision", "v1"],
            "--reference-revision v1: changes nothing, since ",
        ),
        (
            ["tasks", "M", "--tasks", "a", "--reference-revision", "v1"],
            "--reference-revision v1: changes nothing, since there is no --reference",
        ),
        (
            ["attribute", "M", "--reference", "M", "-f", "T", "--budget", "4", "--alone"],
            "--alone: changes nothing of a recipe",
        ),
    ],
)
def test_other_flags_that_change_nothing(argv, line, demo, tmp_path, capsys, monkeypatch):
    tasks = argparse.Namespace(corpus=str), [resolve_local(demo / "model")]
    monkeypatch.setattr("scoremode.cli.tasks._harness", lambda _: tasks)
    places = {"M": str(demo / "model"), "T": str(demo / "heldout.txt")}
    words = [places.get(word, word) for word in argv]
    assert main([*words, "--device", "cpu", "-o", str(tmp_path / "runs")]) == 2
    assert line in capsys.readouterr().err and not (tmp_path / "runs").exists()
