"""Verdicts against the definitions, by hand, and how often they are wrong over many texts."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from scoremode.results.record.section import Metric
from scoremode.results.statistics.means import Mean, estimates
from scoremode.results.statistics.pairs import mcnemar
from scoremode.results.statistics.verdict import (
    Verdict,
    answers_verdict,
    limit_verdict,
    record_verdicts,
    runs_verdict,
    verdicts,
)

# Two-sided 5 %, and 80 % power.
Z, POWER = NormalDist().inv_cdf(0.975), NormalDist().inv_cdf(0.8)


def metric(value: float, low: float, high: float, n: int = 1000) -> Metric:
    return Metric(value, (low, high), n)


def of(key: str, *how: float, **more) -> Verdict:
    (found,) = verdicts({key: metric(*how)}, **more)
    return found


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [
        (1.001, 1.009, "equivalent"),  # worse, but of no consequence
        (0.995, 1.005, "equivalent"),
        (1.002, 1.02, "worse"),
        (1.02, 1.03, "worse"),
        (0.98, 0.999, "better"),
        (0.999, 1.02, "undecided"),
        (0.98, 1.001, "undecided"),
    ],
)
def test_a_ratio_lies_on_either_side(low, high, kind):
    assert of("ppl_ratio", (low * high) ** 0.5, low, high).kind == kind


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [(0.0, 0.0, "equivalent"), (0.008, 0.01, "equivalent"), (0.008, 0.012, "undecided"),
     (0.011, 0.02, "worse")],
)  # fmt: skip
def test_a_kld_lies_on_either_side_of_the_margin(low, high, kind):
    found = of("kld", (low + high) / 2, low, high)
    assert (found.kind, found.margin) == (kind, 0.01)
    assert found.by == (low if kind == "worse" else None)


def test_the_margin_is_the_users():
    assert of("kld", 0.015, 0.014, 0.016, margin=0.02).kind == "equivalent"
    assert of("ppl_ratio", 1.005, 1.004, 1.006, margin=0.001).kind == "worse"


def test_kld_comes_first_and_what_has_no_margin_has_no_verdict():
    all_of = {key: metric(1.0, 1.0, 1.0) for key in ("ppl_ratio", "ppl", "delta_p", "kld")}
    assert [found.metric for found in verdicts(all_of)] == ["kld", "ppl_ratio"]


def test_what_is_no_further_off_than_the_base_from_itself_is_not_worse():
    assert of("kld", 0.02, 0.018, 0.022, floor=0.001).kind == "worse"
    found = of("kld", 0.02, 0.018, 0.022, floor=0.05)
    assert found.kind == "undecided" and found.needed is None
    assert "0.05 nats away from itself" in found.words("base")
    assert of("kld", 0.008, 0.007, 0.009, floor=0.05).kind == "equivalent"


def test_without_an_interval_nothing_is_decided():
    (found,) = verdicts({"kld": Metric(0.5, None, 9, "3 blocks of 512 tokens")})
    assert found.words("base") == "not decidable with this text: 3 blocks of 512 tokens"
    assert found.to_json()["ci95"] is None and found.short == "not decidable"


def test_few_conversations_have_to_be_further_within_the_margin():
    assert of("kld", 0.008, 0.006, 0.0098).kind == "equivalent"
    assert of("kld", 0.008, 0.006, 0.0098, clusters=500).kind == "equivalent"
    assert of("kld", 0.008, 0.006, 0.0098, clusters=20).kind == "undecided"
    # A ratio has no long tail on one side.
    assert of("ppl_ratio", 1.0, 0.9905, 1.0095, clusters=20).kind == "equivalent"


def test_a_text_tells_what_it_finds_in_80_percent_of_texts():
    """The normal quantiles by hand: (z of 5 % + z of 80 %) standard errors."""
    found = of("kld", 0.01, 0.01 - Z * 0.001, 0.01 + Z * 0.001, margin=0.005)
    assert found.detectable == pytest.approx((Z + POWER) * 0.001)
    ends = math.exp(-Z * 0.02), math.exp(Z * 0.02)
    found = of("ppl_ratio", 1.0, *ends)
    assert found.detectable == pytest.approx(math.exp((Z + POWER) * 0.02) - 1)


def test_the_targets_needed_by_hand():
    """A standard error falls as the root of the targets."""
    # Its interval, 2·z·0.02 wide, has to become narrower than the margin.
    found = of("ppl_ratio", 1.0, math.exp(-Z * 0.02), math.exp(Z * 0.02))
    assert found.needed == math.ceil(1000 * (2 * Z * 0.02 / math.log(1.01)) ** 2)
    # The measured distance to the margin has to be what 80 % of texts tell.
    found = of("kld", 0.009, 0.009 - Z * 0.001, 0.009 + Z * 0.001)
    assert found.needed == math.ceil(1000 * ((Z + POWER) * 0.001 / 0.001) ** 2)
    assert found.needed > 1000
    assert of("kld", 0.01, 0.008, 0.012).needed is None


def test_words():
    words = of("ppl_ratio", 1.03, 1.012399, 1.05).words("base")
    # Never rounded up: it is at least as much.
    assert words == "worse than base by at least 1.23%"
    assert of("ppl_ratio", 0.97, 0.96, 0.98).words("base") == "better than base by at least 2.04%"
    assert of("kld", 0.001, 0.0, 0.002).words("base") == "equivalent to base within 0.01 nats"
    assert of("ppl_ratio", 1.0, 0.999, 1.001).short == "within ±1%"
    text = of("kld", 0.009, 0.0, 0.018).words("base")
    assert text == "not decidable with this text: about 170,000 targets would tell 0.01 nats"


def test_two_runs_may_differ_either_way():
    assert runs_verdict("kld", metric(-0.05, -0.06, -0.04)).kind == "better"
    assert runs_verdict("kld", metric(0.05, 0.04, 0.06)).kind == "worse"
    assert runs_verdict("kld", metric(0.001, -0.002, 0.004)).words("b") == (
        "equivalent to b within ±0.01 nats"
    )
    tied = runs_verdict("kld", metric(0.05, 0.04, 0.06), tied="among 91 pairs p is 0.2 (Holm)")
    assert (tied.kind, tied.needed) == ("undecided", None)
    assert tied.words("b") == "not decidable with this text: among 91 pairs p is 0.2 (Holm)"


def test_a_limit_of_any_metric():
    assert limit_verdict("kld", metric(0.04, 0.03, 0.05), 0.05).kind == "equivalent"
    assert limit_verdict("kld", metric(0.06, 0.055, 0.065), 0.05).kind == "worse"
    assert limit_verdict("top1", metric(0.95, 0.94, 0.96), 0.9).kind == "equivalent"
    assert limit_verdict("top1", metric(0.89, 0.87, 0.895), 0.9).kind == "worse"
    assert limit_verdict("top1", metric(0.9, 0.88, 0.92), 0.91).kind == "undecided"
    assert limit_verdict("ppl_ratio", metric(0.99, 0.98, 1.0), 1.02).kind == "equivalent"
    assert limit_verdict("ppl_ratio", metric(1.02, 1.01, 1.03), 1.0).kind == "worse"


def test_a_record_has_its_own_noise_floor_and_conversations():
    document = {
        "metrics": {"kld": metric(0.02, 0.018, 0.022).to_json()},
        "noise_floor": {"kld": {"value": 0.05}},
        "intervals": {"block_length": 1, "blocks": 12},
    }
    (found,) = record_verdicts(document)
    assert found.kind == "undecided" and "itself" in found.words("base")
    del document["noise_floor"]
    (found,) = record_verdicts(document)
    assert found.kind == "worse"
    assert record_verdicts({"metrics": {}}) == []


def test_answers_of_several_tasks_are_one_question():
    """Tasks that tell nothing each tell something together, by McNemar's exact test of their sums."""
    each, together = answers_verdict(9, 2, 500), answers_verdict(36, 8, 2000)
    assert mcnemar(9, 2) > 0.05 > mcnemar(36, 8)
    assert (each.kind, together.kind) == ("undecided", "worse")
    assert "9 lost, 2 gained: McNemar's p is 0.065" in each.words("base", "question")
    assert answers_verdict(8, 36, 2000).kind == "better"
    assert answers_verdict(3, 4, 2000).words("base") == "equivalent to base within ±1 point"
    few = answers_verdict(3, 4, 100)
    assert few.kind == "undecided" and few.needed is not None and few.needed > 100
    # Agresti and Min's interval by hand.
    n, b, c = 102, 3.5, 4.5
    error = math.sqrt((b + c) - (c - b) ** 2 / n) / n
    assert few.ci95 == pytest.approx(((c - b) / n - Z * error, (c - b) / n + Z * error))


def test_wrong_verdicts_are_rare_though_targets_are_correlated():
    """400 texts of 40 blocks of an autoregression: 5 % at most, as far as 400 texts tell."""
    rng = np.random.default_rng(7)
    noise = rng.standard_normal((400, 60, 32))
    series = np.empty_like(noise).reshape(400, -1)
    flat, last = noise.reshape(400, -1), np.zeros(400)
    for t in range(flat.shape[1]):
        series[:, t] = last = 0.9 * last + flat[:, t]
    sums = series.reshape(noise.shape)[:, 20:].sum(2)
    ones = np.full(40, 32.0)
    means = {i: Mean(row, ones, 1280, -np.inf, np.inf) for i, row in enumerate(sums)}
    found = estimates(means, 32)

    def share(kind: str, away: float, margin: float) -> float:
        kinds = []
        for one in found.values():
            assert one.ci95 is not None
            moved = [math.exp(0.01 * x + away) for x in (one.value, *one.ci95)]
            kinds.append(of("ppl_ratio", *moved, margin=margin).kind)
        return float(np.mean(np.array(kinds) == kind))

    assert share("worse", 0.0, 1e-6) < 0.05
    assert share("equivalent", math.log(1.1), 0.1) < 0.05
    far = float(np.median([of("ppl_ratio", *(math.exp(0.01 * x) for x in (m.value, *(m.ci95 or ())))
                              ).detectable for m in found.values()]))  # fmt: skip
    assert 0.7 < share("worse", math.log1p(far), 1e-6) < 0.9
