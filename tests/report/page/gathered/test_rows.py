"""Runs and the base, as the record has them; files of logits and old records have less."""

import json

from scoremode.report.page.gathered.rows import base_of, run_of
from scoremode.report.page.gathered.summary import summarized


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
    summary.run.record["noise_floor"] = {"words": "again", "kld": floor, "resolves": True}
    noise = run_of(summary, "r", 0, "b", {}, of_base=False)["noise"]
    assert noise == {"value": 1e-4, "lower": None, "upper": None, "n": 5, "note": "few"}


def test_a_run_without_a_base(made_report):
    run = run_of(summarized(made_report.folders["alone"], []), "r", 0, "x", {}, of_base=False)
    nothing = ("kld", "kld_median", "kld_p999", "kld_max", "top1", "flips", "lost", "gained")
    assert [run[key] for key in (*nothing, "ppl_ratio")] == [None] * 9


def test_the_base_is_what_the_runs_say(made_report):
    record = json.loads((made_report.folders["a"] / "record.json").read_text())
    base = base_of(record, "base", "r0", {"ppl_base": {"ci95": (1, 9)}})
    assert base is not None and base["ppl"]["value"] == record["metrics"]["ppl_base"]["value"]
    # Its section's, not the record's.
    assert (base["ppl"]["lower"], base["ppl"]["upper"]) == (1, 9)
    assert (base["source"], base["sha256"], base["kind"]) == ("models/base", "1f" * 32, "stored")
    assert base["bytes"] is None and base["bits_body"] is None and base["dtype"] is None
    record["reference"] = {"source": "logits.kld", "checkpoint": None}
    assert (base_of(record, "x", None, {}) or {})["source"] == "logits.kld"
    del record["reference"]
    assert base_of(record, "x", None, {}) is None
