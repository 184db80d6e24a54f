"""`scoremode demo` as a user meets it."""

import json
import shlex
import sys
from pathlib import Path

import pytest
from support.programs import run
from support.run_folders import scores_of, write_run

from scoremode.cli import demo as command
from scoremode.cli.main import parsed_command
from scoremode.demo import variants
from scoremode.demo.quantize import VARIANTS
from scoremode.report.terminal import table_text
from scoremode.results.folders.finished import load_run
from scoremode.runs.request import Result


@pytest.fixture
def few(monkeypatch):
    """The demo with three of its thirteen formats."""
    names = ("W8A16", "W4A16-g32", "W4A16-channel")
    monkeypatch.setattr(variants, "VARIANTS", [v for v in VARIANTS if v.name in names])


def test_an_interrupted_demo_goes_on_and_shows_an_order(few, capsys, tmp_path, monkeypatch):
    folder, measure = tmp_path / "demo", variants.measure

    def interrupted(request, **more):
        if "W4A16-g32" in request.model:
            raise KeyboardInterrupt
        return measure(request, **more)

    monkeypatch.setattr(variants, "measure", interrupted)
    code, out, err = run(capsys, "demo", "-o", str(folder))
    assert code == 130 and err == "scoremode: interrupted\n"
    assert [line.split()[0] for line in out.splitlines()[5:]] == ["dense", "W8A16"]
    # A kill while the model was written.
    (folder / "models" / "W4A16-g32" / "config.json").unlink()
    monkeypatch.setattr(variants, "measure", measure)
    code, out, err = run(capsys, "demo", "--json", "-o", str(folder))
    # Without a terminal it says nothing, nor does a library: transformers has bars of its own.
    assert code == 0 and err == ""
    records = json.loads(out)
    assert len(list((folder / "runs").iterdir())) == len(records) == 4
    ppl = {name: r["metrics"]["ppl"] for name, r in records.items()}
    assert ppl["dense"]["value"] < ppl["W4A16-g32"]["value"] < ppl["W4A16-channel"]["value"]
    assert abs(ppl["W8A16"]["value"] / ppl["dense"]["value"] - 1) < 0.002
    assert all(m["ci95"][0] < m["value"] < m["ci95"][1] for m in ppl.values())
    assert len({r["plan"]["sha256"] for r in records.values()}) == 1


@pytest.fixture
def made(few, tmp_path, monkeypatch):
    """Has a demo in `tmp_path` find made runs where its own would be; their records by name."""
    monkeypatch.chdir(tmp_path)
    results = {}

    def measured(_, folder):
        for name, noise in {"dense": 0.0, "W8A16": 0.02, "W4A16-g32": 0.3}.items():
            run = folder / "runs" / name
            write_run(run, scores_of(noise))
            results[name] = Result(run, load_run(run)[0])
            yield name, results[name]

    monkeypatch.setattr(command, "_measured", measured)
    return results


def test_the_table_grows_and_ends_with_the_report_and_commands_to_try(made, capsys, monkeypatch):
    pytest.importorskip("vl_convert")
    monkeypatch.setattr(sys, "argv", ["my env/bin/scoremode", "demo"])
    code, out, err = run(capsys, "demo")
    assert (code, err) == (0, "")
    intention, table, words, report, commands = out.split("\n\n")
    assert "in thirteen formats" in intention and "go to demo." in intention
    whole = table_text(variants.variants_data({n: r.whole for n, r in made.items()}))
    # Each line is printed before the next one is known, and none is wider than its columns.
    assert [line.split() for line in table.splitlines()] == [
        line.split() if set(line) != {"-"} else [table.splitlines()[1]]
        for line in whole.splitlines()
    ]
    assert len({len(line) for line in table.splitlines()}) == 1
    assert "targets of held-out CPython documentation" in words
    assert report == "report  demo/report.html" and "W4A16" in Path("demo/report.html").read_text()
    lines = [line.strip() for line in commands.splitlines() if line.startswith("  ")]
    assert len(lines) == 3
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "my env/bin/scoremode"
        parsed_command(arguments)
        # What these made runs are of was never quantized.
        paths = {word for word in arguments if word.startswith("demo/")}
        assert all(Path(path).exists() for path in paths - {"demo/models/W4A16-g32"})


def test_without_what_draws_charts_it_says_what_to_install(made, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    code, out, _ = run(capsys, "demo")
    assert code == 0 and "pip install 'scoremode[report]'" in out
    assert not Path("demo/report.html").exists()


@pytest.mark.parametrize("name", ["app.py", "models", "runs"])
def test_a_folder_of_something_else_stays_as_it_is(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo" / name).mkdir(parents=True)
    code, out, err = run(capsys, "demo")
    assert (code, out) == (1, "")
    assert err == (
        f"scoremode: error: demo: holds {name}, and is no demo's: name another folder with -o DIR\n"
    )
    assert [path.name for path in (tmp_path / "demo").iterdir()] == [name]
