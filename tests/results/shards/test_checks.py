"""What shards must share, field by field, and what they need not."""

import copy

import pytest
from support.shard_runs import asked, refusal, shards

from scoremode.results.shards.checks import check_shards, open_shard


@pytest.fixture(scope="module")
def opened(demo, tmp_path_factory):
    return [open_shard(f) for f in shards(asked(demo, tmp_path_factory.mktemp("r"), 5000), 3)]


@pytest.fixture
def own(opened):
    return [type(each)(each.folder, copy.deepcopy(each.record)) for each in opened]


def put(record, path, value):
    *parents, last = path.split(".")
    for key in parents:
        record = record.setdefault(key, {})
    record[last] = value


@pytest.mark.parametrize(
    "path, value",
    [
        ("checkpoint.path", "/elsewhere"),
        ("checkpoint.source", "elsewhere"),
        ("corpus.name", "the same.txt"),
        ("corpus.source", "elsewhere/the same.txt"),
        ("tokenizer.source", "elsewhere"),
        ("protocol.name", "other-name"),
        ("engine.tokens", 5),
        ("engine.seconds", {"load": 9.0}),
        ("engine.peak_bytes", 5),
        ("engine.placement", "host"),
        ("engine.device.memory_bytes", 5),
        ("engine.devices", [{"rank": 0}, {"rank": 1}]),
        ("identity.engine.device.memory_bytes", 5),
        ("seconds", {"total": 1.0}),
        ("created", "2027-01-01T00:00:00+00:00"),
        ("command", ["scoremode", "ppl", "elsewhere"]),
        ("schedule.pass_windows", 8),
    ],
)
def test_where_things_lie_and_how_long_they_took_may_differ(own, path, value):
    put(own[1].record, path, value)
    check_shards(own)


@pytest.mark.parametrize(
    "path, value",
    [
        ("checkpoint.files", {"model.safetensors": "0"}),
        ("checkpoint.bytes", 1),
        ("corpus.text.sha256", "0"),
        ("corpus.row_seed", 3),
        ("corpus.group_by", "domain"),
        ("tokenizer.sha256", "0"),
        ("protocol.context_length", 128),
        ("protocol.vocabulary", "head"),
        ("plan.sha256", "0"),
        ("plan.labels", {"a": 3}),
        ("calibration", {"targets": 5}),
        ("calibration.share", 0.5),
        ("reference", {"kind": "stored", "sha256": "0"}),
        ("identity.engine.dtype", "float32"),
        ("identity.engine.device.name", "another GPU"),
        ("identity.engine.device.threads", 7),
        ("identity.versions.torch", "0"),
        ("identity.versions.scoremode", "0"),
        ("identity.full", True),
        ("identity.confident", 0.5),
        ("identity.token_text", True),
        ("identity.calibration", {"sha256": "0"}),
        ("identity.labels", "0"),
        ("identity.reference", {"kind": "stored", "sha256": "0"}),
        ("engine.kv_cache", {"scales": {"k": [[1.0]]}}),
        ("engine.head", {"scale": 2.0}),
        ("engine.device.name", "another GPU"),
        ("engine.layers", "window by window"),
        ("engine.unused_tensors", ["x"]),
        ("shard.batches_sha256", "0"),
    ],
)
@pytest.mark.parametrize("number", [0, 2])
def test_whatever_else_differs_is_refused_with_both_runs(own, path, value, number):
    put(own[number].record, path, value)
    words = refusal(check_shards, own)
    assert str(own[0].folder) in words and "(shard " in words
    assert "micro-batches" in words or path.split(".")[0] in words


def test_bases_are_compared_but_for_what_is_of_the_moment(own):
    for i, each in enumerate(own):
        each.record["reference"] = {
            "kind": "stored",
            "source": f"host{i}/ref",
            "path": f"/host{i}/ref",
            "sha256": "ab",
            "states_sha256": "cd",
            "checkpoint": {"source": f"{i}", "path": f"{i}", "files": {"w": "1"}},
            "engine": {"tokens": i},
            "replay": {"rows": i},
            "replay_at_load": None,
        }
        each.record["identity"]["reference"] = {
            "kind": "model",
            "engine": {"device": {"type": "cpu", "name": "x", "memory_bytes": i}},
        }
    check_shards(own)
    own[2].record["reference"]["checkpoint"]["files"] = {"w": "2"}
    words = refusal(check_shards, own)
    assert "its reference checkpoint files w is 2, and the other's 1" in words


def test_twice_missing_and_windows_that_dont_meet(own):
    one, two, three = own
    assert "both are shard 2/3" in refusal(check_shards, [one, two, two, three])
    assert "of which 1 is missing: 3/3" in refusal(check_shards, [one, two])
    two.record["shard"]["windows"][0] += 1
    assert "its windows don't go on" in refusal(check_shards, own)
    two.record["shard"]["windows"][0] -= 1
    three.record["shard"]["windows"][1] -= 1
    words = refusal(check_shards, own)
    assert "ends at window" in words and str(three.folder) in words


def test_many_missing_shards_are_told_in_a_line(own):
    for each in own:
        each.record["shard"]["of"] = 100
    words = refusal(check_shards, own)
    assert "of which 97 are missing: 4/100, 5/100" in words and words.endswith("and 89 more")
