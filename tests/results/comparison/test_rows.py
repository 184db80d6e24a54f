"""A run and its base as lines of a table."""

from pathlib import Path

import pytest
from support.run_folders import BASE_FILES, REFERENCE, scores_of, write_run

from scoremode.results.comparison.ranking import base_row, gib_of, is_base, run_row, short_name
from scoremode.results.folders.store import read_record


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("runs") / "one"
    return read_record(write_run(folder, scores_of(0.3)))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("hub:org/name-4bit@c0ffee", "name-4bit"),
        ("models/x.gguf", "x.gguf"),
        ("models/x/", "x"),
        ("/", "/"),
    ],
)
def test_a_model_s_short_name(source, name):
    assert short_name(source) == name


def test_a_run_s_line_is_its_record_s(record):
    row = run_row(record, Path("runs/one"), "one")
    assert (row["model"], row["folder"], row["is_base"]) == ("one", "runs/one", False)
    assert row["kld"] == record["metrics"]["kld"] and row["ratio_to"] == "reference"
    assert row["kld_p99"] == record["distribution"]["kld"]["99"]
    assert (row["bits_per_weight"], row["gib"]) == (4.125, 0.5)


def test_the_base_s_line_has_its_perplexity_and_no_divergence(record):
    stored = {"source": "hub:org/base@1", "bits_per_weight": {"body": 16.0}, "gib": 1.5}
    found = record | {"reference": record["reference"] | {"checkpoint": stored}}
    row = base_row(found)
    assert row is not None and row.keys() == run_row(record, None, "x").keys()
    assert (row["model"], row["is_base"]) == ("base", True)
    assert row["ppl"] == record["metrics"]["ppl_base"] and row["kld"] is row["ppl_ratio"] is None
    assert (row["bits_per_weight"], row["gib"]) == (16.0, 1.5)


def test_a_file_of_logits_has_no_size(record):
    row = base_row(record | {"reference": {"source": "logits.kld", "checkpoint": None}})
    assert row is not None
    assert (row["model"], row["gib"], row["bits_per_weight"]) == ("logits.kld", None, None)


def test_a_run_without_a_base_has_none(record):
    alone = {k: v for k, v in record.items() if k != "reference"}
    assert base_row(alone) is None


def test_a_size_is_exact_where_bytes_are_known():
    assert gib_of({"bytes": 1_067_352, "gib": 0.001}) == 1_067_352 / 2**30
    assert gib_of({"gib": 0.001}) == 0.001 and gib_of({}) is None


def test_a_run_of_the_bases_files_is_the_base_unless_it_is_at_a_distance(record):
    base = {"checkpoint": {"files": BASE_FILES}, "metrics": {"ppl": {"value": 5.0}}}
    assert is_base(base, REFERENCE) and not is_base(base, None)
    assert not is_base(base, {"source": "logits.kld", "checkpoint": None})
    assert not is_base({**base, "checkpoint": {"files": {"model.safetensors": "x"}}}, REFERENCE)
    assert not is_base({**base, "checkpoint": {}}, {"checkpoint": {}})
    # The same files by another arithmetic, such as with quantized keys and values.
    for kld, same in ((0.0, True), (0.01, False)):
        metrics = {"kld": {"value": kld}}
        assert is_base({**base, "metrics": metrics}, REFERENCE) is same
