"""The table of what runs are doing."""

import re

from scoremode.report.forms.csv import table_csv
from scoremode.report.forms.markdown import document_markdown
from scoremode.report.forms.text import document_text
from scoremode.report.status import status_document

RUNNING = {
    "folder": "runs/one", "state": "running", "model": "models/q4", "reference": "base",
    "protocol": "disjoint", "text": "wiki", "windows": 1200, "of": 2383, "windows_per_second": 0.639,
    "seconds_left": 3073.4, "resume": None,
    "estimates": {"ppl": {"value": 55.5372, "ci95": [50.6, 60.7]},
                  "kld": {"value": 0.02, "ci95": None}},
}  # fmt: skip


def test_a_gguf_file_that_is_called_model_has_its_folder_s_name():
    models = [RUNNING | {"model": f"quants/{name}/model.gguf"} for name in ("Q4_K_M", "Q8_0")]
    text = document_text(status_document(models))
    assert " Q4_K_M/model.gguf " in text and " Q8_0/model.gguf " in text


def test_a_line_for_each_run_and_what_is_to_be_said_below():
    killed = RUNNING | {"folder": "runs/two", "state": "killed", "seconds_left": None,
                        "resume": "scoremode ppl x --resume"}  # fmt: skip
    damaged = {"folder": "runs/\x1b[31mthree", "state": "damaged", "problem": "is cut"}
    text = document_text(status_document([RUNNING, killed, damaged]))
    lines = text.splitlines()
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
    lines = document_text(status_document([RUNNING, other])).splitlines()
    assert lines[0].split()[:4] == ["run", "state", "model", "text"]
    assert [line.split()[3] for line in lines[2:]] == ["wiki", "code"]
    assert "text" not in document_text(status_document([RUNNING, RUNNING])).split()
    assert (
        table_csv(status_document([RUNNING, other]).data).splitlines()[0]
        == (table_csv(status_document([RUNNING]).data).splitlines()[0])
    )


def test_what_all_models_of_an_ended_sweep_say_is_said_once():
    waiting = {"folder": "out", "state": "waiting", "problem": "its sweep was ended"}
    models = [waiting | {"model": name, "protocol": "p", "text": "t"} for name in ("q4", "q8")]
    text = document_text(status_document(models))
    assert text.count("its sweep was ended") == 1 and "q4" in text and "q8" in text


def test_why_a_model_of_a_sweep_failed_is_said_of_the_model():
    failed = {"folder": "out", "state": "failed", "model": "quants/q4", "problem": "no such head"}
    text = document_text(status_document([failed]))
    assert re.search(r"^q4 +no such head$", text, re.MULTILINE)


def test_a_shard_is_called_one_whatever_it_does():
    shards = [
        RUNNING | {"shard": "2/4", "estimates": {}},
        RUNNING | {"folder": "runs/two", "state": "shard", "shard": "1/4", "estimates": {}},
    ]
    lines = document_text(status_document(shards)).splitlines()
    assert "running, shard 2/4" in lines[2] and "  shard 1/4" in lines[3]
    assert "PPL" not in lines[0] and "KLD" not in lines[0]
