"""Sums of windows, and both intervals of what they say, held against formulas and the bootstrap."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chats.blocks import NUMBERS, chat_scores
from support.comparisons import made, overlapping, student_by_integration

from scoremode.results.scores import Scores
from scoremode.results.statistics.blocks import block_length
from scoremode.results.statistics.bootstrap import perplexity
from scoremode.results.statistics.windows import (
    METHOD,
    WindowSums,
    estimates_of,
    look_at,
    of_blocks,
    of_drawn,
    stopping_section,
    window_sums,
)


@pytest.fixture(scope="module")
def scores() -> Scores:
    return made(**overlapping(6_000, 64, 64), noise=0.3, full=False)


def part(scores: Scores, keep: np.ndarray) -> Scores:
    return Scores.from_columns({name: column[keep] for name, column in scores.columns().items()})


def test_sums_are_those_of_each_window_however_they_were_cut(scores):
    sums = window_sums(scores)
    assert scores.against is not None
    for w in (0, 5, len(sums) - 1):
        rows = scores.window == w
        assert sums.weight[w] == rows.sum() and sums.place[w] == scores.index[rows][0]
        assert sums.columns["nll"][w] == pytest.approx(-scores.logprob[rows].sum(), rel=1e-14)
        assert sums.columns["kld"][w] == pytest.approx(scores.against.kld[rows].sum(), rel=1e-14)
        ratio = (scores.against.base_logprob - scores.logprob)[rows].sum()
        assert sums.columns["ppl_ratio"][w] == pytest.approx(ratio, rel=1e-12)
    cut = [
        window_sums(part(scores, scores.window < 10)),
        window_sums(part(scores, scores.window >= 10)),
    ]
    joined = WindowSums.joined(cut)
    for name, column in sums.columns.items():
        assert np.array_equal(joined.columns[name], column)
    assert len(joined.first(7)) == 7 and np.array_equal(joined.first(7).weight, sums.weight[:7])
    twice = window_sums(scores, np.full(len(scores), 2.0))
    assert np.array_equal(twice.columns["nll"], 2 * sums.columns["nll"])


def test_the_interval_of_drawn_windows_is_cochrans(scores):
    sums, rng = window_sums(scores), np.random.default_rng(3)
    order = rng.permutation(len(sums))[:40]
    drawn = WindowSums(sums.place[order], sums.weight[order],
                       {n: c[order] for n, c in sums.columns.items()})  # fmt: skip
    found = of_drawn(drawn, len(sums))
    y, x, n = drawn.columns["kld"], drawn.weight, 40
    ratio = y.sum() / x.sum()
    variance = (1 - n / len(sums)) / n * ((y - ratio * x) ** 2).sum() / (n - 1) / x.mean() ** 2
    half = student_by_integration(n - 1) * math.sqrt(variance)
    assert found["kld"].value == pytest.approx(ratio, rel=1e-14)
    assert found["kld"].interval == pytest.approx((ratio - half, ratio + half), rel=1e-4)
    mean = drawn.columns["nll"].sum() / x.sum()
    assert found["ppl"].value == pytest.approx(math.exp(mean), rel=1e-13)
    low, high = found["ppl"].interval
    assert low * high == pytest.approx(math.exp(2 * mean), rel=1e-12)


def test_all_windows_leave_nothing_open_and_few_tell_nothing(scores):
    sums = window_sums(scores)
    for estimate in of_drawn(sums, len(sums)).values():
        assert estimate.interval == (estimate.value, estimate.value)
    assert of_drawn(sums.first(7), len(sums))["ppl"].interval is None
    assert of_drawn(sums.first(8), len(sums))["ppl"].interval is not None
    assert of_blocks(sums.first(7), 64)["ppl"].interval is None


def test_it_covers_what_all_windows_give(scores):
    """In 95 of 100 draws, as far as 400 draws can tell."""
    sums, inside = window_sums(scores), 0
    truth = sums.columns["kld"].sum() / sums.weight.sum()
    for seed in range(400):
        order = np.random.default_rng(seed).permutation(len(sums))[:40]
        columns = {"kld": sums.columns["kld"][order]}
        low, high = of_drawn(WindowSums(sums.place[order], sums.weight[order], columns),
                             len(sums))["kld"].interval  # fmt: skip
        inside += low <= truth <= high
    assert 0.92 < inside / 400 < 0.98


def test_the_interval_of_blocks_is_near_the_bootstraps():
    scores = made(**overlapping(40_000, 64, 64), noise=0.3, full=False)
    sums = window_sums(scores)
    quick = of_blocks(sums, 64)["ppl"]
    assert estimates_of(sums, 64)["ppl"] == quick
    assert estimates_of(sums, 64, len(sums) * 2)["ppl"] == of_drawn(sums, len(sums) * 2)["ppl"]
    length = block_length(scores.index, {"nll": scores.nll}, 64).tokens
    slow = perplexity(scores, length)["ppl"]
    assert quick.value == pytest.approx(slow.value, rel=1e-12)
    assert quick.interval == pytest.approx(slow.ci95, rel=0.02)


def test_windows_of_a_conversation_are_one_block_and_one_draw():
    scores, conversation = chat_scores(0.3)
    assert scores.against is not None
    sums = window_sums(scores, conversation=conversation)
    kld, sizes = (
        np.array([f(scores.against.kld[conversation == n]) for n in NUMBERS]) for f in (np.sum, len)
    )
    ratio, n = kld.sum() / sizes.sum(), len(NUMBERS)
    # Cochran's, of all that were drawn from 40, and of an endless text.
    spread = ((kld - ratio * sizes) ** 2).sum() * n / (n - 1) / sizes.sum() ** 2
    student = student_by_integration(n - 1)
    for found, left in ((of_drawn(sums, 40), 1 - n / 40), (of_blocks(sums, 64), 1)):
        half = student * math.sqrt(left * spread)
        assert found["kld"].value == pytest.approx(ratio, rel=1e-12)
        assert found["kld"].interval == pytest.approx((ratio - half, ratio + half), rel=1e-4)
    parts = [scores.window < 9, scores.window >= 9]
    cut = [window_sums(part(scores, keep), conversation=conversation[keep]) for keep in parts]
    assert of_drawn(WindowSums.joined(cut), 40) == of_drawn(sums, 40)


def test_the_windows_of_the_first_conversations_lie_in_front():
    sums = WindowSums(np.arange(6), np.ones(6), {"nll": np.ones(6)}, np.array([4, 4, 0, 7, 7, 7]))
    assert [sums.windows_of(n) for n in range(1, 5)] == [2, 3, 6, None] and sums.draws == 3
    assert sums.first(3).drawn().weight.tolist() == [1, 2]
    text = WindowSums(np.arange(6), np.ones(6), {"nll": np.ones(6)})
    assert [text.windows_of(n) for n in (1, 6, 7)] == [1, 6, None] and text.draws == 6


@pytest.fixture(scope="module")
def sums() -> WindowSums:
    return window_sums(made(**overlapping(12_000, 64, 64), noise=0.3, full=False))


def by_numpy(sums: WindowSums, windows: int, name: str, width: float, *, relative: bool) -> int:
    """Windows after which the rule ends a run, by the textbook's formula."""
    look = 32
    while look < windows:
        y, x = sums.columns[name][:look], sums.weight[:look]
        ratio = y.sum() / x.sum()
        residual = y - ratio * x
        half = student_by_integration(look - 1) * math.sqrt(
            (1 - look / windows) * look * residual.var(ddof=0) * look / (look - 1)
        ) / x.sum()  # fmt: skip
        # Residuals of a ratio sum to 0, so their variance is their mean square.
        if name == "nll":
            half = math.exp(ratio + half) - math.exp(ratio)
            ratio = math.exp(ratio)
        if half <= width * (abs(ratio) if relative else 1):
            return look
        look = 8 * math.ceil(look * 1.25 / 8)
    return windows


@pytest.mark.parametrize(
    ("rule", "name", "width", "relative"),
    [
        ("ppl±5%", "nll", 0.05, True),
        ("ppl±0.3", "nll", 0.3, False),
        ("kld±4%", "kld", 0.04, True),
        ("kld±0.002", "kld", 0.002, False),
        ("kld±0.0001%", "kld", 1e-6, True),
    ],
)
def test_it_ends_where_the_formula_does(sums, rule, name, width, relative):
    n = len(sums)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(n)
        drawn = WindowSums(
            sums.place[order], sums.weight[order], {k: c[order] for k, c in sums.columns.items()}
        )
        wanted = by_numpy(drawn, n, name, width, relative=relative)
        section = stopping_section(drawn, n, rule, seed)
        assert section["after"] == wanted and section["met"] and section["of"] == n
        assert section["rule"] == rule and section["seed"] == seed and section["method"] == METHOD
        *before, last = section["looks"]
        assert last["met"] and not any(look["met"] for look in before)
        # Of the windows there were alone it says the same, and of fewer that it goes on.
        assert stopping_section(drawn.first(wanted), n, rule, seed) == section
        if before:
            short = stopping_section(drawn.first(before[-1]["windows"]), n, rule, seed)
            assert not short["met"] and short["looks"] == before


def test_a_run_that_was_cut_before_the_first_look_says_nothing(sums):
    section = stopping_section(sums.first(20), len(sums), "ppl±5%", 0)
    assert (section["after"], section["met"], section["looks"]) == (0, False, [])


@settings(max_examples=50)
@given(st.data())
def test_a_wider_rule_ends_no_later(data):
    n = data.draw(st.integers(33, 300))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    sums = WindowSums(np.arange(n) * 64, np.full(n, 63.0), {"kld": rng.lognormal(0, 2, n)})
    widths = sorted(data.draw(st.lists(st.integers(1, 99), min_size=2, max_size=2)))
    ends = [stopping_section(sums, n, f"kld±{width}%", 0)["after"] for width in widths]
    assert ends[1] <= ends[0] <= n


def test_a_look_shows_its_interval(sums):
    look = look_at(sums.first(40), len(sums), "kld±1%")
    assert look.windows == 40 and look.interval is not None and not look.met
    assert look.to_json()["ci95"] == list(look.interval)
