"""`scoremode compare` as a user meets it: formats, files, exit codes."""

import json
import subprocess
import sys

import pytest
from support.comparisons import made, overlapping
from support.programs import error_of
from support.run_folders import CONTEXT, labels_of, write_run

from scoremode.cli.main import main

PLACES = overlapping(9000, CONTEXT, 64)
HOSTILE = "models/a|b\x1b[31m\u202e`*"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("runs")
    sources = {"one": (0.1, None), "two": (0.5, HOSTILE)}
    return [
        str(write_run(folder / name, made(**PLACES, noise=noise), model=model))
        for name, (noise, model) in sources.items()
    ]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["compare", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_table_has_what_a_reader_needs(runs, capsys):
    code, out, err = run(capsys, *reversed(runs))
    assert (code, err) == (0, "")
    for words in (
        *("ranked by", "mean KLD", "models/base", "made.txt", "PPL", "KLD p99"),
        *("top-1", "4.125", "against the next", "better", "×"),
    ):
        assert words in out
    lines = out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("one "))
    assert lines[first + 1].startswith("a|b")


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json"])
def test_no_format_lets_control_characters_through(form, runs, capsys):
    code, out, _ = run(capsys, *runs, "--format", form)
    assert code == 0
    assert all(c.isprintable() or c == "\n" for c in out)
    assert "\\x1b" in out or "\\u001b" in out


def test_json_has_every_number(runs, capsys):
    code, out, _ = run(capsys, *runs, "--format", "json")
    value = json.loads(out)
    assert code == 0 and value["schema"] == "scoremode.compare"
    assert value["command"][:2] == ["scoremode", "compare"]
    assert value["tests"][0]["ppl_ratio"]["ci95"]
    assert value["runs"][1]["source"] == HOSTILE


def test_a_file_is_written_whole_or_not_at_all(runs, capsys, tmp_path):
    target = tmp_path / "table.md"
    code, out, _ = run(capsys, *runs, "--format", "markdown", "-o", str(target))
    assert (code, out) == (0, "")
    assert target.read_text(encoding="utf-8") == run(capsys, *runs, "--format", "markdown")[1]
    assert [p.name for p in tmp_path.iterdir()] == ["table.md"]
    code, _, err = run(capsys, *runs, "-o", str(tmp_path / "none" / "table.md"))
    assert code == 1 and "cannot be written: No such file" in err


def test_few_blocks_say_why_there_is_no_interval(tmp_path, capsys):
    few = overlapping(200, CONTEXT, 64)
    folders = [str(write_run(tmp_path / f"{x}", made(**few, noise=x))) for x in (0.1, 0.2)]
    code, out, _ = run(capsys, *folders)
    assert code == 0 and "not known" in out
    assert "no interval  1 block of 1,024 tokens: an interval needs at least 8" in out


def test_refusals_are_one_line_with_an_exit_code(runs, capsys, tmp_path):
    code, out, err = run(capsys, runs[0], runs[0])
    assert (code, out) == (2, "")
    assert error_of(err).startswith("scoremode: error: the same run twice")
    other = write_run(tmp_path / "x", made(**PLACES), changes={"protocol.stride": 7})
    code, out, err = run(capsys, runs[0], str(other))
    assert (code, out) == (1, "")
    assert "protocol's stride 64 and 7" in error_of(err)


def test_torch_is_not_needed(runs):
    program = (
        "import sys; from scoremode.cli.main import main; code = main(sys.argv[1:]); "
        "assert not {'torch', 'transformers'} & set(sys.modules); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, "compare", *runs]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("output", "reason"), [(".", "Is a directory"), ("full", "No space left on device")]
)
def test_an_output_that_cannot_be_written_is_one_line(
    output, reason, runs, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").symlink_to("/dev/full")
    code, out, err = run(capsys, *runs, "-o", output)
    assert (code, out) == (1, "")
    assert err == f"scoremode: error: {output}: cannot be written: {reason}\n"
    assert (tmp_path / "full").is_symlink() and len(list(tmp_path.iterdir())) == 1


def test_groups_alone(tmp_path, capsys):
    folders = []
    for noise in (0.1, 0.5):
        scores = made(**PLACES, noise=noise)
        folders.append(str(write_run(tmp_path / f"{noise}", scores, extras=labels_of(scores))))
    code, out, _ = run(capsys, *folders, "--groups", "--format", "csv")
    head, *lines = out.splitlines()
    assert code == 0 and head.startswith("label,model,group,from") and len(lines) == 3 * 2
    code, out, _ = run(capsys, *folders)
    assert code == 0 and out.count("\ngroup ") == 3 and "ranked by" in out
    code, _, err = run(capsys, *map(str, [write_run(tmp_path / "x", made(**PLACES))]), "--groups")
    assert code == 2 and "none of the runs was measured with --group-by" in err
