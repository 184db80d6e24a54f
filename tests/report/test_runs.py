"""Runs as a table, whoever shows them."""

import csv
import io
import re

from support.run_folders import scores_of, write_run

from scoremode.report.document import data
from scoremode.report.rendering import document_markdown, table_csv
from scoremode.report.runs import foreseen_document, runs_table, status_document
from scoremode.report.terminal import document_text, table_text
from scoremode.results.comparison.ranking import base_row, run_row
from scoremode.results.folders.store import read_record
from scoremode.results.record.definition import read_document


def test_a_base_is_a_line_of_its_own(tmp_path):
    found = read_document(read_record(write_run(tmp_path / "one", scores_of(0.3))))
    base, record = base_row(found), found.document
    assert base is not None
    rows = [base, run_row(found, tmp_path / "one", "one") | {"rank": 1, "more": 7}]
    table = runs_table(rows, {"more": data("more")})
    _, _, first, second = table_text(table).splitlines()
    metrics = record["metrics"]
    assert first.split()[:2] == ["base", f"{metrics['ppl_base']['value']:.4f}"]
    assert " base " in first and f"{metrics['kld']['value']:.4g}" in second
    ours, theirs = csv.DictReader(io.StringIO(table_csv(table)))
    assert (ours["is_base"], ours["ppl_ratio"], ours["more"]) == ("1", "", "")
    assert float(theirs["kld_nats"]) == metrics["kld"]["value"] and theirs["more"] == "7"
    assert float(theirs["ppl_ratio_high"]) == metrics["ppl_ratio"]["ci95"][1]
    assert (theirs["rank"], theirs["size_gib"]) == ("1", "0.5")


RUNNING = {
    "folder": "runs/one", "state": "running", "label": "q4", "model": "models/q4",
    "reference": "base", "protocol": "disjoint", "text": "wiki", "windows": 1200,
    "of": 2383, "windows_per_second": 0.639,
    "seconds_left": 3073.4, "resume": None,
    "estimates": {"ppl": {"value": 55.5372, "ci95": [50.6, 60.7]},
                  "kld": {"value": 0.02, "ci95": None}},
}  # fmt: skip


def test_models_are_called_by_their_labels():
    models = [RUNNING | {"label": name, "model": f"m/{name}.gguf"} for name in ("Q4_K_M", "ours")]
    document = status_document(models)
    text, data = document_text(document), table_csv(document.data)
    assert " Q4_K_M " in text and " ours " in text and ".gguf" not in text
    assert ",ours,m/ours.gguf," in data


def test_a_line_for_each_run_and_what_is_to_be_said_below():
    killed = RUNNING | {"folder": "runs/two", "state": "killed", "seconds_left": None,
                        "resume": "scoremode ppl x --resume"}  # fmt: skip
    damaged = {"folder": "runs/\x1b[31mthree", "state": "damaged", "problem": "is cut"}
    text = document_text(status_document([RUNNING, killed, damaged]))
    said, _, *lines = text.splitlines()
    assert (
        said
        == "0 of 3 runs done, 1 running, 1 killed, 1 damaged; 51 min 13 s left for what is running"
    )
    assert lines[0].split() == [
        "run",
        "state",
        "model",
        "windows",
        "a",
        "second",
        "left",
        "PPL",
        "KLD",
    ]
    assert "1,200 of 2,383" in lines[2] and "51 min 13 s" in lines[2]
    assert "55.5372 ±9.3 %" in lines[2] and lines[2].endswith(" 0.02000")
    assert re.search(r"^two +goes on with: scoremode ppl x --resume$", text, re.MULTILINE)
    assert "is cut" in lines[-1] and "\x1b" not in text


def test_data_have_numbers_as_they_are():
    head, row = table_csv(status_document([RUNNING]).data).splitlines()
    found = dict(zip(head.split(","), row.split(","), strict=True))
    assert found["folder"] == "runs/one" and found["windows_planned"] == "2383"
    assert (found["ppl"], found["ppl_low"], found["seconds_left"]) == ("55.5372", "50.6", "3073.4")


def test_markdown_has_the_table_once():
    text = document_markdown(status_document([RUNNING]))
    assert text.count("| run | state |") == 1 and text.startswith("| run | state |")


def test_protocol_and_text_are_shown_where_there_are_several():
    other = RUNNING | {"folder": "runs/two", "text": "code"}
    lines = document_text(status_document([RUNNING, other])).splitlines()[2:]
    assert lines[0].split()[:4] == ["run", "state", "model", "text"]
    assert [line.split()[3] for line in lines[2:]] == ["wiki", "code"]
    assert "text" not in document_text(status_document([RUNNING, RUNNING])).split()
    assert (
        table_csv(status_document([RUNNING, other]).data).splitlines()[0]
        == (table_csv(status_document([RUNNING]).data).splitlines()[0])
    )


def test_what_all_models_of_an_ended_sweep_say_is_said_once():
    waiting = {"folder": "out", "state": "waiting", "problem": "was ended with models left",
               "resume": "scoremode kld q4 q8"}  # fmt: skip
    models = [
        waiting | {"label": name, "model": name, "protocol": "p", "text": "t"}
        for name in ("q4", "q8")
    ]
    text = document_text(status_document(models))
    assert text.count("was ended with") == text.count("goes on with: scoremode kld q4 q8") == 1


def test_why_a_model_of_a_sweep_failed_is_said_of_the_model():
    failed = {"folder": "out", "state": "failed", "label": "q4", "model": "quants/q4",
              "problem": "no such head"}  # fmt: skip
    text = document_text(status_document([failed]))
    assert re.search(r"^q4 +no such head$", text, re.MULTILINE)


def test_a_shard_is_called_one_whatever_it_does():
    shards = [
        RUNNING | {"shard": "2/4", "estimates": {}},
        RUNNING | {"folder": "runs/two", "state": "shard", "shard": "1/4", "estimates": {}},
    ]
    lines = document_text(status_document(shards)).splitlines()[2:]
    assert "running, shard 2/4" in lines[2] and "  shard 1/4" in lines[3]
    assert "PPL" not in lines[0] and "KLD" not in lines[0]


ROW = {
    "label": "m",
    "model": "models/m",
    "is_base": False,
    "pair": 0,
    "state": "to run",
    "source": "here",
    "bytes": 2**31,
    "download": None,
    "seconds": 90.4,
    "error": None,
}
VALUE = {
    "output": "out",
    "rows": [ROW],
    "pairs": ["a text, disjoint"],
    "to_run": 1,
    "bytes": 2**31,
    "download": 0,
    "seconds": 90.4,
}


def test_a_line_a_run_and_what_they_come_to():
    rows = [ROW | {"label": "b", "is_base": True, "state": "done"}, ROW]
    text = document_text(foreseen_document(VALUE | {"rows": rows}))
    assert "b (the base)" in text and "why not" not in text
    lines = [line.split() for line in text.splitlines()]
    assert ["m", "1", "to", "run", "here", "2.000", "90"] in lines
    assert ["to", "run", "1", "of", "2"] in lines
    assert "90 s, by what earlier runs there took" in text and "to fetch" not in text
    assert table_csv(foreseen_document(VALUE).data).count("\n") == 2


def test_errors_downloads_and_a_time_that_nobody_knows():
    rows = [ROW, ROW | {"state": "failed", "error": "no \x1b[2J such folder", "bytes": None}]
    value = VALUE | {"rows": rows, "download": 2**30, "seconds": None}
    text = document_text(foreseen_document(value))
    assert "\x1b" not in text and "such folder" in text and "1.000 GiB from the hub" in text
    assert "not known: no finished run is there to tell" in text
    assert "150 min" in document_text(foreseen_document(VALUE | {"seconds": 9000.0}))


def test_several_texts_are_named():
    text = document_text(foreseen_document(VALUE | {"pairs": ["a\x1b, disjoint", "b, gptq"]}))
    lines = [line.split(maxsplit=2) for line in text.splitlines()]
    assert ["text", "1", "a\\x1b, disjoint"] in lines and ["text", "2", "b, gptq"] in lines
