"""Every flag of a text with every source of one: it is used, or refused by a line that names both."""

import argparse
import json
from itertools import product

import pytest
from support import specs
from support.programs import error_of

import scoremode
from scoremode.checkpoint.model_files import resolve_local
from scoremode.cli.generate import _PROMPTS, Generate, _prompts
from scoremode.cli.main import main
from scoremode.cli.screen import shown
from scoremode.cli.text import NAMING, calibration_of, corpus_of, named_source
from scoremode.errors import ScoremodeError, UsageError
from scoremode.spec.text import CALIBRATIONS, KEPT, SOURCES, Calibration, Protocol

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


class Flags(Protocol, Calibration):
    """All that is asked of texts."""


def uses(source: str) -> set[str]:
    return {name for name, flag in Flags.flags.items() if source in (flag.sources or ())}


def parse(words: list[str]) -> Flags:
    return specs.given(Flags, *words)


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
        monkeypatch.setattr(f"scoremode.runs.replies.prompts_from_{name}", reader)
    files = {"TEXT": "t.txt", "ROWS": "rows.jsonl", "CHATS": "chats.jsonl"}
    return lambda words: [str(tmp_path / files[w]) if w in files else w for w in words]


def outcome(spec, read) -> str | None:
    """The line that refuses the flags, None where the text was read."""
    with shown(hidden=True) as session:
        try:
            read(spec, session)
        except Reached:
            return None
        except UsageError as error:
            return str(error)
    raise AssertionError("nothing was read")


def test_every_flag_of_a_text_has_its_place():
    """A new one fails here until it says which sources use it."""
    placed = {name for name, flag in Protocol.flags.items() if flag.sources}
    assert Protocol.flags.keys() == {*NAMING, *OF_ALL, *placed}
    assert placed == VALUES.keys() and not placed & {*NAMING, *OF_ALL}
    assert set(SOURCES) == {*WORDS, KEPT}
    assert all(frozenset(SOURCES) >= Protocol.flags[name].sources for name in placed)


@pytest.mark.parametrize("source", WORDS)
def test_a_flag_is_used_or_refused_by_a_line_that_names_both(source, reached):
    words = reached(WORDS[source])
    assert named_source(parse(words)) == source
    assert outcome(parse(words), corpus_of) is None
    for name, value in VALUES.items():
        flag = Flags.flags[name].spelled
        line = outcome(parse([*words, flag, value]), corpus_of)
        if name in uses(source):
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
def test_a_calibration_texts_flags_too(source, words, reached):
    assert source in CALIBRATIONS
    for name in Calibration.flags.keys() - {"calibration"}:
        flag = Flags.flags[name].spelled
        args = parse([*reached(words), flag, "x"])
        line = outcome(args, calibration_of)
        if name in uses(source):
            assert line is None
        else:
            assert line and line.startswith(f"{flag} x: changes nothing with ")
            assert (args.calibration or source) in line


def test_prompts_flags_too(reached):
    for source, flag in product(_PROMPTS, ("--dataset-config", "--split")):
        prompts = "org/set" if source.endswith("hub") else "p.jsonl"
        spec = specs.given(Generate, "m", "--prompts", prompts, flag, "x")
        line = outcome(spec, lambda spec, session: _prompts(spec, spec.prompts, session))
        assert (line is None) == source.endswith("hub")
        assert line is None or f"{flag} x: changes nothing with {source}" in line


def test_two_texts_are_refused_but_a_named_ones_copy(reached):
    """A data set's name beside a local file of it would change nothing."""
    flags = {"--text": "a", "-f": "TEXT", "--dataset-file": "ROWS", "--dataset": "org/set",
             "--conversations": "CHATS", "--preset": "mbpp"}  # fmt: skip
    for one, other in product(flags, flags):
        if one >= other:
            continue
        args = parse(reached([one, flags[one], other, flags[other]]))
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
    assert line in error_of(err) and not (tmp_path / "runs").exists()


def test_keywords_and_a_sweeps_keys_are_refused_alike(demo, tmp_path, capsys):
    model, line = str(demo / "model"), "--split train: changes nothing with -f; it is for --dataset"
    text, keyword = (
        demo / "heldout.txt",
        "split='train': changes nothing with file; it is for dataset",
    )
    with pytest.raises(ScoremodeError, match=keyword):
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
    harness = argparse.Namespace(corpus=str), [resolve_local(demo / "model")]
    monkeypatch.setattr("scoremode.cli.tasks.Tasks._harness", lambda _: harness)
    places = {"M": str(demo / "model"), "T": str(demo / "heldout.txt")}
    words = [places.get(word, word) for word in argv]
    assert main([*words, "--device", "cpu", "-o", str(tmp_path / "runs")]) == 2
    assert line in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_a_file_s_name_is_not_scored_as_a_text(demo, tmp_path, monkeypatch, capsys):
    """Nine letters would be, in the place of a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wiki.raw").write_text("a b c")
    assert main(["plan", str(demo / "model"), "--text", "wiki.raw"]) == 2
    assert "--text wiki.raw: is a file: give it with -f wiki.raw" in error_of(
        capsys.readouterr().err
    )
