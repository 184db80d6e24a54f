"""The report's data, end to end: against the Parquet files, the records, and `compare`."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.chats.blocks import write_chat_run
from support.comparisons import made, overlapping
from support.record_fields import fields
from support.run_folders import CONTEXT, write_run

import scoremode
from scoremode.errors import RunFolderError, UsageError
from scoremode.report.page.data import (
    base_of,
    grouped,
    provenance,
    report_data,
    run_of,
)
from scoremode.report.page.summary import summarized
from scoremode.results.comparison.ranking import ranking
from scoremode.results.record.definition import read_document
from scoremode.results.record.section import Metric


def typed(record: dict[str, Any]) -> Any:
    return read_document(record)


def test_runs_are_ranked_behind_the_base_and_those_without_one_come_last(made_report):
    section = made_report.section
    assert [run["name"] for run in section["runs"]] == ["base", "a", "b", "c", "d", "e", "alone"]
    assert section["runs"][0]["is_base"] and section["base"]["run"] == section["runs"][0]["id"]
    assert section["runs"][-1]["kld"] is None and section["runs"][-1]["ppl"]["value"] > 1
    assert len(made_report.report["sections"]) == 1
    assert made_report.report["title"] == "Quants of base on made.txt"
    assert made_report.report["finished"] == "2026-05"
    # Its name is the page's to say.
    assert made_report.report["made_with"] == scoremode.__version__


def test_the_numbers_of_a_run_are_its_columns(made_report):
    by_name = {run["name"]: run for run in made_report.section["runs"]}
    for name in ("a", "d"):
        run, columns = by_name[name], made_report.columns(name)
        kld, n = columns["kld"], len(columns["kld"])
        own = columns["top1"] == columns["target"]
        theirs = columns["base_top1"] == columns["target"]
        expected = {
            "ppl": math.exp(-columns["logprob"].mean()),
            "nll": -columns["logprob"].mean(),
            "ppl_ratio": math.exp((columns["base_logprob"] - columns["logprob"]).mean()),
            "kld": kld.mean(),
            "kld_median": np.median(kld),
            "kld_p90": np.quantile(kld, 0.9),
            "kld_p99": np.quantile(kld, 0.99),
            "kld_p999": np.quantile(kld, 0.999),
            "top1": (columns["top1"] == columns["base_top1"]).mean(),
            "flips": (columns["top1"] != columns["base_top1"]).mean(),
            "lost": (theirs & ~own).mean(),
            "gained": (own & ~theirs).mean(),
        }
        for key, value in expected.items():
            assert run[key]["value"] == pytest.approx(value, rel=1e-12), key
            assert run[key]["n"] == n
            if run[key]["lower"] is None:
                assert key == "kld_p999" and "too few" in run[key]["note"]
            else:
                assert run[key]["lower"] < value < run[key]["upper"], key
        assert run["kld_max"] == kld.max()
        record = json.loads((made_report.folders[name] / "record.json").read_text())
        for key in ("ppl", "kld", "ppl_ratio", "top1"):
            # One length of blocks serves the section, and here every run.
            assert made_report.section["block_length"] == record["intervals"]["block_length"]
            ends = [run[key]["lower"], run[key]["upper"]]
            assert ends == pytest.approx(record["metrics"][key]["ci95"], rel=1e-12)
    base = made_report.section["base"]
    assert base["ppl"]["value"] == by_name["base"]["ppl"]["value"]


def test_neighbours_differ_as_compare_says(made_report):
    """Rounding apart: it sums columns where the report sums stretches of them."""
    found = ranking([made_report.folders[name] for name in ("a", "b", "c", "d", "e")])
    matrices = {matrix["of"]: matrix for matrix in made_report.section["matrices"]}
    by_id = {run["id"]: run for run in made_report.section["runs"]}
    for run in found["runs"]:
        own = by_id[made_report.id_of(run["label"])]
        kinds = [(one["metric"], one["kind"]) for one in run["verdicts"]]
        assert [(one["metric"], one["kind"]) for one in own["verdicts"]] == kinds and kinds
        assert tuple(own["ranks"]) == tuple(run["ranks"])
    assert [len(m["pairs"]) for m in matrices.values()] == [10, 15]
    for test in found["tests"]:
        a, b = made_report.id_of(test["a"]), made_report.id_of(test["b"])
        for of in ("kld", "nll"):
            pair = next(p for p in matrices[of]["pairs"] if (p["a"], p["b"]) == (a, b))
            if of == "kld":
                value, ci95 = test["kld_difference"]["value"], test["kld_difference"]["ci95"]
            else:
                ratio = test["ppl_ratio"]
                value, ci95 = math.log(ratio["value"]), [math.log(end) for end in ratio["ci95"]]
                assert pair["ratio"] == pytest.approx(ratio["value"], rel=1e-12)
            assert pair["value"] == pytest.approx(value, rel=1e-9, abs=1e-12)
            # `compare` has no run `alone`, by which the blocks may be longer here.
            if made_report.section["block_length"] == found["block_length"]:
                assert [pair["lower"], pair["upper"]] == pytest.approx(ci95, rel=1e-6, abs=1e-9)


def test_all_is_json_and_the_same_twice(made_report):
    again = report_data(list(made_report.folders.values()))
    text = json.dumps(again, allow_nan=False)
    assert text == json.dumps(made_report.report, allow_nan=False)
    # As they are: whoever draws them escapes them.
    read = json.loads(text)["sections"][0]["worst"][0]
    assert read["context"].startswith("\x1b[2J\ud800") and "<script>" in read["target"]["text"]


def test_runs_of_another_plan_or_base_are_sections_of_their_own(made_report, tmp_path):
    places = overlapping(3000, CONTEXT, 64)
    scores = made(**places, full=False)
    text = {
        "corpus.name": "other.txt",
        "corpus.text.sha256": "11" * 32,
        "plan.tokens_sha256": "12" * 32,
    }
    other = write_run(tmp_path / "a", scores, model="models/a", changes=text)
    rebased = write_run(
        tmp_path / "rebased", made(**places, noise=0.2, full=False),
        changes=text | {"reference.sha256": "2e" * 32, "reference.checkpoint.source": "x/other"},
    )  # fmt: skip
    report = report_data([made_report.folders["a"], other, rebased])
    assert len(report["sections"]) == 3 and report["title"] == "3 runs on 2 texts"
    models = [section["runs"][0]["model"] for section in report["sections"]]
    assert models[0] == models[1] != models[2]
    assert "other.txt" in report["sections"][1]["title"]
    ids = [run["id"] for section in report["sections"] for run in section["runs"]]
    assert len(set(ids)) == 3
    # Too few blocks for any interval: said, and still JSON.
    assert report["sections"][1]["runs"][0]["kld"]["lower"] is None
    assert report["sections"][1]["notes"]
    assert report_data([other], title="Mine")["title"] == "Mine"
    json.dumps(report, allow_nan=False)


def test_a_run_without_a_base_alone(made_report):
    report = report_data([made_report.folders["alone"]])
    (section,) = report["sections"]
    assert section["base"] is None and section["ranked_by"] == "ppl"
    assert section["tail"] == section["charts"] == section["worst"] == section["matrices"] == []
    assert {f["id"] for f in section["frontiers"]} == {
        "bytes/ppl",
        "bits_body/ppl",
        "bits_file/ppl",
    }


def test_what_is_no_finished_run_is_refused(made_report, tmp_path):
    with pytest.raises(UsageError, match="no runs"):
        report_data([])
    with pytest.raises(UsageError, match="twice"):
        report_data([made_report.folders["a"]] * 2)
    with pytest.raises(RunFolderError, match="no readable record"):
        report_data([tmp_path])
    forged = tmp_path / "forged"
    write_run(forged, made(**overlapping(3000, CONTEXT, 64), full=False))
    record = json.loads((forged / "record.json").read_text())
    record["metrics"]["kld"]["value"] *= 0.9
    (forged / "record.json").write_text(json.dumps(record))
    with pytest.raises(RunFolderError, match=r"metrics\.kld\.value"):
        report_data([forged])
    record |= {"status": "invalid", "reason": "shifted"}
    (forged / "record.json").write_text(json.dumps(record))
    with pytest.raises(RunFolderError, match=r"not done: its status is .invalid. \(shifted\)"):
        report_data([forged])


def test_a_page_says_that_they_are_conversations(tmp_path):
    data = report_data(
        [write_chat_run(tmp_path / n, 0.3, seed) for n, seed in (("a", 0), ("b", 5))]
    )
    (section,) = data["sections"]
    assert section["interval_words"] == (
        "Runs have their intervals, and are tested against each other, by 16 conversations, each drawn "
        "whole, 10,000 times. So few that 95 % intervals cover 89% where a few are far harder."
    )
    assert section["blocks"] == 16 and section["block_length"] == 1


def test_a_run_has_its_sizes_and_format(made_report):
    summary = summarized(made_report.folders["b"], [])
    run = run_of(summary, "r7", 3, "b", {}, of_base=False)
    assert (run["id"], run["model"], run["name"], run["is_base"]) == ("r7", 3, "b", False)
    assert (run["bytes"], run["gib"], run["mib"]) == (500, 500 / 2**30, 500 / 2**20)
    assert (run["bits_body"], run["bits_file"], run["format"]) == (5.0, 4.25, "W4A16-g128")
    assert run["flips"]["value"] == 1 - run["top1"]["value"]
    assert run["flips"]["lower"] == 1 - run["top1"]["upper"]
    assert run["noise"] is None and run["folder"] == str(made_report.folders["b"])


def test_a_noise_floor_is_told(made_report):
    summary = summarized(made_report.folders["b"], [])
    floor = {"value": 1e-4, "ci95": None, "n": 5, "note": "few"}
    record = summary.run.record.document | {
        "noise_floor": {"words": "again", "kld": floor, "resolves": True}
    }
    run: Any = replace(summary.run, record=read_document(record))
    noise = run_of(replace(summary, run=run), "r", 0, "b", {}, of_base=False)["noise"]
    assert noise == {"value": 1e-4, "lower": None, "upper": None, "n": 5, "note": "few"}


def test_a_run_without_a_base(made_report):
    run = run_of(summarized(made_report.folders["alone"], []), "r", 0, "x", {}, of_base=False)
    nothing = ("kld", "kld_median", "kld_p999", "kld_max", "top1", "flips", "lost", "gained")
    assert [run[key] for key in (*nothing, "ppl_ratio")] == [None] * 9


def test_the_base_is_what_the_runs_say(made_report):
    record = json.loads((made_report.folders["a"] / "record.json").read_text())
    own = Metric(value=0.0, ci95=(1.0, 9.0), n=9, note=None)
    base = base_of(typed(record), "base", "r0", {"ppl_base": own})
    assert base is not None and base["ppl"]["value"] == record["metrics"]["ppl_base"]["value"]
    # Its section's, not the record's.
    assert (base["ppl"]["lower"], base["ppl"]["upper"]) == (1, 9)
    assert (base["source"], base["sha256"], base["kind"]) == ("models/base", "1f" * 32, "stored")
    assert base["bytes"] is None and base["bits_body"] is None and base["dtype"] is None
    record["reference"] = {"source": "logits.kld", "checkpoint": None}
    assert (base_of(typed(record), "x", None, {}) or {})["source"] == "logits.kld"
    del record["reference"]
    assert base_of(typed(record), "x", None, {}) is None


def record(plan: str, base: str | None = None, vocabulary: int = 12) -> Any:
    made: dict[str, Any] = {
        "plan": {"sha256": plan},
        "engine": {"vocabulary": vocabulary},
        "corpus": {"text": {"sha256": "t"}},
    }
    return fields(made if base is None else made | {"reference": {"sha256": base}})


def test_one_plan_one_width_one_base():
    assert grouped([record("p", "x"), record("q", "x"), record("p", "x")]) == [[0, 2], [1]]
    assert grouped([record("p", "x"), record("p", "y")]) == [[0], [1]]
    assert grouped([record("p", "x"), record("p", "x", 13)]) == [[0], [1]]
    assert grouped([]) == []


def test_runs_without_a_base_join_where_there_is_one_base_alone():
    assert grouped([record("p"), record("p", "x"), record("p")]) == [[0, 1, 2]]
    assert grouped([record("p", "x"), record("p"), record("p", "y")]) == [[0], [1], [2]]
    assert grouped([record("p"), record("q", "x"), record("p")]) == [[0, 2], [1]]


def test_a_reference_of_the_first_records_has_no_hash():
    old = record("p")
    old.reference = fields({"source": "base"})
    assert grouped([old, record("p", "x")]) == [[0], [1]]


def test_it_is_what_the_record_says(made_report):
    record = json.loads((made_report.folders["a"] / "record.json").read_text())
    found = provenance(typed(record))
    assert found["command"] == record["command"] and found["seconds"] == record["seconds"]
    assert found["hashes"]["record"] == record["sha256"]
    assert found["hashes"]["scores.parquet"] == record["scores"]["sha256"]
    assert found["hashes"]["reference"] == record["reference"]["sha256"]
    assert found["files"] == record["checkpoint"]["files"] and found["more_files"] == 0
    facts = {fact["label"]: fact["value"] for fact in found["facts"]}
    assert "bfloat16" in facts["arithmetic"] and facts["device"].startswith("made")
    run = next(r for r in made_report.section["runs"] if r["name"] == "a")
    assert run["provenance"] == found


def test_of_many_files_some_are_named_and_the_rest_counted(made_report):
    record = json.loads((made_report.folders["a"] / "record.json").read_text())
    record["checkpoint"]["files"] = {f"model-{i:05}.safetensors": "00" * 32 for i in range(30)}
    del record["versions"]
    found = provenance(typed(record))
    assert next(iter(found["files"])) == "model-00000.safetensors"
    assert len(found["files"]) + found["more_files"] == 30 and found["more_files"] == 18
    assert found["versions"] == {}
