"""The decision to stop, made again by numpy alone."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.comparisons import made, overlapping, student_by_integration

from scoremode.results.statistics.stopping import METHOD, look_at, stopping_section
from scoremode.results.statistics.windows import WindowSums, window_sums


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
