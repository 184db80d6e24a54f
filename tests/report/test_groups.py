"""Tables of groups: every number, no wider than a terminal, and why something is not there."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from support.comparisons import made, overlapping
from support.record_fields import fields
from support.run_folders import CONTEXT, labels_of, write_run

from scoremode.report.document import rate
from scoremode.report.groups import compared_groups, group_counts, groups_document
from scoremode.report.rendering import document_markdown, table_csv
from scoremode.report.run import kld_document, run_document
from scoremode.report.terminal import document_text
from scoremode.results.comparison.ranking import ranking
from scoremode.results.folders.store import read_record
from scoremode.results.record.definition import read_document
from scoremode.results.record.sections import sections

PLACES = overlapping(12_000, CONTEXT, 48)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for name, noise, full in (("one", 0.3, True), ("a-model-of-a-long-name-Q4_K_M", 1.0, False)):
        scores = made(**PLACES, noise=noise, full=full)
        place = (scores.index % 500).astype(np.int32)
        extras = labels_of(scores) | {"turn_place": place}
        found[name] = write_run(folder / name, scores, extras=extras)
    alone = replace(made(**PLACES), against=None)
    found["alone"] = write_run(folder / "alone", alone, extras=labels_of(alone))
    return found


def test_the_table_has_every_group_worst_first(runs):
    record = read_record(runs["one"])
    text = document_text(kld_document(read_document(record), runs["one"]))
    groups = record["breakdown"]["label"]
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("group "))
    for line, group in zip(lines[at + 2 :], groups, strict=False):
        cells = line.split()
        assert cells[:3] == [
            group["group"], f"{group['share']:.1%}", f"×{group['ppl_ratio']['value']:.4f}",
        ]  # fmt: skip
        assert f"{group['kld']['value']:.3g}" in cells
        assert f"{group['top1']['value']:.1%}" in cells
        assert cells[-1] == rate(group["confident_flips"]["value"])
        assert "[{:.4f}, {:.4f}]".format(*group["ppl_ratio"]["ci95"]) in line
    # The verbose one has the turns as well.
    assert "place in the turn" not in text
    assert "256 and more" in document_text(
        kld_document(read_document(record), runs["one"], verbose=True)
    )
    assert all(len(line) <= 100 for line in lines[at:])


def test_a_run_alone_has_perplexities(runs):
    record = read_record(runs["alone"])
    text = document_text(run_document(read_document(record), runs["alone"]))
    for group in record["breakdown"]["label"]:
        (line,) = [line for line in text.splitlines() if line.startswith(group["group"])]
        assert f"{group['ppl']['value']:.4f}" in line


def test_the_document_has_all_metrics_and_its_data_in_full(runs):
    record = read_record(runs["one"])
    document = groups_document(read_document(record))
    text = document_text(document)
    assert all(len(line) <= 116 for line in text.splitlines())
    for group in record["breakdown"]["label"]:
        assert f"{group['halved']['value']:.2%}" in text
        assert f"{group['acceptance']['value']:.2%}" in text
        assert f"{group['entropy_change']['value']:+.3g}" in text
        assert f"{group['kld_p999']['value']:.3g}" in text
    rows = list(csv.DictReader(io.StringIO(table_csv(document.data))))
    by = {(row["grouped_by"], row["group"]): row for row in rows}
    of = record["breakdown"]
    assert set(by) == {(kind, g["group"]) for kind in of for g in of[kind]}
    for group in of["turn"]:
        row = by["turn", group["group"]]
        assert int(row["n"]) == group["n"] and float(row["kld_nats"]) == group["kld"]["value"]
        assert float(row["from"]) == group["from"]
        assert row["to"] == ("" if group["to"] is None else str(group["to"]))
        ends = group.get("confident_flips", {}).get("ci95") or ["", ""]
        found = [row["confident_flips_share_low"], row["confident_flips_share_high"]]
        assert [x and float(x) for x in found] == ends
    assert "| group |" in document_markdown(document)


def test_what_was_not_measured_is_said(runs):
    record = read_record(runs["a-model-of-a-long-name-Q4_K_M"])
    assert "no change of entropy: measured without --full" in document_text(
        groups_document(read_document(record))
    )
    few = [
        line
        for line in document_text(kld_document(read_document(record), runs["one"])).splitlines()
        if "no interval for" in line
    ]
    assert not few
    for group in record["breakdown"]["label"]:
        group["kld"] |= {
            "ci95": None,
            "note": "3 blocks of 64 tokens: an interval needs at least 8",
        }
    (line,) = [
        x
        for x in document_text(kld_document(read_document(record), runs["one"])).splitlines()
        if x.startswith("no interval for")
    ]
    names, _, why = line.removeprefix("no interval for ").partition(": ")
    assert set(names.split(", ")) == {"prose", "code", "math"}
    assert why == "3 blocks of 64 tokens: an interval needs at least 8"


def test_runs_are_compared_in_each_group(runs):
    value = ranking([runs["one"], runs["a-model-of-a-long-name-Q4_K_M"]])
    document = compared_groups(value["groups"])
    text = document_text(document)
    assert text.count("a-model-of-a-long-name-…") == 3 and all(
        len(x) <= 100 for x in text.split("\n")
    )
    rows = list(csv.DictReader(io.StringIO(table_csv(document.data))))
    assert [(row["group"], row["model"]) for row in rows] == [
        (group["group"], run["model"]) for group in value["groups"] for run in group["runs"]
    ]
    wanted = [run["kld"]["value"] for group in value["groups"] for run in group["runs"]]
    assert [float(row["kld_nats"]) for row in rows] == wanted


def test_no_name_does_anything_to_a_terminal(runs):
    record = read_record(runs["one"])
    record["breakdown"]["label"][0]["group"] = "a|b\x1b[31m\u202e`*"
    text = document_text(groups_document(read_document(record)))
    assert "\x1b" not in text and "\u202e" not in text
    assert "a\\|b" in document_markdown(groups_document(read_document(record)))


@pytest.mark.parametrize("name", ["one", "alone"])
def test_long_windows_are_told_by_the_tokens_before(name, runs):
    """By default: it is what they are for."""
    shown = kld_document if name == "one" else run_document
    record = read_record(runs[name])
    assert "tokens before" not in document_text(shown(read_document(record), runs[name]))
    position = np.tile(np.arange(1, 4200), 9)
    scores = made(np.repeat(np.arange(9), 4199) * 4200 + position, position=position, full=False)
    scores = scores if name == "one" else replace(scores, against=None)
    depth = sections(scores, 4200, {}, block_length=4200)["breakdown"]["depth"]
    record["breakdown"]["depth"] = depth
    lines = document_text(shown(read_document(record), runs[name])).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("tokens before "))
    for line, group in zip(lines[at + 2 :], depth, strict=False):
        assert line.startswith(group["group"]) and len(line) <= 105
        wanted = ["ppl"] if name == "alone" else ["ppl", "ppl_ratio"]
        assert all(f"{group[metric]['value']:.4f}" in line for metric in wanted)
        if name == "one":
            assert f"{group['kld']['value']:.3g}" in line
            assert f"{group['acceptance']['value']:.2%}" in line
            assert "[{:.4f}, {:.4f}]".format(*group["ppl_ratio"]["ci95"]) in line
    rows = groups_document(read_document(record)).data.rows
    assert [row[1] for row in rows if row[0] == "depth"] == [group["group"] for group in depth]


def test_a_plan_s_groups_are_counted_the_largest_first():
    assert group_counts(fields({})) == []
    assert group_counts(fields({"labels": {"b": 7, "a": 1234}})) == [("groups", "a 1,234, b 7")]
    ((_, many),) = group_counts(fields({"labels": {str(i): 100 - i for i in range(10)}}))
    assert many.startswith("0 100, 1 99") and many.endswith("7 93 and 2 more")
