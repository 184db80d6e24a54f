"""Perplexity and its interval."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoremode.errors import InvalidMeasurement
from scoremode.results.scores import Scores
from scoremode.results.statistics.bootstrap import (
    MIN_BLOCKS,
    block_bootstrap,
    clusters,
    covered,
    pages_section,
    percentile_interval,
    perplexity,
    resampled,
    student,
    verdict,
)


def scores_of(nll: np.ndarray, index: np.ndarray | None = None) -> Scores:
    n = len(nll)
    index = np.arange(n) if index is None else index
    zeros = np.zeros(n, np.int32)
    return Scores(zeros, zeros + 1, index.astype(np.int32), zeros, -nll, zeros, -nll)


finite = st.floats(0, 20, allow_subnormal=False)


@given(st.lists(finite, min_size=1, max_size=40), st.integers(1, 9))
def test_perplexity_is_the_exponential_of_the_mean(nll, block_length):
    metrics = perplexity(scores_of(np.array(nll)), block_length)
    mean = math.fsum(nll) / len(nll)
    assert metrics["nll"].value == pytest.approx(mean, rel=1e-12, abs=1e-15)
    assert metrics["ppl"].value == pytest.approx(math.exp(mean), rel=1e-12)
    assert metrics["ppl"].n == metrics["nll"].n == len(nll)


@given(st.lists(st.tuples(finite, st.floats(0.1, 3)), min_size=1, max_size=40))
def test_weights_count(pairs):
    nll, weights = map(np.array, zip(*pairs, strict=True))
    mean = math.fsum(nll * weights) / math.fsum(weights)
    metrics = perplexity(scores_of(nll), 4, weights)
    assert metrics["nll"].value == pytest.approx(mean, rel=1e-12, abs=1e-15)
    assert metrics["ppl"].value == pytest.approx(math.exp(mean), rel=1e-12)


def test_evaluations_of_weight_zero_make_no_block():
    nll = np.random.default_rng(0).exponential(size=160)
    weights = np.where(np.arange(160) < 80, 1.0, 0.0)
    ours = perplexity(scores_of(nll), 10, weights)
    without = perplexity(scores_of(nll[:80]), 10)
    assert ours["ppl"].ci95 == without["ppl"].ci95
    assert ours["ppl"].value == pytest.approx(without["ppl"].value, rel=1e-12)


@given(st.integers(MIN_BLOCKS, 60), st.integers(0, 2**32 - 1))
def test_the_interval_holds_the_value(blocks, seed):
    nll = np.random.default_rng(seed).exponential(size=blocks * 5)
    metrics = perplexity(scores_of(nll), 5)
    for metric in metrics.values():
        assert metric.ci95 is not None
        low, high = metric.ci95
        assert low < metric.value < high
        assert metric.note is None
    nll_interval = metrics["nll"].ci95
    assert nll_interval is not None
    assert metrics["ppl"].ci95 == tuple(np.exp(nll_interval))


def test_the_order_of_evaluations_changes_nothing():
    """One token of an overlap is scored in several windows, and all count for its own block."""
    rng = np.random.default_rng(2)
    index, nll = np.repeat(np.arange(300), 3), rng.exponential(size=900)
    order = rng.permutation(900)
    ours = perplexity(scores_of(nll[order], index[order]), 20)["nll"]
    sorted_ = perplexity(scores_of(nll, index), 20)["nll"]
    assert ours.value == pytest.approx(sorted_.value, rel=1e-12)
    assert ours.ci95 == pytest.approx(sorted_.ci95, rel=1e-12)
    merged = block_bootstrap(nll.reshape(15, 60).sum(1), np.full(15, 60.0))
    assert ours.ci95 == pytest.approx(merged)


def test_the_interval_covers_the_truth_about_95_times_in_100():
    rng = np.random.default_rng(3)
    covered, draws = 0, 300
    for _ in range(draws):
        level = rng.normal(2.0, 0.5, 40)  # what each block is like, which correlates its tokens
        sums = level * 20 + rng.normal(0, 1, (40, 20)).sum(1)
        interval = block_bootstrap(sums, np.full(40, 20.0))
        assert interval is not None
        covered += interval[0] < 2.0 < interval[1]
    assert 0.90 <= covered / draws <= 0.985


def test_correlated_tokens_need_a_wider_interval_than_independent_ones():
    rng = np.random.default_rng(4)
    level = np.repeat(rng.normal(2.0, 0.5, 60), 50)
    correlated = level + rng.normal(0, 0.5, 3000)
    independent = rng.permutation(correlated)
    wide, narrow = (
        np.ptp(perplexity(scores_of(nll), 50)["nll"].ci95) for nll in (correlated, independent)
    )
    iid = 2 * 1.96 * correlated.std() / math.sqrt(3000)
    assert narrow == pytest.approx(iid, rel=0.35)
    assert wide > 3 * iid


@pytest.mark.parametrize(
    ("tokens", "has_interval"), [(1, False), (700, False), (701, True), (800, True)]
)
def test_below_eight_blocks_there_is_no_interval(tokens, has_interval):
    nll = np.random.default_rng(5).exponential(size=tokens)
    metric = perplexity(scores_of(nll), 100)["ppl"]
    assert (metric.ci95 is not None) == has_interval
    if not has_interval:
        blocks = -(-tokens // 100)
        note = f"{blocks} block{'s' * (blocks != 1)} of 100 tokens: an interval needs at least 8"
        assert metric.note == note
        assert metric.to_json()["ci95"] is None


def test_json_has_plain_numbers():
    metric = perplexity(scores_of(np.random.default_rng(6).exponential(size=99)), 9)["ppl"]
    value = metric.to_json()
    assert set(value) == {"value", "ci95", "n", "note"}
    assert [type(x) for x in (value["value"], *value["ci95"], value["n"])] == [float] * 3 + [int]


def test_many_blocks_are_drawn_in_steps():
    """More blocks than fit one step of the resampling give the same interval as the normal law."""
    rng = np.random.default_rng(7)
    sums = rng.normal(2.0, 0.3, 3001)
    interval = block_bootstrap(sums, np.ones(3001))
    assert interval is not None
    error = 1.96 * sums.std() / math.sqrt(3001)
    assert interval == pytest.approx((sums.mean() - error, sums.mean() + error), abs=error / 10)


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ([0.9, 0.99], "better"),
        ([1.01, 1.1], "worse"),
        ([0.9, 1.1], "not distinguishable"),
        ([1.0, 1.0], "not distinguishable"),
        ([1.0, 1.1], "not distinguishable"),
        (None, "no interval: why"),
    ],
)
def test_verdicts(interval, words):
    assert verdict(interval, 1.0, "why") == words


SAME_BITS = """
import hashlib
import numpy as np
from scoremode.results.statistics.bootstrap import clusters, resampled
rng = np.random.default_rng(0)
sums, totals = rng.normal(size=(37, 501)), rng.uniform(0.1, 2, (37, 501))
found = clusters(sums, totals)
drawn = resampled(sums, totals), found.away, found.t, found.ends
print([hashlib.sha256(one.tobytes()).hexdigest() for one in drawn])
"""


def test_resamples_are_the_same_bits_with_any_number_of_threads():
    found = set()
    for threads in ("1", "2", "3"):
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment = {"PYTHONPATH": ":".join(sys.path), **dict.fromkeys(names, threads)}
        command = [sys.executable, "-c", SAME_BITS]
        found.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert len(found) == 1


@pytest.mark.parametrize("scale", [1e-200, 1e-12, 1.0, 1e12])
def test_resamples_of_many_quantities_are_those_of_each(scale):
    rng = np.random.default_rng(1)
    totals = rng.uniform(0.5, 2, (3, 40))
    sums = np.stack([rng.normal(size=40) * scale, np.zeros(40), totals[2]])
    drawn = np.random.default_rng(20_481).integers(40, size=(10_000, 40))
    many = resampled(sums, totals)
    assert many.shape == (10_000, 3)
    gathered = sums[0][drawn].sum(1) / totals[0][drawn].sum(1)
    np.testing.assert_allclose(many[:, 0], gathered, rtol=0, atol=1e-14 * scale)
    assert (many[:, 1] == 0).all() and (many[:, 2] == 1).all()


def chats(count: int, levels: str, texts: int = 300) -> tuple[np.ndarray, np.ndarray, float]:
    """Sums and tokens of `count` chats of unequal length in so many texts, and the mean of them all."""
    rng = np.random.default_rng([count, len(levels)])
    tokens = rng.lognormal(5.7, 0.7, (texts, count)).round() + 1
    if levels == "normal":
        level, mean = rng.normal(2.5, 0.4, tokens.shape), 2.5
    else:
        level, mean = rng.lognormal(0, 1, tokens.shape), math.exp(0.5)
    noise = rng.standard_normal(tokens.shape) * level / np.sqrt(tokens)
    return (level + noise) * tokens, tokens, mean


@pytest.mark.parametrize(
    ("count", "levels", "least"),
    [(8, "normal", 0.93), (8, "log-normal", 0.84), (30, "log-normal", 0.90)],
)
def test_intervals_over_few_chats_cover_what_they_say(count, levels, least):
    """docs/statistics.md has the figures of more texts; percentiles alone miss a long tail."""
    sums, tokens, truth = chats(count, levels)
    found = clusters(sums, tokens)
    low, high = found.ends
    assert np.mean((low <= truth) & (truth <= high)) >= least
    plain_low, plain_high = found.value + percentile_interval(found.away, count)
    assert (low <= plain_low).all() and (plain_high <= high).all()
    if levels != "normal":
        assert np.mean((plain_low <= truth) & (truth <= plain_high)) < least
    # Wider by a third, and never without measure: at most twice Student's, or the percentiles'.
    assert np.median((high - low) / (plain_high - plain_low)) < 1.5
    reach = 2 * student(count - 1) * found.error
    assert (high <= np.maximum(plain_high, found.value + reach) + 1e-12).all()


def test_chats_that_are_alike_have_no_width():
    """Also where a resample hardly varies, or not at all."""
    tokens = np.arange(100.0, 109)
    assert block_bootstrap(3.5 * tokens, tokens, whole=True) == pytest.approx((3.5, 3.5), abs=1e-9)
    assert block_bootstrap(np.zeros(9), tokens, whole=True) == (0, 0)
    # One that differs: half of its resamples don't have it, or it alone.
    one = np.where(tokens == 104, 0.1, 0.0) * tokens
    low, high = block_bootstrap(one, tokens, whole=True, least=0.0) or (1, 0)
    assert low == 0 and one.sum() / tokens.sum() < high < 1


def test_as_many_chats_as_cover_95_say_nothing():
    assert [covered(count) for count in (7, 8, 15, 30, 60, 99, 100)] == [
        None, 0.88, 0.89, 0.91, 0.92, 0.92, None
    ]  # fmt: skip


WORDS = np.array([3, 5, 2, 9, 4, 4, 7, 6], np.int64)
BYTES = WORDS * 5 + 1
LOGPROB = -np.array([12.0, 17.5, 11.0, 30.0, 21.0, 8.0, 33.0, 25.5])


def test_they_are_the_harness_formulas():
    found = pages_section(WORDS, BYTES, LOGPROB, LOGPROB / 2)
    nats, metrics = 158.0, found["metrics"]
    assert (found["pages"], found["words"], found["bytes"]) == (8, 40, 208)
    assert metrics["word_perplexity"]["value"] == pytest.approx(math.exp(nats / 40), rel=1e-12)
    assert metrics["byte_perplexity"]["value"] == pytest.approx(math.exp(nats / 208), rel=1e-12)
    bits = metrics["bits_per_byte"]
    assert bits["value"] == pytest.approx(nats / 208 / math.log(2), rel=1e-12)
    assert bits["ci95"][0] < bits["value"] < bits["ci95"][1] and bits["n"] == 208
    low, high = metrics["word_perplexity"]["ci95"]
    assert low < metrics["word_perplexity"]["value"] < high
    half = metrics["word_perplexity_base"]["value"]
    assert half == pytest.approx(math.exp(nats / 80), rel=1e-12)


def test_few_pages_have_no_interval():
    found = pages_section(WORDS[:1], BYTES[:1], LOGPROB[:1])["metrics"]["word_perplexity"]
    assert found["ci95"] is None and found["note"] == "1 page: an interval needs at least 8"


def test_a_perplexity_that_is_no_number_is_refused():
    with pytest.raises(InvalidMeasurement, match="nats a word"):
        pages_section(WORDS, BYTES, LOGPROB * 1000)
