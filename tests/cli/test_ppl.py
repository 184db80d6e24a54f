"""`scoremode ppl` as a user meets it."""

import json
import re

from support.programs import run

from scoremode.results.folders.store import find_runs
from scoremode.text.corpus import from_dataset_file


def test_ppl_prints_what_a_reader_needs(base, capsys):
    code, out, err = run(capsys, *base, "-c", "32", "--protocol", "disjoint")
    assert code == 0 and err == ""
    for word in (
        "PPL",
        "an interval needs",
        "disjoint+context-length=32",
        "tokens in",
        "bits/weight",
    ):
        assert word in out
    details = ("weights (bf16)", "bits per weight", "peak memory", "tokens/s", "softmax over")
    assert "record.json" in out and not any(words in out for words in details)
    # The number comes first, what it is of next, and the rest only where it is asked for.
    assert out.startswith("PPL ") and out.splitlines()[1].startswith("model ")
    folder = next(line for line in out.splitlines() if line.startswith("more ")).split()[3]
    code, again, err = run(capsys, "show", folder)
    assert (code, err) == (0, "") and again == out
    code, long, _ = run(capsys, "show", folder, "-v")
    assert code == 0 and all(words in long for words in details)


def test_json_is_the_record(base, capsys, tmp_path):
    code, out, _ = run(capsys, *base, "-c", "32", "--json")
    ((_, record),) = find_runs(tmp_path / "runs")
    assert code == 0 and json.loads(out) == record


def test_the_seeds_command_line_runs(demo, data, capsys, tmp_path, monkeypatch):
    """The seeds' flags; the model is ours, and its windows shorter. The hub's rows are a file's."""

    def from_hub(dataset, config, *, split, text_field, **others):
        assert (dataset, config, split) == ("wikitext", "wikitext-2-raw-v1", "test")
        assert set(others.values()) == {None}
        return from_dataset_file(data / "wikitext2" / "wiki.test.raw", text_field)

    monkeypatch.setattr("scoremode.text.hub.from_hub", from_hub)
    code, out, _ = run(
        capsys,
        "ppl",
        *("--model", str(demo / "model"), "--dataset", "wikitext"),
        *("--dataset-config", "wikitext-2-raw-v1", "--num-samples", "30"),
        *("--context-length", "256", "--stride", "64", "--tensor-parallel-size", "1"),
        *("--gpu-memory-utilization", "0.80", "--trust-remote-code"),
        *("--disable-custom-all-reduce", "-o", str(tmp_path), "--json"),
    )
    record = json.loads(out)
    assert code == 0
    assert record["corpus"]["row_limit"] == 30
    assert record["protocol"]["name"] == "score-mode+context-length=256+stride=64"


def test_too_little_memory_says_what_would_do(base, capsys):
    arguments = [*base, "-c", "64", "--protocol", "disjoint", "--quiet"]
    code, _, err = run(capsys, *arguments, "--max-memory", "1MiB")
    assert code == 1 and "windows of 64 tokens take" in err and "lower" not in err
    found = re.search(r"raise --max-memory by (\d+) MiB, or give --batch-size (\d+)\n$", err)
    assert found
    assert run(capsys, *arguments, "--max-memory", f"{1 + int(found[1])}MiB")[0] == 0
    assert run(capsys, *arguments, "--max-memory", "1MiB", "--batch-size", found[2])[0] == 0
