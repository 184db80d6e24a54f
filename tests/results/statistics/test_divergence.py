"""The metrics of a comparison, their intervals and percentiles, against plain loops over rows."""

import math
from dataclasses import replace

import numpy as np
import pytest
from support.comparisons import interval_by_hand, made, overlapping

from scoremode.results.record.sections import sections
from scoremode.results.scores import Comparison, Scores
from scoremode.results.statistics import bootstrap

LENGTH = 40


def by_hand(scores: Scores) -> dict[str, np.ndarray]:
    """Per row, in plain Python: what each metric is the mean of."""
    c = scores.against
    assert c is not None
    rows = range(len(scores))
    p_q = [math.exp(x) for x in scores.logprob]
    p_b = [math.exp(x) for x in c.base_logprob]
    values = {
        "nll": [-x for x in scores.logprob],
        "nll_base": [-x for x in c.base_logprob],
        "ppl_ratio": [c.base_logprob[i] - scores.logprob[i] for i in rows],
        "kld": list(c.kld),
        "kld_reverse": list(c.kld_reverse),
        "top1": [float(scores.top1[i] == c.base_top1[i]) for i in rows],
        "delta_p": [p_q[i] - p_b[i] for i in rows],
        "rms_delta_p": [(p_q[i] - p_b[i]) ** 2 for i in rows],
    }
    if c.jsd is not None:
        assert c.topk_sets is not None and c.topk_order is not None
        values["jsd"] = list(c.jsd)
        assert c.base_entropy is not None and c.model_entropy is not None
        values |= {"entropy": list(c.model_entropy), "entropy_base": list(c.base_entropy)}
        for k in range(1, 11):
            values[f"top{k}_sets"] = [float(bool(int(x) & 2 ** (k - 1))) for x in c.topk_sets]
            values[f"top{k}_order"] = [float(x >= k) for x in c.topk_order]
    return {name: np.array(column, np.float64) for name, column in values.items()}


THEN = {"ppl_ratio": math.exp, "rms_delta_p": math.sqrt}


@pytest.mark.parametrize("weighted", [False, True])
def test_every_metric_is_the_one_computed_by_hand(weighted):
    scores = made(**overlapping(1200, LENGTH, 13), noise=0.4)
    n = len(scores)
    extras, w = {}, np.ones(n)
    if weighted:
        w = np.random.default_rng(8).choice([0.0, 0.5, 1.0, 2.0], n)
        extras["weight"] = w
    found = sections(scores, LENGTH, extras, block_length=LENGTH)["metrics"]
    for name, column in by_hand(scores).items():
        then = THEN.get(name, float)
        mean = math.fsum(column * w) / math.fsum(w)
        assert found[name]["value"] == pytest.approx(then(mean), rel=1e-12, abs=1e-14), name
        low_high = interval_by_hand(column * w, w, scores.index, LENGTH, then)
        assert found[name]["ci95"] == pytest.approx(low_high, rel=1e-7, abs=1e-12), name
        assert (found[name]["n"], found[name]["note"]) == (n, None)
    for name in ("ppl", "ppl_base"):
        nll = found[name.replace("ppl", "nll")]
        assert found[name]["value"] == pytest.approx(math.exp(nll["value"]), rel=1e-14)
        assert found[name]["ci95"] == pytest.approx([math.exp(x) for x in nll["ci95"]], rel=1e-14)
    ratio = found["ppl"]["value"] / found["ppl_base"]["value"]
    assert found["ppl_ratio"]["value"] == pytest.approx(ratio, rel=1e-12)
    assert found["rms_delta_p"]["value"] > abs(found["delta_p"]["value"])
    assert found["top1_sets"]["value"] == found["top1_order"]["value"] == found["top1"]["value"]
    effects = {"confident_flips", "halved", "entropy_change", "kld_p99", "kld_p999"}
    assert set(found) == {*by_hand(scores), *effects, "ppl", "ppl_base"}


def test_the_interval_of_perplexity_is_what_it_was():
    """The draws of all other metrics are its own: for one column both ways give the same."""
    scores = made(np.arange(3000))
    found = sections(scores, LENGTH, {}, block_length=LENGTH)["metrics"]
    assert found["nll"] == bootstrap.perplexity(scores, LENGTH)["nll"].to_json()
    sums = scores.nll.reshape(-1, LENGTH).sum(1)
    totals = np.full(len(sums), float(LENGTH))
    many = bootstrap.percentile_interval(bootstrap.resampled(sums[None], totals[None]), len(sums))[
        :, 0
    ]
    assert many == pytest.approx(bootstrap.block_bootstrap(sums, totals), rel=1e-12)


def test_a_model_against_itself_is_0_exactly():
    scores = made(np.arange(1000), noise=0.0)
    found = sections(scores, LENGTH, {"token_bytes": np.ones(1000, np.uint16)}, block_length=LENGTH)
    metrics = found["metrics"]
    zero = ("kld", "kld_reverse", "jsd", "delta_p", "rms_delta_p")
    one = ("ppl_ratio", "top1", *(f"top{k}_{of}" for k in range(1, 11) for of in ("sets", "order")))
    for names, value in ((zero, 0), (one, 1)):
        for name in names:
            assert (metrics[name]["value"], metrics[name]["ci95"]) == (value, [value, value]), name
    for name in ("ppl", "nll", "bits_per_byte"):
        assert metrics[name] == metrics[f"{name}_base"]
    assert set(found["distribution"]["kld"].values()) == {0.0}


def test_the_paired_interval_is_much_narrower():
    scores = made(np.arange(6000), noise=0.1)
    found = sections(scores, LENGTH, {}, block_length=LENGTH)["metrics"]
    alone = np.ptp(np.log(found["ppl"]["ci95"]))
    paired = np.ptp(np.log(found["ppl_ratio"]["ci95"]))
    assert paired < alone / 10


@pytest.mark.parametrize(("tokens", "has"), [(1, False), (280, False), (281, True)])
def test_below_eight_blocks_no_metric_has_an_interval(tokens, has):
    extras = {"token_bytes": np.ones(tokens, np.uint16)}
    found = sections(made(np.arange(tokens)), LENGTH, extras, block_length=LENGTH)
    # Those of few targets: tests/results/statistics/test_effects.py.
    few = ("confident_flips", "halved", "kld_p99", "kld_p999")
    for name, metric in found["metrics"].items():
        assert (metric["ci95"] is not None) == has or name in few, name
        assert math.isfinite(metric["value"])
        if not has and name not in few:
            blocks = -(-tokens // LENGTH)
            assert metric["note"] == bootstrap.too_few(blocks, LENGTH)


def test_one_token():
    scores = made(np.array([3]), noise=0.5)
    assert scores.against is not None
    found = sections(scores, LENGTH, {}, block_length=LENGTH)
    kld = float(scores.against.kld[0])
    assert found["metrics"]["kld"]["value"] == kld
    assert set(found["distribution"]["kld"].values()) == {kld}
    assert [g["n"] for groups in found["breakdown"].values() for g in groups] == [1, 1]


@pytest.mark.parametrize("n", [1, 2, 7, 1001, 1234])
def test_percentiles_are_those_of_the_library(n):
    scores = made(np.arange(n), noise=0.3)
    c = scores.against
    assert c is not None
    columns = {
        "kld": c.kld,
        "kld_reverse": c.kld_reverse,
        "jsd": c.jsd,
        "delta_p": np.exp(scores.logprob) - np.exp(c.base_logprob),
    }
    found = sections(scores, LENGTH, {}, block_length=LENGTH)["distribution"]
    assert set(found) == set(columns)
    names = ["0.1", "1", "5", "10", "25", "50", "75", "90", "95", "99", "99.9"]
    for name, column in columns.items():
        assert list(found[name]) == ["minimum", *names, "maximum"]
        wanted = np.percentile(column, [float(p) for p in names])
        assert [found[name][p] for p in names] == pytest.approx(wanted, rel=1e-12, abs=1e-16)
        assert (found[name]["minimum"], found[name]["maximum"]) == (column.min(), column.max())


def test_percentiles_are_those_of_llama_cpp():
    """Its `percentile()`: p·v[i + 1] + (1 - p)·v[i] at the place fraction · (n − 1)."""
    scores = made(np.arange(777), noise=0.3)
    assert scores.against is not None
    v = sorted(scores.against.kld)
    found = sections(scores, LENGTH, {}, block_length=LENGTH)["distribution"]["kld"]
    for percent in (0.1, 1, 5, 10, 50, 90, 95, 99, 99.9):
        place = percent / 100 * 776
        i, p = int(place), place - int(place)
        assert found[f"{percent:g}"] == pytest.approx((1 - p) * v[i] + p * v[i + 1], rel=1e-12)


def test_what_was_not_asked_for_is_not_there():
    found = sections(made(np.arange(400), full=False), LENGTH, {}, block_length=LENGTH)
    assert set(found["distribution"]) == {"kld", "kld_reverse", "delta_p"}
    assert not [
        name for name in found["metrics"] if name == "jsd" or "_sets" in name or "entropy" in name
    ]


def test_negative_divergences_of_rounding_pass():
    scores = made(np.arange(400), noise=0.0)
    c = scores.against
    assert isinstance(c, Comparison)
    rounded = replace(scores, against=replace(c, kld=c.kld - 1e-9))
    assert sections(rounded, LENGTH, {}, block_length=LENGTH)["metrics"]["kld"][
        "value"
    ] == pytest.approx(-1e-9)
