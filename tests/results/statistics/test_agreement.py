"""Differences of Scores, and the verdict: honest rounding passes, every tampering does not."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoremode.results.scores import Scores
from scoremode.results.statistics.agreement import (
    LIMITS,
    MIN_TARGETS,
    Difference,
    difference,
    judge,
)

WINDOWS, LENGTH = 8, 200
# What the engines' rounding was measured to be, see the module's docstring.
ROUNDING = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 1.5e-2}


def scores_of(nll: np.ndarray, length: int = LENGTH) -> Scores:
    n = len(nll)
    window, position = np.divmod(np.arange(n), length)
    columns = (window, position + 1, np.arange(n), np.arange(n) % 97)
    whole = [c.astype(np.int32) for c in columns]
    return Scores(*whole, -nll, np.zeros(n, np.int32), -nll)


def reference(windows: int = WINDOWS, seed: int = 0) -> Scores:
    return scores_of(np.random.default_rng(seed).gamma(1.5, 2.5, windows * LENGTH))


def with_logprob(scores: Scores, logprob: np.ndarray) -> Scores:
    return replace(scores, logprob=logprob)


def rounded(scores: Scores, rms: float, seed: int = 1) -> Scores:
    """With errors that have Student's heavy tails."""
    noise = np.random.default_rng(seed).standard_t(5, len(scores)) * np.sqrt(3 / 5)
    return with_logprob(scores, scores.logprob + rms * noise)


def verdict(scores: Scores, others: Scores, dtype: str = "bfloat16", **more):
    return judge(difference(scores, others, LENGTH), compute=dtype, logits=dtype, **more)


def shifted(scores: Scores, by: int) -> Scores:
    return with_logprob(scores, np.roll(scores.logprob, by))


def swapped(scores: Scores, a: int, b: int) -> Scores:
    order = np.arange(len(scores)).reshape(-1, LENGTH)
    order[[a, b]] = order[[b, a]]
    return with_logprob(scores, scores.logprob[order.ravel()])


def skipping(scores: Scores, at: int) -> Scores:
    """One target left out, those behind it moved up to the window's end."""
    logprob = scores.logprob.copy()
    end = (at // LENGTH + 1) * LENGTH
    logprob[at : end - 1] = logprob[at + 1 : end]
    return with_logprob(scores, logprob)


def wrong_token(scores: Scores, at: int = 700) -> Scores:
    logprob = scores.logprob.copy()
    logprob[at] -= 3.0
    return with_logprob(scores, logprob)


TAMPERING = {
    "one late": lambda s: shifted(s, 1),
    "one early": lambda s: shifted(s, -1),
    "windows exchanged": lambda s: swapped(s, 2, 5),
    "a target skipped": lambda s: skipping(s, 403),
    "bias of 0.01 up": lambda s: with_logprob(s, s.logprob - 0.01),
    "bias of 0.01 down": lambda s: with_logprob(s, s.logprob + 0.01),
    "scaled by 1.02": lambda s: with_logprob(s, s.logprob * 1.02),
    "one wrong token": wrong_token,
}


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("seed", range(5))
def test_rounding_agrees(dtype, seed):
    found = verdict(rounded(reference(), ROUNDING[dtype], seed), reference(), dtype)
    assert found.agrees and found.arithmetic == "same", found.words
    assert found.words.startswith(f"agrees: as {dtype} rounds")


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("how", TAMPERING)
def test_tampering_disagrees(how, dtype):
    scores = TAMPERING[how](rounded(reference(), ROUNDING[dtype]))
    found = verdict(scores, reference(), dtype)
    assert not found.agrees and found.words.startswith("disagrees: "), found.words


@pytest.mark.parametrize("windows", [2, 3, 40, 300])
@pytest.mark.parametrize("how", ["one late", "windows", "bias"])
def test_tampering_is_caught_among_few_windows_and_many(how, windows):
    honest = rounded(reference(windows), ROUNDING["bfloat16"])
    scores = {
        "one late": lambda: shifted(honest, 1),
        "windows": lambda: swapped(honest, 0, windows - 1),
        "bias": lambda: with_logprob(honest, honest.logprob - 0.01),
    }[how]()
    assert verdict(honest, reference(windows)).agrees
    assert not verdict(scores, reference(windows)).agrees


def test_a_coarser_dtype_than_declared_is_noticed():
    scores = rounded(reference(), ROUNDING["bfloat16"])
    assert verdict(scores, reference(), "bfloat16").agrees
    assert not verdict(scores, reference(), "float32").agrees


def test_the_coarser_of_two_dtypes_decides():
    found = difference(rounded(reference(), 0.015), reference(), LENGTH)
    assert judge(found, compute="float32", logits="bfloat16").agrees
    mixed = judge(found, compute="bfloat16", logits="float32")
    assert mixed.agrees and "bfloat16 with float32 logits" in mixed.words


@pytest.mark.parametrize(("by", "word"), [(1, "late"), (-1, "early")])
def test_a_shift_is_called_by_its_name(by, word):
    # Down to rounding: what was before or after is found again.
    found = verdict(shifted(rounded(reference(), 0.01), by), reference())
    assert f"shifted by one target ({word})" in found.words


def test_exchanged_windows_are_named():
    assert "most of it in window 2 and 5" in verdict(swapped(reference(), 2, 5), reference()).words


def test_the_worst_token_is_named():
    assert (
        "+3 nats at position 101 of window 3"
        in verdict(wrong_token(reference()), reference()).words
    )


def test_numbers_of_a_difference():
    own = np.array([1.0, 2.0, 3.0, 4.0])
    scores, others = scores_of(own, 2), scores_of(own - [0.1, -0.2, 0.0, 0.5], 2)
    found = difference(replace(scores, top1=np.array([0, 1, 0, 0], np.int32)), others, 2)
    assert found.n == 4 and found.top1 == 0.75
    assert found.bias.value == pytest.approx(0.1) and found.bias.ci95 is None
    assert found.ppl_ratio.value == pytest.approx(np.exp(0.1))
    assert found.rms == pytest.approx(np.sqrt((0.01 + 0.04 + 0.25) / 4))
    assert found.worst == pytest.approx(0.5)
    assert (found.worst_window, found.worst_position) == (1, 2)
    assert found.correlation == pytest.approx(np.corrcoef(own, -others.logprob)[0, 1])
    assert [w.n for w in found.windows] == [2, 2]
    assert [w.bias for w in found.windows] == pytest.approx([-0.05, 0.25])
    reach = 1.96 * np.std([0.1, -0.2, 0.0, 0.5]) / 2
    assert found.bias_range == pytest.approx((0.1 - reach, 0.1 + reach))


@given(st.integers(0, 2**32 - 1))
def test_a_difference_is_that_of_the_other_way_round(seed):
    a, b = reference(3), rounded(reference(3), 0.1, seed)
    there, back = difference(a, b, LENGTH), difference(b, a, LENGTH)
    assert there.bias.value == pytest.approx(-back.bias.value)
    assert there.ppl_ratio.value == pytest.approx(1 / back.ppl_ratio.value)
    assert there.rms == back.rms and there.worst == -back.worst


def test_weights_count_in_the_mean():
    scores, others = scores_of(np.array([1.0, 2.0]), 1), scores_of(np.array([0.0, 2.0]), 1)
    assert difference(scores, others, 1, np.array([3.0, 1.0])).bias.value == pytest.approx(0.75)


def test_the_interval_is_paired():
    """Of the differences, which are small, not of two texts, which are not."""
    found = difference(rounded(reference(40), 0.01), reference(40), LENGTH)
    low, high = found.bias_range
    assert found.bias.ci95 == (low, high) and high - low < 4 * 0.01 / np.sqrt(40 * LENGTH) * 1.5


def test_of_other_targets_there_is_no_difference():
    a = reference()
    with pytest.raises(AssertionError, match="another target"):
        difference(a, replace(a, target=np.roll(a.target, 1)), LENGTH)


def other(found: Difference, activations: str = "quantized"):
    return judge(found, compute="bfloat16", logits="bfloat16", activations=activations)


@pytest.mark.parametrize("activations", ["quantized", "mixed"])
def test_quantized_activations_are_other_arithmetic_and_no_failure(activations):
    scores = rounded(with_logprob(reference(), reference().logprob - 0.03), 0.5)
    assert not verdict(scores, reference()).agrees
    found = other(difference(scores, reference(), LENGTH), activations)
    assert found.agrees and found.arithmetic == "other"
    assert found.words.startswith("other arithmetic: activations quantized")
    assert ("in some layers" in found.words) == (activations == "mixed")


@pytest.mark.parametrize("windows", [2, 8, 200])
@pytest.mark.parametrize("how", ["shift", "exchange"])
def test_misalignment_is_a_failure_of_quantized_activations_too(how, windows):
    scores = rounded(reference(windows), 0.3)
    scores = shifted(scores, 1) if how == "shift" else swapped(scores, 0, 1)
    found = other(difference(scores, reference(windows), LENGTH))
    assert not found.agrees and found.words.startswith("disagrees: ")
    assert "other arithmetic: activations quantized" in found.words


def test_activations_that_were_not_quantized_are_the_same_arithmetic():
    found = other(difference(rounded(reference(), 0.5), reference(), LENGTH), "not quantized")
    assert not found.agrees and found.arithmetic == "same"


def test_one_value_on_one_side_has_no_correlation():
    flat = scores_of(np.full(2 * MIN_TARGETS, 4.6))
    found = difference(flat, rounded(flat, 0.01), LENGTH)
    assert found.correlation is None and found.shift == 0
    assert "correlate not at all" in other(found).words
