"""Bins of positions, and the worst targets, against what was put there."""

from dataclasses import replace

import numpy as np
import pytest
from results.statistics.test_agreement import LENGTH, reference

from scoremode.results.scores import Scores
from scoremode.results.statistics.apart import (
    by_position,
    edges_of,
    growth,
    worst_targets,
)
from scoremode.text.plan import Plan
from scoremode.text.protocol import preset
from scoremode.text.token_class import TokenTable


def off(scores: Scores, d: np.ndarray) -> Scores:
    return replace(scores, logprob=scores.logprob - d)


def plan_of(scores: Scores) -> Plan:
    """A plan of windows that follow one another, of whose tokens the first is no target."""
    start = np.arange(0, len(scores), LENGTH)
    first = np.ones(len(start), np.int64)
    tokens = np.append(scores.target, 0).astype(np.int32)
    return Plan(preset("disjoint"), tokens, start, start + LENGTH + 1, first)


TABLE = TokenTable(
    tuple(f" t{i}".encode() for i in range(97)),
    np.full(97, 3, np.uint16),
    np.zeros(97, np.uint8),
)


@pytest.mark.parametrize(
    ("longest", "edges"),
    [
        (1, [1, 2]),
        (15, [1, 16]),
        (16, [1, 16, 17]),
        (200, [1, 16, 32, 64, 128, 201]),
        (256, [1, 16, 32, 64, 128, 256, 257]),
    ],
)
def test_bins_double_from_16_on_and_end_behind_the_last_position(longest, edges):
    assert edges_of(longest) == edges


def test_a_fault_that_begins_at_a_position_shows_in_the_bins_from_there_on():
    right = reference()
    d = np.where(right.position >= 64, 0.01, 1e-6)
    bins = by_position(off(right, d), right)
    assert [(b["first"], b["last"]) for b in bins] == [
        (1, 15), (16, 31), (32, 63), (64, 127), (128, 200),
    ]  # fmt: skip
    assert sum(b["n"] for b in bins) == len(right)
    for b in bins:
        expected = 0.01 if b["first"] >= 64 else 1e-6
        assert b["rms"] == pytest.approx(expected) and b["bias"] == pytest.approx(expected)
        assert b["top1"] == 1


def test_rms_bias_and_top1_of_a_bin_are_its_targets():
    right = reference()
    rng = np.random.default_rng(4)
    d, top1 = rng.normal(size=len(right)), rng.integers(0, 2, len(right), np.int32)
    bins = by_position(replace(off(right, d), top1=top1), right)
    rows = (right.position >= 32) & (right.position < 64)
    own = bins[2]
    assert own["n"] == rows.sum() and own["rms"] == pytest.approx(np.sqrt((d[rows] ** 2).mean()))
    assert own["bias"] == pytest.approx(d[rows].mean())
    assert own["top1"] == pytest.approx((top1[rows] == 0).mean())


def test_growth_is_of_the_bins_with_targets_enough():
    right = reference()
    d = np.where(right.position >= 128, 0.04, 0.01)
    d[right.position < 16] = 0.5
    bins = by_position(off(right, d), right)
    assert growth(bins) == pytest.approx(0.04 / 0.5)
    bins[0]["n"] = 63
    assert growth(bins) == pytest.approx(4)
    assert growth(bins[:2]) is None and growth(by_position(right, right)) is None


def test_positions_without_a_target_have_no_bin():
    right = reference()
    rows = right.position >= 128
    half = Scores.from_columns({name: c[rows] for name, c in right.columns().items()})
    assert [(b["first"], b["last"]) for b in by_position(half, half)] == [(128, 200)]


def test_the_worst_targets_come_first_with_their_texts():
    right = reference()
    d = np.full(len(right), 1e-4)
    d[LENGTH + 30], d[5] = -2.0, 1.0
    first, second, third = worst_targets(off(right, d), right, 3, plan=plan_of(right), table=TABLE)
    assert (first["window"], first["position"]) == (1, 31)
    assert first["difference"] == pytest.approx(-2)
    assert first["logprob"] - first["other_logprob"] == pytest.approx(2)
    assert first["index"] == right.index[LENGTH + 30] and first["target"] == (LENGTH + 30) % 97
    assert first["target_text"] == f" t{(LENGTH + 30) % 97}"
    assert first["top1_text"] == first["other_top1_text"] == " t0"
    assert first["context"].count(" t") == 12
    assert (second["window"], second["position"], second["difference"]) == (0, 6, pytest.approx(1))
    assert second["context"].count(" t") == 6 and abs(third["difference"]) < 1e-3


def test_equal_scores_have_no_worst_target_and_a_place_is_taken_once():
    right = reference()
    assert worst_targets(right, right, 5, plan=plan_of(right)) == []
    d = np.linspace(0.1, 1, len(right))
    same = replace(right, index=np.zeros(len(right), np.int32))
    (only,) = worst_targets(off(same, d), same, 5, plan=plan_of(right))
    assert only["difference"] == pytest.approx(1) and "target_text" not in only
