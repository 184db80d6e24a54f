"""Shards made one run: the bytes and the numbers of one process's, or a line that says why not."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.hostile_files import snapshot
from support.run_requests import request
from support.shard_runs import SCHEDULE, asked, edited, refusal, run, shards, untimed
from support.tampered_runs import copy_model

from scoremode.checkpoint.bulk_io import hash_file
from scoremode.engines.base import Schedule
from scoremode.engines.kv_formats import parse_kv_cache
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import RECORD, SCORES, RunFolder
from scoremode.results.gates import Gates
from scoremode.results.shards.merge import merge
from scoremode.text.protocol import preset


@pytest.fixture(scope="module")
def whole(demo, tmp_path_factory):
    return run(asked(demo, tmp_path_factory.mktemp("whole")))


@pytest.fixture(scope="module")
def three(demo, tmp_path_factory) -> list[Path]:
    return shards(asked(demo, tmp_path_factory.mktemp("three")), 3)


@pytest.mark.parametrize("of", range(1, 8))
def test_any_number_of_shards_makes_the_bytes_and_numbers_of_one_process(of, whole, demo, tmp_path):
    found = shards(asked(demo, tmp_path / "shards"), of)
    record = merge([tmp_path / "shards"], tmp_path / "merged")
    merged = tmp_path / "merged"
    assert (merged / SCORES).read_bytes() == (whole.folder / SCORES).read_bytes()
    assert sorted(p.name for p in merged.iterdir()) == [RECORD, SCORES]
    ours, theirs = untimed(record.document), untimed(whole.record.document)
    assert {k for k in ours if ours[k] != theirs.get(k)} == {"engine", "merged"}
    assert ours.keys() - theirs.keys() == {"merged"}
    # Read as any run, which makes every number again.
    assert load_run(merged)[0].document["metrics"] == whole.record.document["metrics"]
    told = record.document["merged"]["shards"]
    assert [each["run"] for each in told] == [folder.name for folder in found]
    assert [each["number"] for each in told] == list(range(1, of + 1))
    for folder, each in zip(found, told, strict=True):
        own = json.loads((folder / RECORD).read_text())
        assert each["record_sha256"] == own["sha256"]
        assert each["scores_sha256"] == own["scores"]["sha256"]
        assert each["windows"] == own["shard"]["windows"] and each["command"] == own["command"]
        assert each["seconds"] == own["seconds"]


def test_the_order_of_shards_changes_nothing_and_twice_is_the_same(three, tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    one = merge(three, first)
    other = merge(three[::-1], second)
    assert (first / SCORES).read_bytes() == (second / SCORES).read_bytes()
    assert untimed(one.document) == untimed(other.document)


@pytest.mark.parametrize("schedule", [Schedule(5, 2), Schedule(1, 1), Schedule(100, 4)])
def test_other_schedules_are_shared_out_as_well(schedule, demo, tmp_path):
    request = asked(demo, tmp_path / "runs", 1500)
    one = run(request, schedule, output=tmp_path / "whole")
    passes = -(-one.record.document["plan"]["windows"] // schedule.pass_windows)
    for of in {1, min(2, passes), passes}:
        found = shards(request, of, schedule, output=tmp_path / f"{of}")
        merge(found, tmp_path / f"merged-{of}")
        assert (tmp_path / f"merged-{of}" / SCORES).read_bytes() == (
            one.folder / SCORES
        ).read_bytes()


def test_longer_passes_make_the_same_columns_where_shards_fit(demo, tmp_path):
    """As with `--devices` in one of the shards: the same micro-batches in longer passes."""
    request = asked(demo, tmp_path / "runs", 8800)
    twice = replace(SCHEDULE, pass_windows=16)
    one = run(request, SCHEDULE, output=tmp_path / "whole")
    windows = one.record.document["plan"]["windows"]
    assert windows // 8 == 6, windows
    first = run(request, twice, "1/3", output=tmp_path / "a").folder
    rest = [run(request, SCHEDULE, f"{i}/3", output=tmp_path / "b").folder for i in (2, 3)]
    merge([first, *rest], tmp_path / "merged")
    mine, theirs = load_run(tmp_path / "merged")[1], load_run(one.folder)[1]
    for name, column in theirs.columns().items():
        assert mine.columns()[name].tobytes() == column.tobytes()


def test_gaps_overlaps_and_strangers_are_refused_by_name(three, demo, tmp_path):
    out, (one, two, last) = tmp_path / "merged", three
    assert refusal(merge, [one, last], out) == (
        f"{one}: its run has 3 shards, of which 1 is missing: 2/3"
    )
    assert refusal(merge, [last], out) == (
        f"{last}: its run has 3 shards, of which 2 are missing: 1/3, 2/3"
    )
    copy = shutil.copytree(two, tmp_path / "copy")
    assert refusal(merge, [*three, copy], out) == (
        f"{two} and {copy}: both are shard 2/3: name one of them"
    )
    assert "the same run twice" in refusal(merge, [one, one, two], out)
    other = run(asked(demo, tmp_path / "four"), shard="2/4").folder
    words = refusal(merge, [one, other, last], out)
    assert f"{other} (shard 2/4)" in words and "cut into other numbers of them" in words
    assert not out.exists() and not list(tmp_path.glob(".*"))


def test_shards_of_other_runs_are_refused_with_what_differs(three, demo, tmp_path):
    base, out = asked(demo, tmp_path / "runs"), tmp_path / "merged"
    protocol = base.protocol
    strangers = {
        "its protocol max_windows is 40, and the other's None": {
            "protocol": protocol.override(max_windows=40)
        },
        "its protocol stride is 32, and the other's 64": {"protocol": protocol.override(stride=32)},
        "its identity engine dtype is float32, and the other's bfloat16": {
            "options": replace(base.options, dtype="float32")
        },
        "its identity engine kv_cache_dtype is": {
            "options": replace(base.options, kv_cache=parse_kv_cache("int8"))
        },
        "its corpus source_sha256 is": {"corpus": asked(demo, tmp_path, 8900).corpus},
        "its identity token_text is": {"token_text": True},
    }
    for number, (words, more) in enumerate(strangers.items()):
        other = run(base, shard="2/3", output=tmp_path / f"{number}", **more).folder
        said = refusal(merge, [three[0], other, three[2]], out)
        assert words in said, said
        assert f"{other} (shard 2/3): is of another run than {three[0]} (shard 1/3)" in said
    assert not out.exists()


def test_another_model_of_the_same_headers_is_refused_by_its_file(three, demo, tmp_path):
    copy_model(demo, tmp_path / "model")
    (file,) = (tmp_path / "model").glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    request = asked(demo, tmp_path / "runs")
    other = run(replace(request, model=str(tmp_path / "model")), shard="2/3").folder
    words = refusal(merge, [three[0], other, three[2]], tmp_path / "merged")
    assert f"its checkpoint files {file.name} is" in words


def test_other_micro_batches_are_refused_with_the_flags_that_make_them_alike(three, demo, tmp_path):
    request, out = asked(demo, tmp_path / "runs"), tmp_path / "merged"
    smaller = run(request, Schedule(8, 2), "2/3").folder
    words = refusal(merge, [three[0], smaller, three[2]], out)
    assert f"{smaller} (shard 2/3): its micro-batches are not those of {three[0]}" in words
    assert "pass_windows 8, batch_windows 2 (windows 16 to 31)" in words
    assert words.endswith("give all shards the same --batch-size, --max-memory and --devices")
    longer = run(request, Schedule(20, 4), "2/3", output=tmp_path / "longer").folder
    words = refusal(merge, [three[0], longer, three[2]], out)
    assert "its windows don't go on where those end of" in words and "--devices" in words


def test_tampered_shards_are_refused(three, tmp_path):
    one, two, last = three
    out = tmp_path / "merged"

    def merged_with(name: str, change, **more) -> str:
        bad = edited(two, tmp_path / name, change, **more)
        words = refusal(merge, [one, bad, last], out)
        assert str(bad) in words, words
        return words

    assert "was changed after it was written" in merged_with(
        "unsealed", lambda r: r["shard"].update(targets=5), sealed=False
    )
    assert "its passes are [1, 4]" in merged_with(
        "passes", lambda r: r["shard"].update(passes=[1, 4])
    )
    assert "and its identity's" in merged_with("number", lambda r: r["identity"].pop("shard"))
    assert "its identity.shard.number is 2, and its shard.number 1" in merged_with(
        "other", lambda r: r["shard"].update(number=1)
    )
    assert "its windows are 16 to 99" in merged_with(
        "windows", lambda r: r["shard"].update(windows=[16, 99])
    )
    assert "its windows don't go on where those end of" in merged_with(
        "shifted", lambda r: r["shard"].update(windows=[15, 31])
    )
    assert "is no shard" in merged_with(
        "done", lambda r: (r.update(status="done"), r.pop("shard"), r.update(metrics=_METRICS))
    )
    assert "has 1,008 rows, more than the 1,000 of its run" in merged_with(
        "rows", lambda r: r["shard"].update(targets=1000)
    )
    assert "its identity.plan is" in merged_with("plan", lambda r: r["identity"].update(plan="1f"))
    swapped = edited(two, tmp_path / "swapped", lambda r: None)
    shutil.copy(last / SCORES, swapped / SCORES)
    assert "is damaged or another's" in refusal(merge, [one, swapped, last], out)
    # Sealed again with the swapped file's own hash.
    said = json.loads((last / RECORD).read_text())["scores"]
    forged = edited(two, tmp_path / "forged", lambda r: r.update(scores=said))
    shutil.copy(last / SCORES, forged / SCORES)
    assert f"{forged / SCORES}: has" in refusal(merge, [one, forged, last], out)
    (swapped / SCORES).unlink()
    assert "not readable: No such file" in refusal(merge, [one, swapped, last], out)
    assert not out.exists() and not list(tmp_path.glob(".*"))


_METRICS = {name: {"value": 1.0, "ci95": None, "n": 1, "note": None} for name in ("ppl", "nll")}


def test_shards_that_are_not_done_are_refused_with_what_to_do(three, demo, tmp_path):
    def begun(record):
        record.update(status="running", parts=[])

    half = edited(three[1], tmp_path / "half", begun)
    assert refusal(merge, [three[0], half, three[2]], tmp_path / "out") == (
        f"{half}: shard 2/3 is not done: its status is 'running'; the same command with --resume goes "
        "on with it"
    )
    one = run(asked(demo, tmp_path / "whole"))
    assert refusal(merge, [one.folder], tmp_path / "out") == (
        f"{one.folder}: is no shard: its run was made without --shard"
    )


def test_what_lies_in_a_folder_beside_shards_is_left_out_and_told(three, demo, tmp_path):
    runs = tmp_path / "runs"
    for folder in three:
        shutil.copytree(folder, runs / folder.name)
    other = run(asked(demo, runs, 2000)).folder
    lines = []
    merge([runs], tmp_path / "merged", notify=lines.append)
    assert lines == [f"left out: {other}: is no shard"]
    for folder in runs.glob("*"):
        if "shard" in json.loads((folder / RECORD).read_text()):
            shutil.rmtree(folder)
    assert refusal(merge, [runs], tmp_path / "m") == f"{runs}: holds no shard"


def test_a_folder_that_is_there_is_refused_before_anything_is_read(three, tmp_path):
    (tmp_path / "out").mkdir()
    words = refusal(merge, three, tmp_path / "out")
    assert words.startswith(f"-o {tmp_path / 'out'}: is there already")
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refusal(merge, three, tmp_path / "file")


def test_a_merge_that_fails_or_is_killed_leaves_nothing(three, tmp_path, monkeypatch):
    out = tmp_path / "merged"

    class Killed(BaseException):
        pass

    def fail(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_record", fail)
        with pytest.raises(Killed):
            merge(three, out)
    assert list(tmp_path.iterdir()) == []
    # As a kill leaves it, in the middle of its work: half a folder under another name.
    left = tmp_path / ".merged.merging"
    (left / "parts").mkdir(parents=True)
    (left / SCORES).write_bytes(b"half")
    (left / ".record.json.0123456789abcdef.scoremode-tmp").write_text("{")
    merge(three, out)
    assert [p.name for p in tmp_path.iterdir()] == ["merged"]


def test_what_is_no_merges_left_folder_is_not_touched(three, tmp_path):
    building, outside = tmp_path / ".merged.merging", tmp_path / "outside"
    outside.mkdir()
    (outside / RECORD).write_text("mine")
    building.symlink_to(outside)
    before = snapshot(tmp_path)
    words = refusal(merge, three, tmp_path / "merged")
    assert words == f"{building}: is a link, not what a merge has left: remove it"
    assert snapshot(tmp_path) == before
    building.unlink()
    building.mkdir()
    (building / "notes").write_text("mine")
    assert "File exists, and no run's record in it" in refusal(merge, three, tmp_path / "merged")
    assert [p.name for p in building.iterdir()] == ["notes"]


def test_two_merges_to_one_folder_dont_disturb_each_other(three, tmp_path):
    other = RunFolder.create(tmp_path / ".merged.merging")
    try:
        words = refusal(merge, three, tmp_path / "merged")
        assert "another process is writing this run" in words
    finally:
        other.discard()


def test_other_versions_than_scored_are_refused(three, tmp_path, monkeypatch):
    from scoremode.results.shards import merge as module

    monkeypatch.setattr(module, "__version__", "9.9.9")
    words = refusal(merge, three, tmp_path / "merged")
    assert words.startswith(f"{three[0]}: was scored with scoremode ") and "here is 9.9.9" in words
    monkeypatch.undo()
    bare = [edited(f, tmp_path / f.name, lambda r: r.pop("versions")) for f in three]
    assert "was scored with scoremode None" in refusal(merge, bare, tmp_path / "merged")


def test_gates_without_a_base_are_refused(three, tmp_path):
    words = refusal(merge, three, tmp_path / "merged", gates=Gates(max_kld=1.0))
    assert "has no base, which a gate" in words


def test_a_shard_with_other_columns_is_refused_by_their_name(three, tmp_path):
    """As one that had no texts of tokens, by a tokenizer that was damaged on its machine."""
    copy = shutil.copytree(three[1], tmp_path / "copy")
    table = pq.read_table(copy / SCORES)
    pq.write_table(table.drop_columns(["token_bytes"]), copy / SCORES)
    other = edited(
        copy,
        tmp_path / "other",
        lambda r: r["scores"].update(sha256=hash_file(copy / SCORES)),
    )
    words = refusal(merge, [three[0], other, three[2]], tmp_path / "merged")
    assert words.startswith(f"{other / SCORES}: has other columns than {three[0] / SCORES}: ")
    assert "token_bytes" in words
    assert not (tmp_path / "merged").exists()


def test_long_windows_in_chunks_make_the_same_bytes(demo, tmp_path):
    """Of 9,000 tokens: each goes in parts through what takes a token by itself."""
    copy_model(demo, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["max_position_embeddings"] = 16_384
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:30_000]
    asked_for = request(
        tmp_path / "model",
        text,
        tmp_path / "runs",
        protocol=preset("disjoint").override(context_length=9000),
    )
    schedule = Schedule(1, 1, chunk_tokens=2048)
    whole = run(asked_for, schedule, output=tmp_path / "whole")
    found = shards(asked_for, 2, schedule)
    record = merge(found, tmp_path / "merged")
    assert (tmp_path / "merged" / SCORES).read_bytes() == (whole.folder / SCORES).read_bytes()
    assert record.document["breakdown"]["depth"] == whole.record.document["breakdown"]["depth"]
    assert record.document["schedule"]["chunk_tokens"] == 2048
    otherwise = run(asked_for, Schedule(1, 1, chunk_tokens=1024), "2/2", output=tmp_path / "b")
    words = refusal(merge, [found[0], otherwise.folder], tmp_path / "m")
    assert "its micro-batches are not those of" in words and "chunk_tokens 1024" in words
