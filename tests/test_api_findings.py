"""Python's functions whose result is no run: what `--json` prints, rows for a DataFrame, a table."""

import csv
import inspect
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from support.comparisons import made, overlapping
from support.run_folders import CONTEXT, write_run

import scoremode
from scoremode.cli.attribute import Attribute
from scoremode.cli.audit import Check, Verify
from scoremode.cli.finished import Compare, Merge, Status
from scoremode.cli.inspect import Inspect
from scoremode.cli.main import main
from scoremode.cli.measure import Plan
from scoremode.cli.tasks import Tasks
from scoremode.demo.quantize import VARIANTS, quantize_folder

PLACES = overlapping(9000, CONTEXT, 64)
# Of a command line alone.
_NOT_KEYWORDS = {
    "model",
    "model_flag",
    "form",
    "verbose",
    "list_presets",
    "devices",
    "runs",
    "junit",
}
_VARIES = {"command", "created", "seconds", "sha256", "peak_bytes"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    return [
        write_run(home / name, made(**PLACES, noise=noise), model=model)
        for name, noise, model in (("one", 0.4, "hub:o/<b>one</b>@1234567"), ("two", 0.1, "two"))
    ]


@pytest.fixture(scope="module")
def quant(demo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quant") / "W4A16"
    quantize_folder(demo / "model", folder, VARIANTS[1])
    return folder


def text_of(demo):
    return (demo / "heldout.txt").read_text()[:3000]


def printed(capsys, *words):
    """The JSON that a command line prints."""
    main([*map(str, words), "--json"])
    return json.loads(capsys.readouterr().out)


def same(one, other):
    if isinstance(one, dict):
        keys = one.keys() - _VARIES
        assert keys == other.keys() - _VARIES
        return all(same(one[key], other[key]) for key in keys)
    return one == other


@pytest.mark.parametrize(
    ("function", "command", "own"),
    [
        (scoremode.attribute, Attribute, {"windows"}),
        (scoremode.tasks, Tasks, {"margin"}),
        (scoremode.plan, Plan, set()),
        (scoremode.inspect, Inspect, set()),
        (scoremode.verify, Verify, set()),
        (scoremode.check, Check, set()),
        (scoremode.status, Status, {"watch"}),
        (scoremode.compare, Compare, {"groups", "output"}),
        (scoremode.merge, Merge, {"margin"}),
    ],
)
def test_every_flag_is_a_keyword_and_every_keyword_a_flag(function, command, own):
    """`own`: what the result has anyway."""
    signature = inspect.signature(function)
    keywords = signature.parameters.keys() - {"run"}
    flags = command.flags.keys() - own - _NOT_KEYWORDS
    assert flags <= keywords <= flags | {"quiet", "model", "runs"}
    for name in keywords:
        assert signature.parameters[name].annotation is not inspect.Parameter.empty, name
    assert function.__doc__ and "Raises" in function.__doc__


def test_plan_and_inspect_are_the_command_lines(demo, quant, capsys):
    given = {"protocol": "disjoint", "context_length": 64, "text": text_of(demo)}
    flags = ["--protocol", "disjoint", "-c", 64, "--text", text_of(demo)]
    plan = scoremode.plan(demo / "model", quiet=True, **given)
    assert capsys.readouterr() == ("", "")
    assert same(plan.document, printed(capsys, "plan", demo / "model", *flags))
    assert plan.rows[0]["windows"] == plan["plan"]["windows"] > 1
    assert str(plan).startswith("protocol") and repr(plan) == str(plan)
    with_tokenizer = scoremode.plan(None, tokenizer=demo / "model", quiet=True, **given)
    assert with_tokenizer["plan"]["tokens"] == plan["plan"]["tokens"]
    found = scoremode.inspect(quant, device="cpu", quiet=True)
    assert same(found.document, printed(capsys, "inspect", quant, "--device", "cpu"))
    assert [row["format"] for row in found.rows] == list(found["formats"])
    assert found["runs"] == {"possible": True, "reason": None}
    config = scoremode.inspect(None, config=str(quant / "config.json"), device="cpu", quiet=True)
    assert config["by_config"] is not None and len(config) == len(found)


def test_engines_are_verified(demo, quant, monkeypatch):
    # Processes of their own would import torch twice more.
    monkeypatch.setattr(
        "scoremode.runs.rescore.rescore.run_apart",
        lambda label, work, *args, receive: work(receive, *args),
    )
    found = scoremode.verify(
        quant, text=text_of(demo), context_length=64, windows=2, device="cpu", quiet=True
    )
    assert found["agree"] and found.rows[0]["difference"] == "torch - reference"
    assert "agrees" in str(found)


def test_parts_are_attributed_and_the_run_is_there(demo, quant, tmp_path, capsys):
    found = scoremode.attribute(
        quant, reference=demo / "model", text=text_of(demo), context_length=64, limit=2,
        by="layer", alone=True, output=tmp_path, device="cpu", quiet=True,
    )  # fmt: skip
    assert capsys.readouterr() == ("", "")
    alone = [row["alone_kld_nats"] for row in found.rows]
    assert len(alone) == 3 and alone == sorted(alone, reverse=True)
    assert found.run.folder.parent == tmp_path and found.run.record.plan.windows == 2
    written = json.loads((found.run.folder / "attribution-layer.json").read_text())
    assert written == found.document and str(found).startswith("W4A16: KLD ")


def test_rows_are_the_csv_in_full(runs, capsys):
    found = scoremode.compare(runs)
    assert main(["compare", *map(str, runs), "--format", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(lines) == len(found.rows) == 3
    for row, line in zip(found.rows, lines, strict=True):
        assert list(row) == list(line)
        for name, value in row.items():
            text = "" if value is None else str(int(value) if value is True else value)
            assert line[name] == ("0" if value is False else text)
    best = found.rows[1]
    assert best["rank"] == 1 and best["is_base"] is False
    assert best["kld_nats_low"] < best["kld_nats"] < best["kld_nats_high"]
    assert best["kld_nats"] == found["runs"][0]["kld"]["value"]
    assert list(found) == list(found.document)


def test_a_notebook_shows_the_table_with_nothing_of_a_name_as_markup(runs):
    run = scoremode.open_run(runs[0])
    for shown, text in ((run._repr_html_(), str(run)), *(
        (each._repr_html_(), str(each)) for each in (scoremode.compare(runs), scoremode.status(runs))
    )):  # fmt: skip
        tags = set(re.findall(r"</?(\w+)", shown))
        assert tags <= {"table", "thead", "tbody", "tr", "th", "td", "p", "b", "br"} | {"pre"}
        assert shown.count("<table ") == shown.count("</table>") >= 1
        assert "<b>one</b>" not in shown
        # Every word of the text is there, in its order.
        plain = re.sub(r"<[^>]*>", " ", shown)
        for word in re.findall(r"\d+\.\d{3,}", text):
            assert word in plain
    assert "color" not in run._repr_html_()


def test_states_are_a_list(runs, tmp_path):
    found = scoremode.status(runs)
    assert [state["state"] for state in found] == ["done", "done"] and len(found) == 2
    assert found[0]["folder"] == str(runs[0]) == found.rows[0]["folder"]
    alone = write_run(tmp_path / "alone", replace(made(**PLACES, noise=0.4), against=None))
    assert scoremode.status(str(tmp_path))[0]["folder"] == str(alone)


def test_a_sweep_has_its_rankings(demo, quant, tmp_path):
    lengths = [{"protocol": "disjoint", "context_length": n, "limit": 3} for n in (32, 64)]
    swept = scoremode.sweep(
        demo / "model", [quant], texts=[{"text": text_of(demo)}], protocols=lengths,
        output=tmp_path, device="cpu", quiet=True,
    )  # fmt: skip
    assert len(swept.rankings) == 2 and len(swept.runs) == 2 and not swept.failed
    assert [row["is_base"] for row in swept.rows] == [True, False] * 2
    assert len({row["protocol"] for row in swept.rows}) == 2
    assert str(swept).count("ranked by") == swept._repr_html_().count("ranked by") == 2
    by_number = [row["kld_nats"] for row in swept.rows if not row["is_base"]]
    assert np.allclose(by_number, [run.metrics["kld"].value for run in swept.runs])
