"""What shards must share, field by field, and what they need not."""

from dataclasses import replace

import numpy as np
import pytest
from support.comparisons import made, overlapping
from support.records import with_fields
from support.shard_runs import asked, refusal, shards

from scoremode.results.scores import Scores
from scoremode.results.shards.checks import check_shards, open_shard
from scoremode.results.shards.merge import merged_record
from scoremode.results.statistics.divergence import worst_tokens

CALIBRATION = {
    **{"name": "c4", "source": "c4.txt", "source_sha256": "0" * 64, "text_field": "text"},
    **{"documents": 1, "tokens": 9, "ngram": 3, "targets": 5, "share": 0.5},
}
KV_CACHE = {"k": "fp8", "v": "fp8", "layers": 1, "scales": {"source": "x", "k": [[1.0]]}}


@pytest.fixture(scope="module")
def opened(demo, tmp_path_factory):
    return [open_shard(f) for f in shards(asked(demo, tmp_path_factory.mktemp("r"), 5000), 3)]


@pytest.fixture
def own(opened):
    """Shards whose records a test may change."""
    return [replace(each, record=with_fields(each.record, {})) for each in opened]


def put(own, number, path, value):
    own[number] = replace(own[number], record=with_fields(own[number].record, {path: value}))


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
        ("seconds", {"write": 0.5, "total": 1.0}),
        ("created", "2027-01-01T00:00:00+00:00"),
        ("command", ["scoremode", "ppl", "elsewhere"]),
        ("schedule.pass_windows", 8),
    ],
)
def test_where_things_lie_and_how_long_they_took_may_differ(own, path, value):
    put(own, 1, path, value)
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
        ("calibration", CALIBRATION),
        ("reference", {"kind": "stored", "source": "ref", "sha256": "0"}),
        ("identity.engine.dtype", "float32"),
        ("identity.engine.device.name", "another GPU"),
        ("identity.engine.device.threads", 7),
        ("identity.versions.torch", "0"),
        ("identity.versions.scoremode", "0"),
        ("identity.full", True),
        ("identity.confident", 0.5),
        ("identity.token_text", True),
        ("identity.calibration", {"sha256": "0"}),
        ("identity.labels", "0" * 64),
        ("identity.reference", {"kind": "stored", "sha256": "0"}),
        ("engine.kv_cache", KV_CACHE),
        ("engine.head", {"scale": 2.0}),
        ("engine.device.name", "another GPU"),
        ("engine.layers", "window by window"),
        ("engine.unused_tensors", ["x"]),
        ("shard.batches_sha256", "0" * 64),
    ],
)
@pytest.mark.parametrize("number", [0, 2])
def test_whatever_else_differs_is_refused_with_both_runs(own, path, value, number):
    put(own, number, path, value)
    words = refusal(check_shards, own)
    assert str(own[0].folder) in words and "(shard " in words
    assert "micro-batches" in words or path.split(".")[0] in words


def test_bases_are_compared_but_for_what_is_of_the_moment(own):
    for i in range(len(own)):
        base = {
            "kind": "stored",
            "source": f"host{i}/ref",
            "path": f"/host{i}/ref",
            "sha256": "ab",
            "states_sha256": "cd",
            "checkpoint": {
                "source": f"{i}",
                "path": f"{i}",
                "fingerprint": "f",
                "files": {"w": "1"},
            },
            "engine": {"tokens": i},
            "replay": {"rows": i, "bitwise": True, "rms": 0.0, "worst": 0.0},
            "replay_at_load": None,
        }
        put(own, i, "reference", base)
        device = {"type": "cpu", "name": "x", "memory_bytes": i}
        put(own, i, "identity.reference", {"kind": "model", "engine": {"device": device}})
    check_shards(own)
    put(own, 2, "reference.checkpoint.files", {"w": "2"})
    words = refusal(check_shards, own)
    assert "its reference checkpoint files w is 2, and the other's 1" in words


def test_twice_missing_and_windows_that_dont_meet(own):
    one, two, three = own
    assert "both are shard 2/3" in refusal(check_shards, [one, two, two, three])
    assert "of which 1 is missing: 3/3" in refusal(check_shards, [one, two])
    begin, end = two.record.shard.windows
    put(own, 1, "shard.windows", [begin + 1, end])
    assert "its windows don't go on" in refusal(check_shards, own)
    own[1] = two
    begin, end = three.record.shard.windows
    put(own, 2, "shard.windows", [begin, end - 1])
    words = refusal(check_shards, own)
    assert "ends at window" in words and str(three.folder) in words


def test_many_missing_shards_are_told_in_a_line(own):
    for i in range(len(own)):
        put(own, i, "shard.of", 100)
    words = refusal(check_shards, own)
    assert "of which 97 are missing: 4/100, 5/100" in words and words.endswith("and 89 more")


SHA256 = "5c" * 32


def _worst(scores: Scores):
    assert scores.against is not None
    return worst_tokens(scores, scores.against)


def merged(own, scores=None):
    scores = scores or made(**overlapping(3000, 64, 64), noise=0.3, full=False)
    return merged_record(own, scores, {}, SHA256, ["scoremode", "merge"])


def test_work_adds_up_and_each_process_is_told(own):
    for i, each in enumerate(own):
        each.record.document["engine"] |= {"tokens": 10 * (i + 1), "peak_bytes": 100 - i}
        each.record.document["engine"]["seconds"] = {"load": 1.5, "layers": float(i)}
        each.record.document["seconds"] = {"score": 2.0 * i, "write": 0.5, "total": 4.0}
    del own[1].record.document["engine"]["seconds"]["load"]
    record = merged(own)
    engine = record["engine"]
    assert engine["tokens"] == 60 and engine["peak_bytes"] == 100
    assert engine["seconds"] == {"load": 3.0, "layers": 3.0}
    assert record["seconds"] == {"score": 6.0, "write": 1.5, "total": 12.0}
    assert [(d["shard"], d["tokens"]) for d in engine["devices"]] == [(1, 10), (2, 20), (3, 30)]
    assert record["command"] == ["scoremode", "merge"] and "shard" not in record["identity"]
    assert not {"shard", "parts", "sha256"} & record.keys()


def test_the_processes_of_a_shard_are_told_with_their_shard(own):
    own[1].record.document["engine"]["devices"] = [
        {"rank": 0, "device": "cuda:0", "tokens": 1},
        {"rank": 1, "device": "cuda:1", "tokens": 2},
    ]
    record = merged(own)
    told = [(d["shard"], d.get("rank")) for d in record["engine"]["devices"]]
    assert told == [(1, None), (2, 0), (2, 1), (3, None)]
    assert [each["processes"] for each in record["merged"]["shards"]] == [1, 2, 1]


def test_one_shard_alone_has_no_list_of_processes(own):
    assert "devices" not in merged(own[:1])["engine"]


def test_replays_are_joined_by_their_rows(own):
    replays = [
        {"rows": 3, "bitwise": True, "rms": 0.0, "worst": 0.0},
        None,
        {"rows": 1, "bitwise": False, "rms": 0.2, "worst": 0.2},
    ]
    for each, replay in zip(own, replays, strict=True):
        each.record.document["reference"] = {"kind": "stored", "source": "ref", "replay": replay}
        each.record.document["reference"]["replay_at_load"] = None
    found = merged(own)["reference"]
    assert found["replay"] == {
        "rows": 4,
        "bitwise": False,
        "rms": pytest.approx(0.1),
        "worst": 0.2,
    }
    assert found["replay_at_load"] is None and found["source"] == "ref"


def test_the_work_of_a_base_beside_adds_up_too(own):
    for each in own:
        engine = each.record.document["engine"]
        each.record.document["reference"] = {"kind": "model", "source": "b", "engine": dict(engine)}
    found = merged(own)["reference"]["engine"]
    assert found["tokens"] == sum(each.record.document["engine"]["tokens"] for each in own)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("of", [1, 2, 3])
def test_the_worst_targets_of_all_have_the_texts_of_their_shard(own, of, seed):
    # Overlapping windows: one place is scored in two shards, and counts by its worst evaluation.
    whole = made(**overlapping(3000, 64, 24), noise=0.5, seed=seed, full=False)
    edges = np.searchsorted(
        whole.window, np.linspace(0, whole.window.max() + 1, of + 1).astype(int)
    )
    for each, begin, end in zip(own[:of], edges, edges[1:], strict=False):
        part = Scores.from_columns({k: v[begin:end] for k, v in whole.columns().items()})
        facts = _worst(part)
        each.record.document["worst"] = [
            f | {"target_text": f"{f['window']} {f['position']}"} for f in facts
        ]
        each.record.document["reference"] = {"kind": "stored", "source": "ref"}
    found = merged(own[:of], whole)["worst"]
    wanted = _worst(whole)
    assert [{k: f[k] for k in w} for f, w in zip(found, wanted, strict=True)] == wanted
    assert all(f["target_text"] == f"{f['window']} {f['position']}" for f in found)
