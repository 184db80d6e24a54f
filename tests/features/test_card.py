"""`scoremode card` as a user meets it."""

import io
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from support.card_groups import BASE, made_run, two_groups
from support.programs import error_of

import scoremode
from scoremode.cli.card import groups_of
from scoremode.cli.main import main
from scoremode.report.card.content import BEGIN, END, card_block, results_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    two_groups(folder)
    return folder


def test_it_prints_the_block_and_python_returns_it(folder, capsys):
    assert main(["card", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(BEGIN) and out.endswith(f"{END}\n") and err == ""
    assert scoremode.card([folder]) == out
    assert scoremode.card([folder / "a", scoremode.open_run(folder / "b")]).count("| --- |") == 1


def test_it_is_written_twice_to_the_same_bytes(folder, tmp_path, capsys):
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    for _ in range(2):
        assert main(["card", str(folder), "--write", str(tmp_path), "--repo", "me/mine"]) == 0
        out, err = capsys.readouterr()
        assert out == "" and err.splitlines()[0] == f"scoremode: wrote {tmp_path / 'README.md'}"
        text = (tmp_path / "README.md").read_text()
        assert text.count(BEGIN) == 1 and ModelCard(text).data.license == "mit"
    results = ModelCard(text).data.eval_results
    assert {r.source_url.rpartition("/blob/main/")[2] for r in results} == {
        f"scoremode/{name}/record.json" for name in "abc"
    }
    assert (tmp_path / "scoremode" / "a" / "record.json").read_bytes() == (
        (folder / "a" / "record.json").read_bytes()
    )


def test_a_text_of_no_data_set_has_no_entries_and_that_is_said(folder, tmp_path, capsys):
    assert main(["card", str(folder / "a"), "--write", str(tmp_path)]) == 0
    assert "no .eval_results: the text is no data set on the hub" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["README.md"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def hub(monkeypatch) -> list:
    """Calls that would go to the hub."""
    sent: list = []
    monkeypatch.setattr(
        "scoremode.report.card.repository.remote_readme", lambda repo: ("# Mine\n", "c0")
    )
    monkeypatch.setattr(
        "scoremode.report.card.repository.open_request",
        lambda *args: sent.append(args) or "https://pr/1",
    )
    return sent


@pytest.mark.parametrize(
    ("answer", "code", "opened"), [("y\n", 0, 1), ("YES\n", 0, 1), ("n\n", 1, 0), ("", 1, 0)]
)
def test_it_asks_before_it_sends(answer, code, opened, folder, hub, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert main(["card", str(folder), "--push", "me/mine"]) == code
    out, err = capsys.readouterr()
    assert len(hub) == opened and "Open a pull request with these 5 files on me/mine? [y/N] " in out
    assert "+### Perplexity and KL divergence" in out
    assert ("nothing was sent" in err) == (not opened)
    if opened:
        repo, files, commit, _ = hub[0]
        assert (repo, commit) == ("me/mine", "c0") and "README.md" in files
        assert out.endswith("https://pr/1\n")


def test_with_yes_nobody_is_asked(folder, hub, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(["card", str(folder), "--push", "me/mine", "--yes"]) == 0
    assert len(hub) == 1 and "[y/N]" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--push", "me/mine"], "--push me/mine: there is no terminal to ask on: give --yes"),
        (["--push", "me/mine", "--write", "x", "--yes"], "--push and --write: give one of them"),
        (["--repo", "me/mine"], "--repo me/mine: needs --write DIR"),
        (["--yes"], "--yes: needs --push REPO"),
        (["--push", "../x", "--yes"], "../x: "),
    ],
)
def test_what_contradicts_itself_is_one_line(arguments, said, folder, hub, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(["card", str(folder), *arguments]) == 2
    out, err = capsys.readouterr()
    assert error_of(err).startswith(f"scoremode: error: {said}")
    assert (out, hub) == ("", [])


def test_runs_of_other_bases_and_plans_have_tables_of_their_own(tmp_path):
    other = {"reference.sha256": "2f" * 32}
    runs = [
        made_run(tmp_path / "a", 0.1, "models/a"),
        made_run(tmp_path / "b", 0.2, "models/b", **other),
        made_run(tmp_path / "c", 0.3, "models/c"),
        made_run(tmp_path / "d", 0.3, "models/d", **{"engine.vocabulary": 13}),
    ]
    groups = groups_of(runs)
    assert [[row["model"] for row in g.value["runs"]] for g in groups] == [["a", "c"], ["b"], ["d"]]


def test_the_base_s_own_run_is_a_row_and_nothing_of_it_is_published(tmp_path):
    """A demo, or a sweep, has one: its results belong to another repository."""
    base = made_run(
        tmp_path / "base",
        0.0,
        "hub:org/base@" + 40 * "b",
        **{"checkpoint.files": {"x": "1"}, "reference.checkpoint": BASE | {"files": {"x": "1"}}},
    )
    quant = made_run(
        tmp_path / "q", 0.3, "q", **{"reference.checkpoint": BASE | {"files": {"x": "1"}}}
    )
    (group,) = groups_of([base, quant])
    assert [row["is_base"] for row in group.value["runs"]] == [True, False]
    assert [command[2] for command in group.commands] == ["q"]
    assert {r.metric_name.rpartition(", ")[2] for r in results_of([group], {})} == {"q"}
    (row,) = (line for line in card_block([group]).splitlines() if "base (base)" in line)
    assert row.count("—") == 7
    (alone,) = groups_of([base])
    assert len(alone.commands) == 1 and len(results_of([alone], {})) == 5


def test_a_run_that_is_no_run_is_refused(tmp_path, capsys):
    assert main(["card", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
