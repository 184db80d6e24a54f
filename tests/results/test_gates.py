"""Gates: what is judged, and what can't be."""

import pytest
from msgspec import convert

from scoremode.errors import UsageError
from scoremode.results.gates import Compared, Gates
from scoremode.results.record.outcome import Survival
from scoremode.results.record.section import Metric


def compared(kld=Metric(0.05, (0.04, 0.07), 1)):  # noqa: B008
    ratio, top1 = Metric(1.02, (1.01, 1.03), 1), Metric(0.9, (0.88, 0.92), 1)
    metrics = {"kld": kld, "ppl_ratio": ratio, "top1": top1, "kld_p99": Metric(0.4, (0.3, 0.6), 1)}
    metrics |= {"tv": Metric(0.1, (0.08, 0.12), 1), "acceptance": Metric(0.9, (0.88, 0.92), 1)}
    return Compared(metrics=metrics, distribution={"kld": {"99": 0.4}})


@pytest.mark.parametrize(
    ("gates", "bound", "met"),
    [
        (Gates(max_kld=0.05), 0.05, True),
        (Gates(max_kld=0.0499), 0.05, False),
        (Gates(max_kld=0.06, on="upper"), 0.07, False),
        (Gates(max_kld=0.07, on="upper"), 0.07, True),
        (Gates(max_ppl_ratio=1.025, on="upper"), 1.03, False),
        (Gates(max_ppl_ratio=1.025), 1.02, True),
        (Gates(min_top1=0.89), 0.9, True),
        (Gates(min_top1=0.89, on="upper"), 0.88, False),
        (Gates(min_top1=0.88, on="upper"), 0.88, True),
        (Gates(max_kld_p99=0.39), 0.4, False),
        (Gates(max_kld_p99=0.5), 0.4, True),
        (Gates(max_kld_p99=0.5, on="upper"), 0.6, False),
        (Gates(max_tv=0.11), 0.1, True),
        (Gates(max_tv=0.11, on="upper"), 0.12, False),
        (Gates(min_acceptance=0.89), 0.9, True),
        (Gates(min_acceptance=0.89, on="upper"), 0.88, False),
    ],
)
def test_a_gate_judges_the_value_or_the_worse_end_of_its_interval(gates, bound, met):
    (gate,) = gates.judge(compared())
    assert (gate.bound, gate.met) == (bound, met)
    assert set(gate.to_json()) >= {"name", "limit", "value", "bound", "met"}
    assert str(gate).startswith(f"gate {'met' if met else 'not met'}: {gate.flag}: ")


def test_without_an_interval_there_is_nothing_to_meet():
    note = "7 blocks of 1,024 tokens: an interval needs at least 8"
    without = compared(Metric(0.05, None, 1, note))
    (gate,) = Gates(max_kld=1.0, on="upper").judge(without)
    assert (gate.bound, gate.met, gate.note) == (None, False, note)
    assert note in str(gate)
    (gate,) = Gates(max_kld=1.0).judge(without)
    assert gate.met and gate.to_json()["note"] is None
    assert gate.to_json()["chance"] == "by a value without an interval (1 target)"


def test_a_percentile_of_a_run_from_before_it_had_an_interval():
    old = Compared(metrics={"kld": compared().metrics["kld"]}, distribution={"kld": {"99": 0.4}})
    assert Gates(max_kld_p99=0.4).judge(old)[0].met
    (gate,) = Gates(max_kld_p99=0.4, on="upper").judge(old)
    assert not gate.met and "no interval" in str(gate)


def test_a_gate_whose_limit_lies_in_the_interval_is_judged_by_chance():
    """However it is judged: another text of this length may say otherwise."""
    (passed,), (missed,) = (
        Gates(max_kld=0.06).judge(compared()),
        Gates(max_kld=0.045).judge(compared()),
    )
    assert (passed.met, missed.met) == (True, False)
    for gate, limit in ((passed, "0.06"), (missed, "0.045")):
        assert "; not decidable with this text: about " in str(gate)
        assert str(gate).endswith(f" targets would tell it from {limit}")
        assert gate.to_json()["chance"] == gate.chance
    (sure,) = Gates(max_kld=0.08).judge(compared())
    assert sure.chance is None and str(sure).endswith("the mean KLD is 0.05")
    (share,) = Gates(min_top1=0.9).judge(compared())
    assert share.chance is not None and "measured" in share.chance


def test_a_limit_is_said_as_it_was_typed_and_recorded_as_a_number():
    (gate,) = Gates(min_top1=0.999, typed={"min_top1": "99.90%"}).judge(compared())
    assert str(gate).startswith("gate not met: --min-top1 99.90%: the share of same top-1 is 0.9")
    assert gate.to_json()["limit"] == 0.999 and "typed" not in gate.to_json()
    with pytest.raises(UsageError, match=r"^--min-top1 101%: a share is at most 100 %$"):
        Gates(min_top1=1.01, typed={"min_top1": "101%"})


def test_what_is_no_gate():
    assert not Gates() and Gates(max_kld=0.0)
    with pytest.raises(UsageError, match=r"no gate to judge; give .*--max-tv, .* or --min-top1$"):
        Gates(on="upper")
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match=r"--max-kld .*: must be at least 0 and finite"):
            Gates(max_kld=bad)
    with pytest.raises(UsageError, match="--min-top1 90: a share is at most 1, as 90% would be"):
        Gates(min_top1=90)


def survival(half_life, ci95, longest=100, note=None):
    curve = {"half_life": half_life, "ci95": ci95, "note": note, "longest": longest}
    curve |= {"tokens": [1], "whole": [0.9], "by_base": False}
    return Compared(
        metrics=compared().metrics,
        distribution={"kld": {"99": 0.4}},
        survival=convert({"units": "windows", "n": 9, "sampled": curve}, Survival),
    )


def test_the_reason_of_a_half_life_s_gate_is_its_own():
    """Few blocks give no interval, which a gate on the value doesn't ask for."""
    found = survival(60, None, note="7 blocks")
    (gate,) = Gates(min_half_life=61).judge(found)
    assert "half-life in tokens is 60; by a value without" in str(gate)
    found = survival(None, None, note="7 blocks")
    (gate,) = Gates(min_half_life=100, on="upper").judge(found)
    assert not gate.met and gate.note == "7 blocks"


@pytest.mark.parametrize(
    ("limit", "on", "found", "bound", "met"),
    [
        (50, "value", survival(60, (40, 80)), 60, True),
        (61, "value", survival(60, (40, 80)), 60, False),
        (50, "upper", survival(60, (40, 80)), 40, False),
        (40, "upper", survival(60, (40, 80)), 40, True),
        # No window shows it: it is longer than all.
        (100, "value", survival(None, (90, None)), 100, True),
        (101, "value", survival(None, (90, None)), None, False),
        (90, "upper", survival(None, (90, None)), 90, True),
        (100, "upper", survival(None, (None, None)), 100, True),
        (101, "upper", survival(None, (None, None)), None, False),
        (50, "upper", survival(60, None, note="7 blocks"), None, False),
        (50, "value", survival(60, None, note="7 blocks"), 60, True),
    ],
)
def test_a_half_life_is_in_tokens_and_may_be_longer_than_any_window(limit, on, found, bound, met):
    (gate,) = Gates(min_half_life=limit, on=on).judge(found)
    assert (gate.bound, gate.met) == (bound, met)
    if bound is None:
        assert gate.note in ("7 blocks", "it is longer than the longest of the windows, 100 tokens")
