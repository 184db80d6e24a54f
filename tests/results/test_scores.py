"""The gate between an engine and an average."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoremode.errors import InvalidMeasurement
from scoremode.results.scores import (
    DTYPES,
    Bounds,
    Comparison,
    Scores,
    check,
    concatenate,
    expected,
)
from scoremode.text.plan import Plan, make_plan
from scoremode.text.protocol import Protocol

VOCABULARY = 50


def make(seed: int = 0, *, sharpness: float = 3.0, tokens: int = 1200) -> tuple[Plan, Scores]:
    """A text that a random model predicts fairly well, and the model's true scores of it.

    The model is right about a token as often as it says it is, as a trained one is; its
    log-probabilities come from float32 logits.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, sharpness, (tokens, VOCABULARY)).astype(np.float32)
    gumbel = rng.gumbel(size=logits.shape)
    text = (logits + gumbel).argmax(1).astype(np.int32)
    protocol = Protocol("test", context_length=32, stride=20, tail="keep").resolve(None)
    plan = make_plan(text, protocol)
    return plan, scores_of(plan, logits)


def scores_of(plan: Plan, logits: np.ndarray) -> Scores:
    """What an engine returns for `logits` float32 [tokens, V], row i being those of token i."""
    columns = expected(plan, range(len(plan)))
    z = logits[columns["index"]]
    highest = z.max(1, keepdims=True)
    # The arithmetic of the head: float32 differences and exponentials, float64 sum and logarithm.
    sums = np.exp(z - highest).sum(1, dtype=np.float64)
    rows = np.arange(len(z))
    target = z[rows, columns["target"]].astype(np.float64) - highest[:, 0].astype(np.float64)
    top1 = z.argmax(1).astype(np.int32)
    return Scores(**columns, logprob=target - np.log(sums), top1=top1, top1_logprob=-np.log(sums))


def change(scores: Scores, **columns: np.ndarray) -> Scores:
    return dataclasses.replace(scores, **columns)


def put(column: np.ndarray, i: int, value: float) -> np.ndarray:
    changed = column.copy()
    changed[i] = value
    return changed


def take(scores: Scores, order: np.ndarray) -> Scores:
    return Scores(**{name: column[order] for name, column in scores.columns().items()})


@given(st.integers(0, 2**32 - 1), st.floats(0, 60))
def test_true_scores_pass(seed, sharpness):
    plan, scores = make(seed, sharpness=sharpness, tokens=100)
    check(scores, plan, range(len(plan)))


@pytest.mark.parametrize("windows", [range(0, 3), range(2, 7), range(4, 4)])
def test_true_scores_of_some_windows_pass(windows):
    plan, scores = make()
    part = take(scores, np.flatnonzero(np.isin(scores.window, windows)))
    check(part, plan, windows)


@pytest.mark.parametrize("gap", [0.0, 1e-7, 1e-3, 15.9, 16.2, 30.0, 103.0])
def test_very_confident_rows_pass(gap):
    """A probability within 1e-7 of 1, of the target or of another id, and both ids alike."""
    plan, _ = make()
    logits = np.full((len(plan.tokens), VOCABULARY), -200, np.float32)
    rows = np.arange(len(logits))
    logits[rows, (plan.tokens + rows % 2) % VOCABULARY] = 17.0
    logits[rows, (plan.tokens + 1 - rows % 2) % VOCABULARY] = np.float32(17.0 - gap)
    scores = scores_of(plan, logits)
    check(scores, plan, range(len(plan)))
    assert scores.top1_logprob.max() <= 0


def test_ties_pass():
    plan, _ = make()
    flat = scores_of(plan, np.zeros((len(plan.tokens), VOCABULARY), np.float32))
    assert (flat.top1 == 0).all()
    check(flat, plan, range(len(plan)))


def test_a_float32_log_softmax_passes():
    """An engine may round its log-probabilities to float32, after a float32 log-softmax."""
    plan, exact = make(sharpness=8)
    rounded = change(
        exact,
        logprob=exact.logprob.astype(np.float32).astype(np.float64),
        top1_logprob=exact.top1_logprob.astype(np.float32).astype(np.float64),
    )
    check(rounded, plan, range(len(plan)))


SLID = {
    "logprob alone": ("logprob",),
    "all that the model says": ("logprob", "top1", "top1_logprob"),
    "the likeliest ids": ("top1", "top1_logprob"),
}


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("names", SLID.values(), ids=SLID.keys())
@pytest.mark.parametrize("seed", range(5))
def test_values_that_slid_against_their_labels_are_refused(seed, names, by):
    plan, scores = make(seed)
    slid = change(scores, **{name: np.roll(scores.columns()[name], by) for name in names})
    with pytest.raises(InvalidMeasurement, match=r"of target \d+ .*window \d+, position \d+"):
        check(slid, plan, range(len(plan)))


@pytest.mark.parametrize("seed", range(3))
def test_values_that_slid_inside_each_window_are_refused(seed):
    plan, scores = make(seed)
    order = np.concatenate(
        [np.roll(np.flatnonzero(scores.window == w), 1) for w in range(len(plan))]
    )
    slid = change(
        scores,
        logprob=scores.logprob[order],
        top1=scores.top1[order],
        top1_logprob=scores.top1_logprob[order],
    )
    with pytest.raises(InvalidMeasurement, match="of target"):
        check(slid, plan, range(len(plan)))


def test_a_dropped_target_is_refused():
    plan, scores = make()
    n = len(scores)
    kept = np.delete(np.arange(n), 40)
    with pytest.raises(InvalidMeasurement, match=f"{n - 1} scores for {n} targets"):
        check(take(scores, kept), plan, range(len(plan)))
    # One that is made up for by another row is still seen.
    with pytest.raises(InvalidMeasurement, match="scored window 2 where the plan has"):
        check(take(scores, np.append(kept, n - 1)), plan, range(len(plan)))


@pytest.mark.parametrize("rows", [0, 1, 500])
def test_too_few_scores_are_refused(rows):
    plan, scores = make()
    with pytest.raises(InvalidMeasurement, match=rf"returned {rows} scores .*\(windows 0 to"):
        check(take(scores, np.arange(rows)), plan, range(len(plan)))


def test_too_many_scores_are_refused():
    plan, scores = make()
    with pytest.raises(InvalidMeasurement, match="scores for"):
        check(concatenate([scores, take(scores, np.array([0]))]), plan, range(len(plan)))


@pytest.mark.parametrize("name", ["logprob", "top1", "top1_logprob", "target"])
@pytest.mark.parametrize("rows", [1, 7])
def test_columns_of_unequal_length_are_refused(name, rows):
    plan, scores = make()
    short = change(scores, **{name: scores.columns()[name][:rows]})
    with pytest.raises(InvalidMeasurement, match=f"{rows} values of {name} for {len(scores)}"):
        check(short, plan, range(len(plan)))


def test_every_column_has_its_dtype_and_another_is_refused():
    """A float32 log-probability would be averaged like any other."""
    named = {f.name for kind in (Scores, Comparison, Bounds) for f in dataclasses.fields(kind)}
    assert DTYPES.keys() == named - {"against", "bounds"}
    plan, scores = make()
    for name, column in scores.columns().items():
        other = column.astype(np.float32 if column.dtype == np.float64 else np.int64)
        with pytest.raises(InvalidMeasurement, match=f"returned {name} as {other.dtype}, not "):
            check(change(scores, **{name: other}), plan, range(len(plan)))


@pytest.mark.parametrize("name", ["window", "position", "index", "target"])
def test_a_wrong_label_is_refused(name):
    plan, scores = make()
    column = scores.columns()[name]
    wrong = change(scores, **{name: put(column, 77, column[77] + 1)})
    with pytest.raises(InvalidMeasurement, match=f"scored {name} {column[77] + 1} where .* {name}"):
        check(wrong, plan, range(len(plan)))


def test_swapped_rows_are_refused():
    plan, scores = make()
    order = np.arange(len(scores))
    order[[10, 11]] = order[[11, 10]]
    with pytest.raises(
        InvalidMeasurement, match="scored position 12 where the plan has position 11"
    ):
        check(take(scores, order), plan, range(len(plan)))


def test_scores_of_other_windows_are_refused():
    plan, scores = make()
    first = take(scores, np.flatnonzero(scores.window == 0))
    with pytest.raises(InvalidMeasurement, match="scored window 0 where the plan has window 1"):
        check(first, plan, range(1, 2))


@pytest.mark.parametrize("name", ["logprob", "top1_logprob"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(name, value):
    plan, scores = make()
    i = 123
    wrong = change(scores, **{name: put(scores.columns()[name], i, value)})
    with pytest.raises(InvalidMeasurement, match="not finite") as refused:
        check(wrong, plan, range(len(plan)))
    assert f"window {scores.window[i]}, position {scores.position[i]}; 1 of" in str(refused.value)
    assert refused.value.exit_code == 3


@pytest.mark.parametrize("hit", [True, False])
@pytest.mark.parametrize("value", [1e-3, 0.5, 3.0])
def test_a_probability_above_one_is_refused(hit, value):
    plan, scores = make()
    i = int(np.flatnonzero((scores.top1 == scores.target) == hit)[0])
    columns = {"logprob": put(scores.logprob, i, value)}
    with pytest.raises(InvalidMeasurement, match="1 of"):
        check(change(scores, **columns), plan, range(len(plan)))
    columns["top1_logprob"] = put(scores.top1_logprob, i, value)
    with pytest.raises(InvalidMeasurement, match="probability above 1"):
        check(change(scores, **columns), plan, range(len(plan)))


def test_a_hit_that_differs_from_its_top1_is_refused():
    plan, scores = make()
    i = int(np.flatnonzero(scores.top1 == scores.target)[0])
    wrong = change(scores, logprob=put(scores.logprob, i, scores.logprob[i] - 1e-6))
    with pytest.raises(InvalidMeasurement, match="differs from its own top-1's"):
        check(wrong, plan, range(len(plan)))


def test_a_miss_above_its_top1_is_refused():
    plan, scores = make()
    i = int(np.flatnonzero(scores.top1 != scores.target)[0])
    wrong = change(scores, logprob=put(scores.logprob, i, scores.top1_logprob[i] + 1e-9))
    with pytest.raises(InvalidMeasurement, match="exceeds what its top-1 leaves"):
        check(wrong, plan, range(len(plan)))


@pytest.mark.parametrize(("share", "passes"), [(0.5, True), (0.501, False), (0.9, False)])
def test_two_ids_cannot_both_have_more_than_half(share, passes):
    plan, scores = make()
    i = int(np.flatnonzero(scores.top1 != scores.target)[0])
    both = {
        name: put(scores.columns()[name], i, np.log(share)) for name in ("logprob", "top1_logprob")
    }
    if passes:
        check(change(scores, **both), plan, range(len(plan)))
    else:
        with pytest.raises(InvalidMeasurement, match="exceeds what its top-1 leaves"):
            check(change(scores, **both), plan, range(len(plan)))


def test_concatenate_keeps_the_order():
    _, scores = make()
    parts = [take(scores, np.flatnonzero(scores.window == w)) for w in range(scores.window[-1] + 1)]
    for name, column in concatenate(parts).columns().items():
        np.testing.assert_array_equal(column, scores.columns()[name])
        assert column.dtype == scores.columns()[name].dtype


def test_nll_is_minus_the_logprob():
    _, scores = make()
    np.testing.assert_array_equal(scores.nll, -scores.logprob)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("kld_least", np.nan, "kld_least nan of target .* is not finite"),
        ("kld_least", np.inf, "is not finite"),
        ("kld_least", -1e-9, "is below 0"),
        ("tv_least", -1e-9, "is below 0"),
        ("tv_least", 0.9, "is above what it is at most"),
        ("tv_most", 1.1, "is above 1"),
        ("tv_most", 0.05, "is less than its target's"),
        ("base_logprob", 0.0, "contradicts the base's own top-1"),
    ],
)
def test_bounds_that_are_none_are_refused(name, value, words):
    plan, scores = make()
    n = len(scores)
    # Of a base that is sure of another token, so that each target's part is its own probability.
    i = int(np.flatnonzero((scores.top1 == scores.target) & (scores.logprob > -1))[0])
    sure = {"base_logprob": np.full(n, -50.0), "base_top1": (scores.target + 1).astype(np.int32)}
    columns = {**sure, "base_top1_logprob": np.full(n, -1e-9), "kld_least": np.ones(n)}
    columns |= {"tv_least": np.full(n, 0.01), "tv_most": np.ones(n)}
    whole = range(len(plan))
    bounded = dataclasses.replace(scores, bounds=Bounds(**columns))
    check(bounded, plan, whole)
    assert Scores.from_columns(bounded.columns()).bounds is not None
    if name == "tv_least":
        columns["tv_most"] = put(columns["tv_most"], i, 0.8)
    columns[name] = put(columns[name], i, value)
    with pytest.raises(InvalidMeasurement, match=words):
        check(dataclasses.replace(scores, bounds=Bounds(**columns)), plan, whole)
