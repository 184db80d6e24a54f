"""Comparing runs: the ranking, the paired tests, and everything that can't be compared."""

import json
import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from comparisons import interval_by_hand, made, overlapping
from run_folders import BASE_FILES, CONTEXT, REFERENCE, write_run

from scoremode.errors import RunFolderError, UsageError
from scoremode.results.comparison.ranking import ranking
from scoremode.results.folders.store import read_record, read_scores
from scoremode.results.scores import Scores
from scoremode.results.statistics import bootstrap

# Some windows of a block, and enough blocks.
PLACES = overlapping(12_000, CONTEXT, 48)
NOISE = {"W8A16": 0.02, "W4A16": 0.3, "W2A16": 1.0}


def scores_of(noise: float, seed: int = 0) -> Scores:
    return made(**PLACES, noise=noise, seed=seed, full=False)


def base_alone() -> Scores:
    base = scores_of(0.0)
    return replace(base, against=None)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Runs of one plan that tests only read: three against a base, and the base alone."""
    folder = tmp_path_factory.mktemp("runs")
    runs = {name: write_run(folder / name, scores_of(noise)) for name, noise in NOISE.items()}
    runs["base"] = write_run(folder / "base", base_alone(), files=BASE_FILES)
    alone = replace(scores_of(0.3, 5), against=None)
    runs["alone"] = write_run(folder / "alone", alone)
    return runs


@pytest.fixture
def one(tmp_path):
    """A run of the same plan with a changed record."""

    def write(changes=None, scores=None, name="one"):
        return write_run(tmp_path / name, scores or scores_of(0.3), changes=changes)

    return write


def names(value) -> list[str]:
    return [run["model"] for run in value["runs"]]


def test_the_best_comes_first_by_kld(written):
    value = ranking([written[n] for n in ("W4A16", "W2A16", "W8A16")])
    assert names(value) == ["W8A16", "W4A16", "W2A16"]
    assert value["ranked_by"] == "kld" and "same reference" in value["why"]
    assert value["reference"] == REFERENCE
    for run in value["runs"]:
        record = read_record(written[run["model"]])
        for name in ("ppl", "ppl_ratio", "kld", "top1"):
            assert run[name] == record["metrics"][name]
        assert run["kld_p99"] == record["distribution"]["kld"]["99"]
        assert (run["bits_per_weight"], run["gib"]) == (4.125, 0.5)
        assert run["ratio_to"] == "reference" and not run["is_base"]
    assert value["differing"] == [] and value["notes"] == []
    json.dumps(value, allow_nan=False)


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
    assert names(ranking([first, second, third])) == ["m (x)", "m (y)", "n"]
    fourth = write_run(tmp_path / "more" / "x", scores_of(0.3), model="m")
    assert names(ranking([first, fourth])) == [f"m ({first})", f"m ({fourth})"]


REFUSED = {
    "protocol.stride": (32, "protocol's stride 32 and 64"),
    "protocol.context_length": (128, "protocol's context_length 128 and 64"),
    "protocol.average": ("hf-guide", "protocol's average hf-guide and None"),
    "tokenizer.sha256": ("x", f"tokenizer sha256 x and {'70' * 32}"),
    "corpus.text.sha256": ("x", f"text sha256 x and {'7e' * 32}"),
    "plan.tokens_sha256": ("x", f"token ids sha256 x and {'a0' * 32}"),
    "plan.window_bos": (3, "BOS of windows 3 and None"),
}


@pytest.mark.parametrize("field", REFUSED)
def test_another_measurement_is_refused_and_the_field_named(field, one, written):
    value, said = REFUSED[field]
    # Another text, or another tokenizer, comes with other token ids.
    ids = {} if field.startswith(("plan", "protocol")) else {"plan.tokens_sha256": "x"}
    other = one(ids | {field: value})
    with pytest.raises(RunFolderError, match="are not comparable: ") as refused:
        ranking([other, written["W8A16"]])
    assert str(refused.value).endswith(said)
    assert f"{other} and {written['W8A16']}" in str(refused.value)


def test_other_windows_of_one_text_are_refused(one, written):
    columns = scores_of(0.3).columns()
    fewer = {name: column[columns["window"] < 200] for name, column in columns.items()}
    with pytest.raises(RunFolderError, match="number of windows 200 and 249"):
        ranking([one(scores=Scores.from_columns(fewer)), written["W8A16"]])


def test_the_protocol_s_field_is_named_before_the_others(one, written):
    changes = {field: value for field, (value, _) in REFUSED.items() if field != "protocol.stride"}
    other = one(changes)
    with pytest.raises(RunFolderError, match="protocol's context_length 128 and 64"):
        ranking([other, written["W8A16"]])


def test_another_softmax_width_is_refused(one, written):
    with pytest.raises(RunFolderError, match=r"entries of the softmax 12 and 13$"):
        ranking([written["W8A16"], one({"engine.vocabulary": 13})])


def test_another_name_of_the_protocol_and_another_tokenizer_file_are_not(one, written):
    other = one({"protocol.name": "mine", "tokenizer.sha256": "x"})
    value = ranking([written["W8A16"], other])
    assert [d["field"] for d in value["differing"]] == ["tokenizer sha256"]


def test_runs_against_other_references_are_refused_naming_both(one, written):
    other = one({"reference.sha256": "2e" * 32, "reference.source": "models/other"})
    with pytest.raises(RunFolderError, match=r"other references: .*--by ppl") as refused:
        ranking([written["W8A16"], other])
    for words in ("models/base", "models/other", "1f1f1f", "2e2e2e", str(other)):
        assert words in str(refused.value)
    value = ranking([written["W8A16"], other], "ppl")
    assert value["reference"] is None and "left out" in value["notes"][0]
    for run in value["runs"]:
        assert run["kld"] is run["kld_p99"] is run["top1"] is run["ppl_ratio"] is None
    assert set(value["tests"][0]["verdict"]) == {"ppl"}


def test_the_same_folder_twice_is_refused(written):
    folder = written["W8A16"]
    with pytest.raises(UsageError, match="the same run twice: "):
        ranking([folder, written["base"], folder / ".." / folder.name])


METRIC = {"value": 1.0, "ci95": None, "n": 1, "note": None}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": "running", "parts": []}, "is not done: its status is 'running'"),
        ({"status": "invalid", "reason": "nll is nan"}, "'invalid' (nll is nan)"),
        ({"status": 1}, "its status is 1, not one of running, done, invalid"),
        ({"schema": "another"}, "its record is 'another' version 2"),
        (
            {"schema_version": 3},
            "version 3 (a newer scoremode's), not 'scoremode.record' version 1 to 2",
        ),
        ({"schema_version": 1}, "its schema_version is 1, and it has hashes"),
        ({"metrics": {}}, "has no metrics.ppl"),
        ({"metrics.ppl.value": "1"}, "its metrics.ppl.value is '1', not a number"),
        ({"protocol": None}, "its protocol is None, not an object"),
        ({"checkpoint": []}, "its checkpoint is [], not an object"),
        ({"metrics.top1": 0.5}, "its metrics.top1 is 0.5, not an object"),
        ({"metrics.ppl.ci95": [None]}, "its metrics.ppl.ci95 is [None], not a list of 2"),
        ({"metrics.ppl.ci95": [None, 1.0]}, "its metrics.ppl.ci95.0 is None, not a number"),
        ({"metrics.kld.value": 1.0}, "its metrics.kld.value is 1.0, and its scores give 0.02803"),
        ({"metrics.ppl": {"value": 1.0}}, "has no metrics.ppl.ci95"),
        ({"metrics.own": {"value": 1.0}}, "has no metrics.own.ci95"),
        ({"metrics.own": METRIC}, "has metrics.own, which its scores don't give"),
        ({"protocol.context_length": None}, "its protocol.context_length is None"),
        ({"protocol.context_length": "64"}, "its protocol.context_length is '64'"),
        ({"metrics.nll.value": 2.0}, "its metrics.nll.value is 2.0, and its scores give 2.325"),
        ({"metrics.nll.value": None}, "its metrics.nll.value is None, not a number"),
        ({"metrics.nll.value": 10**400}, "000000…, not a number"),
        ({"distribution.kld.99": 0.1}, "its distribution.kld.99 is 0.1, and its scores give 0."),
        ({"breakdown.position": []}, "its breakdown.position is [], and its scores give [{"),
        ({"llama_cpp.kld.value": 0.1}, "its llama_cpp.kld.value is 0.1, and its scores give 0."),
        ({"engine.seconds.load": "x"}, "its engine.seconds.load is 'x', not a number"),
        ({"plan.scored": 5}, "15687 scores, and its record has 5"),
    ],
)
def test_what_is_no_finished_run_is_refused(changes, said, one):
    folder = one(changes)
    with pytest.raises(RunFolderError, match=re.escape(said)) as refused:
        ranking([folder])
    assert str(folder) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("section", ["distribution", "breakdown", "llama_cpp"])
def test_a_section_that_its_scores_do_not_give_is_refused(section, one):
    folder = one({section: {}}, scores=replace(scores_of(0.3), against=None))
    with pytest.raises(RunFolderError, match=f"has {section}, which its scores don't give"):
        ranking([folder])


def test_what_cannot_be_read_is_refused(one, written, tmp_path):
    with pytest.raises(RunFolderError, match="no readable record"):
        ranking([tmp_path / "nothing"])
    folder = one()
    (folder / "scores.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        RunFolderError, match=r"scores\.parquet: is damaged or another's: its sha256"
    ):
        ranking([folder])
    shutil.copy(written["alone"] / "scores.parquet", folder)
    with pytest.raises(
        RunFolderError, match=r"scores\.parquet: is damaged or another's: its sha256"
    ):
        ranking([folder])
    (folder / "scores.parquet").unlink()
    with pytest.raises(RunFolderError, match="missing, and the record alone is not believed"):
        ranking([folder])


def test_scores_of_other_targets_are_refused(one, written):
    scores = scores_of(0.3)
    target = scores.target.copy()
    row = np.flatnonzero(target != scores.top1)[0]
    target[row] = ({0, 1, 2} - {target[row], scores.top1[row]}).pop()
    other = one(scores=replace(scores, target=target))
    with pytest.raises(RunFolderError, match="scores of other targets"):
        ranking([written["W8A16"], other])


def test_what_else_differs_is_noted(one, written):
    other = one({"engine.dtype": "float32", "versions.torch": "9.9", "engine.device.name": "x"})
    value = ranking([written["W8A16"], other, written["W4A16"]])
    fields = {d["field"]: d["values"] for d in value["differing"]}
    assert set(fields) == {"dtype", "version of torch", "device"}
    assert fields["dtype"] == {"bfloat16": ["W8A16", "W4A16"], "float32": ["one"]}
