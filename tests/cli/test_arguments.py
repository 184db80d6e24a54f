"""Flags of model, text and protocol, and what they mean together."""

import io

import pytest
from support import specs

from scoremode.cli.command import model_of, named_model, reads_model
from scoremode.cli.screen import Screen, Session, shown
from scoremode.cli.text import corpus_of, protocol_of
from scoremode.errors import CorpusError, UsageError
from scoremode.spec.run import Model
from scoremode.spec.text import Protocol
from scoremode.startup.clock import StageClock
from scoremode.text.protocol import PRESETS, preset


class Flags(Model, Protocol):
    pass


def given(*flags: str) -> Flags:
    return specs.given(Flags, *flags)


def corpus(*flags: str):
    with shown(hidden=True) as session:
        return corpus_of(given(*flags), session)


def test_a_model_is_named_once_or_twice_the_same():
    for flags in (["m"], ["--model", "m"], ["m", "--model", "m"]):
        assert model_of(given(*flags)) == named_model(given(*flags)) == "m"
    assert named_model(given()) is None
    with pytest.raises(UsageError, match=r"no model: give a folder, a \.gguf file or a hub id"):
        model_of(given())
    with pytest.raises(UsageError, match="two models: m and --model n"):
        named_model(given("m", "--model", "n"))


def test_a_data_sets_rows_are_of_one_field(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "body": "x"}\n{"text": "b", "body": "y"}\n')
    flags = ["--dataset-file", str(tmp_path / "rows.jsonl")]
    assert corpus(*flags).rows == ("a", "b")
    found = corpus(*flags, "--text-field", "body", "--num-samples", "1")
    assert found.rows[:1] == ("x",) and found.row_limit == 1
    with pytest.raises(CorpusError, match="none"):
        corpus(*flags, "--text-field", "none")


def test_a_second_text_of_a_kind_is_refused_and_files_are_one_text(tmp_path):
    with pytest.raises(UsageError, match="--text: is given twice"):
        given("--text", "a", "--text", "b")
    for name in ("1", "2"):
        (tmp_path / name).write_text(f"text {name}. ")
    found = corpus("-f", str(tmp_path / "2"), "-f", str(tmp_path / "1"))
    assert "".join(found.rows) == "text 2. text 1. "


def test_the_help_names_every_preset():
    assert Protocol.protocol.help.replace(" (default)", "").removeprefix(
        "use this protocol: "
    ).split(", ") == list(PRESETS)


def test_flags_override_the_preset_and_a_kept_protocol_unless_one_is_named():
    found = protocol_of(given("--protocol", "disjoint", "-c", "1k", "--limit", "3"))
    assert (found.context_length, found.max_windows) == (1024, 3)
    assert protocol_of(given()) == preset("score-mode").override()
    usual = preset("exl3")
    assert protocol_of(given("--stride", "7"), usual) == usual.override(stride=7)
    assert protocol_of(given("--protocol", "disjoint"), usual) == preset("disjoint").override()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("quants/*.gguf", "reading quants/*.gguf"),
        ("org/repo:*.gguf", "fetching org/repo:*.gguf from the hub"),
        ("org/name", "fetching org/name from the hub"),
        (".", "reading ."),
    ],
)
def test_only_a_model_of_the_hub_is_said_to_be_fetched(model, words):
    screen = Screen(io.StringIO(), hidden=True)
    reads_model(Session((), screen, StageClock()), model)
    assert screen.words["open"] == words
