"""--preset, --list-presets and --seed as a user types them."""

import json

import pytest
from support import specs
from support.programs import error_of
from support.records import typed

from scoremode.cli.main import main
from scoremode.cli.screen import shown
from scoremode.cli.text import _are_chats, corpus_of, protocol_of
from scoremode.errors import UsageError
from scoremode.results.audit.findings import Findings
from scoremode.results.folders.store import find_runs, read_record
from scoremode.runs.check.inputs import Sources
from scoremode.runs.check.text import audited_plan
from scoremode.spec.text import Protocol
from scoremode.text.presets import TEXTS


def given(*flags: str) -> Protocol:
    return specs.given(Protocol, *flags)


@pytest.fixture(scope="module")
def rows(demo, tmp_path_factory):
    """A local copy of C4's rows, made of the demo's text."""
    words = (demo / "heldout.txt").read_text(encoding="utf-8").split()
    lines = [json.dumps({"text": " ".join(words[i : i + 20])}) for i in range(1100)]
    file = tmp_path_factory.mktemp("rows") / "c4.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def test_the_list_names_every_text(capsys):
    assert main(["ppl", "--list-presets"]) == 0
    out = capsys.readouterr().out
    for text in TEXTS.values():
        assert text.name in out and text.what in out and text.licence in out
        assert f"{text.repo}@{text.revision[:12]}" in out


def test_chats_are_scored_by_the_protocol_of_chats():
    assert _are_chats(given("--preset", "smoltalk")) and not _are_chats(
        given("--preset", "c4-gptq")
    )
    assert protocol_of(given("--preset", "smoltalk", "--score", "all")).name == "chat+scored=all"
    assert protocol_of(given("--preset", "mbpp")).name == "score-mode"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--preset", "c5"], "--preset c5: no text has that name: one of wikitext-2"),
        (
            ["--preset", "smoltalk", "--skip-bad-rows", "-1"],
            "--skip-bad-rows -1: must be at least 0",
        ),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(flags, words):
    with shown(hidden=True) as session, pytest.raises(UsageError, match=words):
        corpus_of(given(*flags), session)


def test_rows_drawn_are_recorded_and_audited(demo, rows, tmp_path, capsys):
    model, out = str(demo / "model"), str(tmp_path / "runs")
    argv = ["ppl", model, "--preset", "c4-gptq", "--dataset-file", str(rows), "--num-samples", "9",
            "-c", "64", "--seed", "5", "-o", out]  # fmt: skip
    assert main(argv) == 0
    assert "c4-gptq, 9 of 1100 rows drawn by seed 5, " in capsys.readouterr().out
    ((folder, _),) = find_runs(tmp_path / "runs")
    record = read_record(folder)
    corpus = record["corpus"]
    assert (corpus["preset"], corpus["separator"], corpus["name"]) == ("c4-gptq", " ", "c4-gptq")
    assert (corpus["rows"], corpus["row_limit"], corpus["row_seed"]) == (1100, 9, 5)

    def wrong(change: dict, *files) -> set[str]:
        findings = Findings()
        held = {**record, "corpus": corpus | change}
        audited_plan(typed(held), Sources(tokenizer=model, files=files), findings)
        return {f"{f.part} {f.name}" for f in findings.found if f.status == "wrong"}

    assert wrong({}) == wrong({}, rows) == set()
    assert "text sha256" in wrong({"row_seed": 6})
    assert "text sha256" in wrong({"row_limit": 8})
    # A run of the first nine is another one.
    first = [word for word in argv if word not in ("--seed", "5")]
    assert main(first) == 0
    assert "c4-gptq, first 9 of 1100 rows, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--text", "a b", "--seed", "3", "--num-samples", "2"],
            "--num-samples 2: changes nothing with --text",
        ),
        (["--text", "a b", "--seed", "3"], "--seed 3: draws what is asked for by --num-samples"),
        (
            ["--dataset-file", "no.jsonl", "--seed", "-3", "--num-samples", "2"],
            "--seed -3: must be at least 0",
        ),
    ],
)
@pytest.mark.parametrize("command", ["ppl", "plan"])
def test_a_seed_without_rows_is_refused(command, flags, words, demo, capsys):
    assert main([command, str(demo / "model"), *flags]) == 2
    err = capsys.readouterr().err
    assert words in error_of(err)


def test_a_rule_to_stop_by_has_the_seed_for_its_windows(demo, rows, tmp_path):
    argv = ["ppl", str(demo / "model"), "--dataset-file", str(rows), "--num-samples", "30", "-c", "32",
            "--stop-when", "ppl ±90 %", "--seed", "3", "-o", str(tmp_path)]  # fmt: skip
    assert main(argv) == 0
    ((folder, _),) = find_runs(tmp_path)
    record = read_record(folder)
    assert record["protocol"]["seed"] == 3 and "row_seed" not in record["corpus"]


def test_a_kept_reference_has_its_rows(demo, rows, tmp_path, capsys):
    model, kept = str(demo / "model"), str(tmp_path / "kept")
    drawn = ["--num-samples", "6", "--seed", "2"]
    text = ["--dataset-file", str(rows)]
    assert main(["reference", model, *text, *drawn, "-c", "64", "-o", kept]) == 0
    kld = ["kld", model, "--reference", kept, "-o", str(tmp_path / "runs")]
    for more in ([], drawn, [*text, *drawn]):
        assert main([*kld, *more]) == 0
    capsys.readouterr()
    assert main([*kld, "--num-samples", "6"]) == 2
    assert "was kept with 6 rows, drawn by seed 2, of its text" in capsys.readouterr().err
    assert main([*kld, *text, "--num-samples", "6"]) == 1
