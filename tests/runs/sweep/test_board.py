"""What a sweep keeps of what it has done."""

from dataclasses import replace
from pathlib import Path

from support.sweeps import pair, sweep_request

from scoremode.runs.request import Result
from scoremode.runs.sweep.manifest import Board, read_manifest, titles
from scoremode.text.corpus import from_file


def board_of(output, told, models=("a", "b"), pairs=1):
    output.mkdir(exist_ok=True)
    requests = [pair(Path("base"), "x", 64 // n) for n in range(1, pairs + 1)]
    return Board(sweep_request(output, models, *requests), list(models), told.append)


def test_every_step_is_on_disk(tmp_path):
    told = []
    board = board_of(tmp_path, told)
    board.begin(0, 0)
    entries = read_manifest(tmp_path)["entries"]  # pyright: ignore[reportOptionalSubscript]
    assert [e["status"] for e in entries] == ["running", "waiting"]
    board.done(0, 0, Result(tmp_path / "run", {}), "a0")
    board.failed(1, 0, "why")
    # What has ended has ended.
    board.failed(0, 0, "later")
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    one, two = manifest["entries"]
    assert (one["status"], one["folder"], one["asked"]) == ("done", "run", "a0")
    assert (two["status"], two["error"], two["folder"]) == ("failed", "why", None)
    assert [(e.number, e.count, e.under) for e in told] == [(1, 2, ""), (2, 2, "")]
    outcome = board.outcome()
    assert outcome.failed == 1 and outcome.results[1] is None and outcome.manifest == manifest


def test_the_next_call_finds_what_was_done_by_what_was_asked(tmp_path):
    board = board_of(tmp_path, [])
    board.done(0, 0, Result(tmp_path / "run", {}), "a0")
    board.failed(1, 0, "why")
    created = board.manifest["created"]
    again = board_of(tmp_path, [], models=("c",))
    assert again.earlier("a0") == tmp_path / "run"
    assert again.earlier("b1") is None and again.manifest["created"] == created


def test_with_several_texts_an_end_says_of_which(tmp_path):
    told = []
    board = board_of(tmp_path, told, pairs=2)
    assert [(e["model"], e["pair"]) for e in board.manifest["entries"]] == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1),
    ]  # fmt: skip
    board.failed(1, 1, "why")
    assert told[0].entry["model"] == "b" and "context-length=32" in told[0].under
    board.reference(1, tmp_path / "reference")
    assert [p["reference"] for p in board.manifest["pairs"]] == [None, "reference"]


def test_texts_of_one_name_are_told_by_where_they_are_from(tmp_path):
    requests = []
    for name in ("a", "b"):
        file = tmp_path / name / "wiki.txt"
        file.parent.mkdir()
        file.write_text("x")
        requests.append(replace(pair(Path("base"), ""), corpus=from_file(file)))
    found = titles([*requests, pair(Path("base"), "x")])
    protocol = "disjoint+context-length=64"
    assert found == [f"{tmp_path}/a/wiki.txt, {protocol}", f"{tmp_path}/b/wiki.txt, {protocol}",
                     f"text, {protocol}"]  # fmt: skip
