"""Comparing runs: the ranking, the paired tests, and everything that can't be compared."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.chats.blocks import NUMBERS, chat_scores, ends_by_hand, write_chat_run
from support.comparisons import interval_by_hand, made, overlapping
from support.run_folders import (
    BASE_FILES,
    CONTEXT,
    PLACES,
    REFERENCE,
    labels_of,
    scores_of,
    write_run,
)

from scoremode.errors import RunFolderError, UsageError
from scoremode.report.compare import compare_document
from scoremode.report.terminal import document_text
from scoremode.results.comparison.ranking import (
    base_row,
    gib_of,
    is_base,
    ranking,
    run_row,
)
from scoremode.results.folders.store import read_record, read_scores
from scoremode.results.record.definition import read_document
from scoremode.results.scores import Scores
from scoremode.results.statistics import bootstrap


def names(value) -> list[str]:
    return [run["label"] for run in value["runs"]]


def test_the_best_comes_first_by_kld(written):
    value = ranking([written[n] for n in ("W4A16", "W2A16", "W8A16")])
    assert names(value) == ["W8A16", "W4A16", "W2A16"]
    assert value["ranked_by"] == "kld" and "same reference" in value["why"]
    assert value["reference"] == REFERENCE
    for run in value["runs"]:
        record = read_record(written[run["model"]])
        for name in ("ppl", "ppl_ratio", "kld", "top1"):
            own = record["metrics"][name]
            assert (run[name]["value"], run[name]["n"]) == (own["value"], own["n"])
        assert run["kld_p99"] == record["distribution"]["kld"]["99"]
        assert (run["bits_per_weight"], run["gib"]) == (4.125, 0.5)
        assert run["ratio_to"] == "reference" and not run["is_base"]
    assert value["differing"] == [] and value["notes"] == []
    json.dumps(value, allow_nan=False)


def test_the_frontier_has_those_that_no_other_run_beats_in_size_and_kld(tmp_path):
    """As the page has it: at most as large and at most as far off beats, equal in both doesn't."""
    sizes = {"far": (0.5, 100), "near": (0.1, 300), "beaten": (0.3, 300), "twin": (0.1, 300)}
    runs = [
        write_run(tmp_path / name, scores_of(noise), changes={"checkpoint.bytes": size})
        for name, (noise, size) in sizes.items()
    ]
    value = ranking(runs)
    assert set(value["frontier"]) == {"near", "twin", "far"} and value["frontier"][-1] == "far"
    said = next(
        line
        for line in document_text(compare_document(value)).splitlines()
        if line.startswith("frontier ")
    )
    assert said.endswith("far: no other run is both smaller and closer to the base (KLD)")
    assert "lower PPL" in document_text(compare_document(ranking(runs, "ppl")))
    assert ranking(runs[:1])["frontier"] is None
    assert "frontier" not in document_text(compare_document(ranking(runs[:1])))


def test_by_perplexity_where_asked_or_where_a_run_has_no_kld(written):
    some = [written[n] for n in ("W2A16", "W8A16")]
    value = ranking(some, "ppl")
    assert value["ranked_by"] == "ppl" and value["why"] == "as asked"
    ppl = [run["ppl"]["value"] for run in value["runs"]]
    assert ppl == sorted(ppl)
    mixed = ranking([*some, written["alone"]])
    assert mixed["ranked_by"] == "ppl"
    assert mixed["why"] == f"{written['alone']} has no KLD"
    (alone,) = [run for run in mixed["runs"] if run["model"] == "alone"]
    assert alone["kld"] is alone["ppl_ratio"] is alone["ratio_to"] is None
    with pytest.raises(UsageError, match=f"--by kld: {written['alone']} has no KLD"):
        ranking([*some, written["alone"]], "kld")
    assert ranking([written["alone"]])["why"] == "no run has a KLD"


def test_the_base_is_known_by_its_files_and_stands_first(written):
    value = ranking([written[n] for n in ("W4A16", "base", "W8A16")])
    assert names(value) == ["base", "W8A16", "W4A16"]
    assert value["ranked_by"] == "kld"
    assert [run["is_base"] for run in value["runs"]] == [True, False, False]
    assert value["runs"][0]["ppl_ratio"] is None
    # Its test against the best has the perplexities only.
    assert set(value["tests"][0]["verdict"]) == {"ppl"}
    ratio = value["tests"][0]["ppl_ratio"]["value"]
    assert 1 / ratio == pytest.approx(value["runs"][1]["ppl_ratio"]["value"], rel=1e-12)


def test_the_bases_files_at_a_distance_from_the_base_are_a_model_of_their_own(written, tmp_path):
    other = write_run(tmp_path / "kv", scores_of(0.1), model="models/base", files=BASE_FILES)
    value = ranking([written["W4A16"], other, written["base"]])
    (run,) = [run for run in value["runs"] if run["folder"] == str(other)]
    assert not run["is_base"] and run["kld"]["value"] > 0
    assert [run["is_base"] for run in value["runs"]].count(True) == 1
    alone = ranking([written["W4A16"], other])
    assert not any(run["is_base"] for run in alone["runs"]) and alone["base"]["is_base"]


def test_a_run_without_reference_is_set_against_the_run_of_the_base(written):
    value = ranking([written[n] for n in ("alone", "W8A16", "base")])
    assert value["ranked_by"] == "ppl"
    (alone,) = [run for run in value["runs"] if run["model"] == "alone"]
    assert alone["ratio_to"] == "run of the base" and alone["kld"] is None
    d = read_scores(written["alone"]).nll - read_scores(written["base"]).nll
    assert alone["ppl_ratio"]["value"] == pytest.approx(math.exp(d.mean()), rel=1e-12)
    ends = interval_by_hand(d, np.ones(len(d)), PLACES["index"], value["block_length"], math.exp)
    assert alone["ppl_ratio"]["ci95"] == pytest.approx(ends, rel=1e-7)
    # Without a reference among the runs nobody knows which of them is a base.
    plain = ranking([written["alone"], written["base"]])
    assert [run["ppl_ratio"] for run in plain["runs"]] == [None, None]


@pytest.mark.parametrize("weighted", [False, True])
def test_paired_tests_are_those_made_by_hand(weighted, tmp_path):
    a, b = scores_of(0.1), scores_of(0.35)
    w, extras = np.ones(len(a)), {}
    if weighted:
        w = extras["weight"] = np.random.default_rng(0).choice([0.0, 0.5, 1.0], len(a))
    folders = [
        write_run(tmp_path / name, scores, extras=extras) for name, scores in (("a", a), ("b", b))
    ]
    value = ranking(folders)
    (test,), length = value["tests"], value["block_length"]
    assert (test["a"], test["b"]) == ("a", "b")
    assert length >= 1024 and length % CONTEXT == 0
    assert a.against is not None and b.against is not None
    d = a.nll - b.nll
    ends = interval_by_hand(d * w, w, a.index, length, math.exp)
    assert test["ppl_ratio"]["value"] == pytest.approx(math.exp(np.average(d, weights=w)))
    assert test["ppl_ratio"]["ci95"] == pytest.approx(ends, rel=1e-7)
    d = a.against.kld - b.against.kld
    ends = interval_by_hand(d * w, w, a.index, length)
    assert test["kld_difference"]["value"] == pytest.approx(np.average(d, weights=w), rel=1e-12)
    assert test["kld_difference"]["ci95"] == pytest.approx(ends, rel=1e-7)
    assert test["ppl_difference"]["value"] == pytest.approx(
        math.exp(np.average(a.nll, weights=w)) - math.exp(np.average(b.nll, weights=w)), rel=1e-9
    )
    assert test["ppl_difference"]["ci95"] == pytest.approx(
        difference_by_hand(a, b, w, length), rel=1e-7, abs=1e-9
    )
    assert test["verdict"]["kld"] == "better"
    assert all(test[name]["n"] == len(a) for name in test if isinstance(test[name], dict)
               and "n" in test[name])  # fmt: skip


def difference_by_hand(a: Scores, b: Scores, w: np.ndarray, length: int) -> list[float]:
    block = a.index // length
    table = np.array(
        [[(s * w)[block == k].sum() for s in (a.nll, b.nll, np.ones(len(a)))] for k in set(block)]
    )
    table = table[table[:, 2] > 0]
    drawn = np.random.default_rng(20_481).integers(len(table), size=(10_000, len(table)))
    sums = np.array([table[d].sum(0) for d in drawn])
    difference = np.exp(sums[:, 0] / sums[:, 2]) - np.exp(sums[:, 1] / sums[:, 2])
    tail = bootstrap._expanded_tail(len(table))
    return list(np.percentile(difference, [100 * tail, 100 - 100 * tail]))


def test_the_paired_interval_is_much_narrower_than_the_two_apart(written):
    value = ranking([written["W8A16"], written["W4A16"]])
    (test,) = value["tests"]
    paired = np.ptp(test["ppl_difference"]["ci95"])
    for run in value["runs"]:
        assert np.ptp(run["ppl"]["ci95"]) > 5 * paired
    assert test["verdict"] == {"ppl": "better", "kld": "better"}


def test_two_equal_models_are_not_distinguishable(tmp_path):
    folders = [write_run(tmp_path / name, scores_of(0.3)) for name in ("a", "b")]
    (test,) = ranking(folders)["tests"]
    assert test["ppl_difference"]["ci95"] == test["kld_difference"]["ci95"] == [0, 0]
    assert test["ppl_ratio"]["ci95"] == [1, 1]
    assert test["verdict"] == {"ppl": "not distinguishable", "kld": "not distinguishable"}


def test_two_models_of_one_quality_are_not_distinguishable(tmp_path):
    folders = [write_run(tmp_path / f"{seed}", scores_of(0.3, seed)) for seed in (3, 4)]
    (test,) = ranking(folders)["tests"]
    low, high = test["ppl_difference"]["ci95"]
    assert low < 0 < high
    assert test["verdict"]["ppl"] == "not distinguishable"


def test_what_is_not_told_apart_is_tied(tmp_path):
    """Three of one quality and a fourth: the three share their ranks, whatever their order."""
    runs = {"a": (0.3, 3), "b": (0.3, 4), "c": (0.3, 5), "far": (0.9, 6)}
    folders = [write_run(tmp_path / name, scores_of(*how)) for name, how in runs.items()]
    value = ranking(folders, "ppl")
    assert {run["label"]: run["ranks"] for run in value["runs"]} == {
        "a": [1, 3], "b": [1, 3], "c": [1, 3], "far": [4, 4],
    }  # fmt: skip
    text = document_text(compare_document(value))
    first = text.splitlines()[0]
    assert first.startswith("best: ") and ", tied with " in first and " and far" not in first
    assert "1–3" in text


def test_a_difference_of_kld_within_the_noise_floor_is_a_tie(tmp_path):
    kld = {"value": 0.5, "ci95": None, "n": 10, "note": "few"}
    floor = {"words": "with another attention", "kld": kld, "resolves": True}
    folders = [
        write_run(tmp_path / f"{noise}", scores_of(noise), changes=changes)
        for noise, changes in ((0.1, {}), (0.11, {"noise_floor": floor}))
    ]
    assert ranking(folders[:1])["runs"][0]["ranks"] == [1, 1]
    value = ranking(folders)
    (test,) = value["tests"]
    assert test["kld_difference"]["ci95"][1] < 0
    assert test["verdict"]["kld"] == "not distinguishable"
    assert [run["ranks"] for run in value["runs"]] == [[1, 2], [1, 2]]


def test_verdicts_beside_the_base_have_the_margin_that_was_asked_for(written):
    def kinds(margin):
        found = ranking([written["W4A16"], written["base"]], margin=margin)["runs"]
        assert [one["verdicts"] for one in found if one["is_base"]] == [[]]
        (run,) = [one for one in found if not one["is_base"]]
        return {one["metric"]: one["kind"] for one in run["verdicts"]}

    assert kinds(0.5) == dict.fromkeys(("kld", "ppl_ratio", "acceptance"), "equivalent")
    assert kinds(1e-4)["kld"] == "worse"


def test_without_enough_blocks_there_is_no_verdict(tmp_path):
    few = overlapping(7168, CONTEXT, 64)
    folders = [write_run(tmp_path / f"{noise}", made(**few, noise=noise)) for noise in (0.1, 0.2)]
    (test,) = ranking(folders)["tests"]
    assert test["ppl_difference"]["ci95"] is test["kld_difference"]["ci95"] is None
    note = "7 blocks of 1,024 tokens: an interval needs at least 8"
    assert test["verdict"] == {"ppl": f"no interval: {note}", "kld": f"no interval: {note}"}


def test_one_run_is_a_ranking_without_tests(written):
    value = ranking([written["W8A16"]])
    assert names(value) == ["W8A16"] and value["tests"] == []


def test_models_of_one_name_are_told_apart_by_their_folders(one, tmp_path):
    first = one({"checkpoint.source": "hub:org/m@abc"}, name="x")
    second = one({"checkpoint.source": "local/m"}, name="y")
    third = one({"checkpoint.source": "at@home/n"}, name="z")
    value = ranking([first, second, third])
    assert names(value) == ["m (org)", "m (local)", "n"]
    assert [run["model"] for run in value["runs"]] == ["m", "m", "n"]
    # One model twice.
    again = one({"checkpoint.source": "local/m"}, name="x2")
    assert names(ranking([second, again])) == ["m (y)", "m (x2)"]
    fourth = write_run(tmp_path / "more" / "x2", scores_of(0.3), model="local/m")
    assert names(ranking([again, fourth])) == [f"m ({again})", f"m ({fourth})"]


def test_a_run_is_called_what_its_user_says_and_the_base_too(one):
    plain = one({"checkpoint.source": "m/base-Q4.gguf"}, name="x")
    given = one({"checkpoint.source": "m/base-Q5.gguf", "label": "ours"}, name="y")
    value = ranking([plain, given])
    assert names(value) == ["Q4", "ours"] and value["base"]["label"] == "base"
    assert [run["model"] for run in value["runs"]] == ["base-Q4", "base-Q5"]
    assert (value["tests"][0]["a"], value["tests"][0]["b"]) == ("Q4", "ours")
    labeled = one({"checkpoint.source": "m/base-Q4.gguf", "reference.label": "dense"}, name="z")
    assert ranking([labeled])["base"]["label"] == "dense"


def test_caches_of_one_model_are_told_apart_by_their_formats(one):
    plain = one({"checkpoint.source": "org/m"}, name="x")
    caches = [
        one({"checkpoint.source": "org/m", "engine.kv_cache_dtype": cache}, name=f"y{i}")
        for i, cache in enumerate(("q4_0", "int8-token", "int8-token"))
    ]
    assert names(ranking([plain, caches[0]])) == ["m", "m, KV q4_0"]
    # Where all have the same, it tells none from another.
    assert names(ranking(caches[1:])) == ["m (y1)", "m (y2)"]
    together = names(ranking([plain, *caches]))
    assert sorted(together) == ["m", "m, KV int8-token (y1)", "m, KV int8-token (y2)", "m, KV q4_0"]
    (differing,) = (d for d in ranking([plain, caches[0]])["differing"] if d["field"] == "KV cache")
    assert differing["values"] == {"none": ["m"], "q4_0": ["m, KV q4_0"]}


def test_runs_against_other_references_are_refused_naming_both(one, written):
    other = one({"reference.sha256": "2e" * 32, "reference.source": "models/other"})
    with pytest.raises(RunFolderError, match=r"other references: .*--by ppl") as refused:
        ranking([written["W8A16"], other])
    for words in ("references: models/base and models/other: ", str(other)):
        assert words in str(refused.value)
    again = one({"reference.sha256": "2e" * 32, "engine.dtype": "float16"}, name="again")
    with pytest.raises(
        RunFolderError, match=r"models/base \(sha256 1f.* models/base \(sha256 2e2e"
    ):
        ranking([written["W8A16"], again])
    value = ranking([written["W8A16"], other], "ppl")
    assert value["reference"] is None and "left out" in value["notes"][0]
    for run in value["runs"]:
        assert run["kld"] is run["kld_p99"] is run["top1"] is run["ppl_ratio"] is None
    assert set(value["tests"][0]["verdict"]) == {"ppl"}


def test_the_same_folder_twice_is_refused(written):
    folder = written["W8A16"]
    with pytest.raises(UsageError, match="the same run twice: "):
        ranking([folder, written["base"], folder / ".." / folder.name])


def test_a_base_has_one_interval_whichever_run_it_is_read_from(tmp_path):
    """A run's blocks are chosen from its own scores, and the KLD of some drifts over the text: where
    runs are shown together one length serves all."""
    folders = [write_run(tmp_path / "even", scores_of(0.1))]
    for name, reach in (("drifting", 700), ("far", 500)):
        scores = scores_of(0.1)
        assert scores.against is not None
        level = np.random.default_rng(reach == 700).lognormal(0, 1.5, 12_000 // reach + 1)
        kld = scores.against.kld * level[scores.index // reach]
        changed = replace(scores, against=replace(scores.against, kld=kld))
        folders.append(write_run(tmp_path / name, changed))
    records = [read_record(folder) for folder in folders]
    apart = {tuple(record["metrics"]["ppl_base"]["ci95"]) for record in records}
    assert len(apart) == 3
    own = write_run(
        tmp_path / "base",
        made(**PLACES, noise=0, full=False),
        model="models/base",
        files=BASE_FILES,
    )
    value = ranking(folders)
    length, base = value["block_length"], value["base"]["ppl"]["ci95"]
    assert length == max(record["intervals"]["block_length"] for record in records)
    scores = scores_of(0.1)
    assert scores.against is not None
    ends = interval_by_hand(-scores.against.base_logprob, np.ones(len(scores)), scores.index, length,
                            math.exp)  # fmt: skip
    assert base == pytest.approx(ends, rel=1e-7)
    # The base's own run beside them has the same, and so have two runs whose nll is one.
    among = ranking([*folders, own])
    assert among["block_length"] == length
    shown = {run["model"]: run["ppl"]["ci95"] for run in among["runs"]}
    assert shown["base"] == base and shown["even"] == shown["far"] == shown["drifting"]
    assert f"blocks of {length:,} tokens" in document_text(compare_document(value))


def test_a_base_in_another_dtype_is_noted(tmp_path):
    dtype = {"reference.engine": {"dtype": "float32"}}
    folder = write_run(tmp_path / "a", scores_of(0.1), changes=dtype)
    (note,) = ranking([folder])["notes"]
    assert note == "a: base in float32, model in bfloat16: part of the divergence is arithmetic"


def test_conversations_are_resampled_whole(tmp_path):
    one, two = (write_chat_run(tmp_path / name, 0.3, seed) for name, seed in (("a", 0), ("b", 5)))
    value = ranking([one, two])
    assert value["intervals"] == {
        "blocks": len(NUMBERS), "block_length": 1, "rule": "conversation", "covers": 0.89
    }  # fmt: skip
    (test,), first = value["tests"], value["runs"][0]["model"]
    scores = [chat_scores(0.3, seed)[0] for seed in (0, 5)]
    conversation = chat_scores(0.3)[1]
    a, b = scores if first == "a" else scores[::-1]
    kld = ends_by_hand(a.against.kld - b.against.kld, conversation)
    assert test["kld_difference"]["ci95"] == pytest.approx(kld, rel=1e-8)
    ratio = np.exp(ends_by_hand(a.nll - b.nll, conversation))
    assert test["ppl_ratio"]["ci95"] == pytest.approx(ratio.tolist(), rel=1e-5)
    # A difference of perplexities is no mean: about as wide as its slope times the ratio's.
    low, high = test["ppl_difference"]["ci95"]
    ppl = np.exp(b.nll.mean())
    assert low < test["ppl_difference"]["value"] < high
    assert high - low == pytest.approx(ppl * np.ptp(ratio), rel=0.2)


def test_runs_of_conversations_told_otherwise_are_not_comparable(tmp_path):
    one = write_chat_run(tmp_path / "a", 0.3)
    scores, conversation = chat_scores(0.3)
    other = np.where(conversation == 30, 31, conversation).astype(np.int32)
    record = read_record(one)
    two = write_run(
        tmp_path / "b", scores, extras={"conversation": other},
        changes={"protocol": record["protocol"], "plan": record["plan"]},
    )  # fmt: skip
    with pytest.raises(RunFolderError, match="records of one plan, and scores of other targets"):
        ranking([one, two])


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("runs") / "one"
    return read_record(write_run(folder, scores_of(0.3)))


def test_a_run_s_line_is_its_record_s(record):
    row = run_row(read_document(record), Path("runs/one"), "mine")
    assert (row["label"], row["folder"], row["is_base"]) == ("mine", "runs/one", False)
    assert (row["model"], row["source"]) == ("one", "models/one")
    assert row["kld"] == record["metrics"]["kld"] and row["ratio_to"] == "reference"
    assert row["kld_p99"] == record["distribution"]["kld"]["99"]
    assert (row["bits_per_weight"], row["gib"]) == (4.125, 0.5)


def test_the_base_s_line_has_its_perplexity_and_no_divergence(record):
    stored = {"source": "hub:org/base@1", "fingerprint": "f", "gib": 1.5}
    stored |= {"bits_per_weight": record["checkpoint"]["bits_per_weight"] | {"body": 16.0}}
    found = read_document(record | {"reference": record["reference"] | {"checkpoint": stored}})
    row = base_row(found)
    assert row is not None and row.keys() == run_row(found, None, "x").keys()
    assert (row["label"], row["is_base"]) == ("base", True)
    assert row["ppl"] == record["metrics"]["ppl_base"] and row["kld"] is row["ppl_ratio"] is None
    assert (row["bits_per_weight"], row["gib"]) == (16.0, 1.5)


def test_a_file_of_logits_has_no_size(record):
    logits = {"source": "logits.kld", "checkpoint": None}
    row = base_row(read_document(record | {"reference": logits}))
    assert row is not None
    assert (row["label"], row["gib"], row["bits_per_weight"]) == ("logits.kld", None, None)


def test_a_run_without_a_base_has_none(record):
    alone = {k: v for k, v in record.items() if k != "reference"}
    assert base_row(read_document(alone)) is None


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


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    found = {
        name: write_run(folder / name, scores, extras=labels_of(scores))
        for name, noise in (("Q8", 0.02), ("Q4", 0.3))
        if (scores := scores_of(noise))
    }
    found["plain"] = write_run(folder / "plain", scores_of(0.6))
    other = scores_of(0.9)
    label = np.where(other.index % 2 == 0, "even", "odd").astype(object)
    found["other"] = write_run(folder / "other", other, extras={"label": label})
    return found


def test_every_run_s_groups_are_its_record_s(folders):
    value = ranking([folders["Q4"], folders["Q8"]])
    groups = value["groups"]
    assert {group["group"] for group in groups} == {"prose", "code", "math"}
    for group in groups:
        assert [run["model"] for run in group["runs"]] == ["Q8", "Q4"]
        for run in group["runs"]:
            record = read_record(folders[run["model"]])
            (own,) = [g for g in record["breakdown"]["label"] if g["group"] == group["group"]]
            assert {k: own[k] for k in ("group", "n", "share")} | run == own | {
                "label": run["model"],
                "model": run["model"],
            }
    worst = [max(run["kld"]["value"] for run in group["runs"]) for group in groups]
    assert worst == sorted(worst, reverse=True)
    assert value["notes"] == []
    json.dumps(value, allow_nan=False)


def test_by_perplexity_the_group_of_the_largest_is_first(folders):
    groups = ranking([folders["Q4"], folders["Q8"]], "ppl")["groups"]
    worst = [max(run["ppl"]["value"] for run in group["runs"]) for group in groups]
    assert worst == sorted(worst, reverse=True)


def test_runs_without_groups_or_with_others_are_named(folders):
    value = ranking([folders[name] for name in ("Q8", "plain", "other")])
    assert all([run["model"] for run in group["runs"]] == ["Q8"] for group in value["groups"])
    assert value["notes"] == [
        f"{folders['plain']} has no groups: it is not in their tables",
        f"{folders['other']} has other groups: it is not in their tables",
    ]


def test_without_groups_there_are_none(folders):
    value = ranking([folders["plain"]])
    assert value["groups"] == [] and value["notes"] == []
