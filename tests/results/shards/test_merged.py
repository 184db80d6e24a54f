"""The record of a merged run: sums of work, joined replays, and the worst targets of all."""

from dataclasses import replace

import numpy as np
import pytest
from support.comparisons import made, overlapping
from support.records import with_fields
from support.shard_runs import asked, shards

from scoremode.results.scores import Scores
from scoremode.results.shards.checks import open_shard
from scoremode.results.shards.merge import merged_record
from scoremode.results.statistics.divergence import worst_tokens

SHA256 = "5c" * 32


@pytest.fixture(scope="module")
def opened(demo, tmp_path_factory):
    return [open_shard(f) for f in shards(asked(demo, tmp_path_factory.mktemp("r"), 5000), 3)]


@pytest.fixture
def own(opened):
    """Shards whose records a test may change."""
    return [replace(each, record=with_fields(each.record, {})) for each in opened]


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
