"""A second run's verdict, recomputed here by numpy alone."""

from dataclasses import replace

import numpy as np
import pytest
from support.records import typed

from scoremode.results.audit.findings import Findings, not_checked
from scoremode.results.folders.store import read_record, read_scores
from scoremode.runs.check.second_run import SecondRun, compare_again


@pytest.fixture
def compared(published):
    """Compares a run's own scores, changed, with the run, as if made under other conditions `now`."""
    run = published.against_model
    record, scores = read_record(run), read_scores(run)

    def work(changed, now=None):
        findings, engine = Findings(), record["identity"]["engine"] | (now or {})
        value = compare_again(
            typed(record), scores, None, SecondRun(changed(scores), engine, None), findings
        )
        return value, {f.name: (f.status, f.words) for f in findings.found}

    return work


def moved(by):
    return lambda scores: replace(scores, logprob=scores.logprob + by(len(scores)))


def test_one_bit_is_told_where_none_may_differ(compared):
    def one_bit(scores):
        logprob = scores.logprob.copy()
        logprob[5] = np.nextafter(logprob[5], 0)
        return replace(scores, logprob=logprob)

    value, found = compared(lambda scores: scores)
    assert value["same_bits"] and found["scores"][0] == "held"
    value, found = compared(one_bit)
    assert value["differing_columns"] == {"logprob": 1} and found["scores"][0] == "wrong"


def test_rounding_is_told_from_another_model_and_from_a_shift(compared):
    noise = np.random.default_rng(0)
    _, found = compared(moved(lambda n: noise.normal(0, 0.01, n)), {"dtype": "float16"})
    assert found["scores"][0] == "held" and "dtype bfloat16 then, float16 now" in found["scores"][1]
    _, found = compared(moved(lambda n: noise.normal(0, 2.0, n)), {"dtype": "float16"})
    assert found["scores"][0] == "wrong" and "disagrees: rms" in found["scores"][1]
    _, found = compared(moved(lambda n: np.full(n, 0.02)), {"dtype": "float16"})
    assert found["scores"][0] == "wrong" and "bias" in found["scores"][1]
    _, found = compared(lambda s: replace(s, logprob=np.roll(s.logprob, 1)))
    assert "they look shifted by one target" in found["scores"][1]


def test_a_kld_that_moves_by_more_than_the_log_probabilities_can_is_told(compared):
    def more(by):
        def change(scores):
            against = replace(scores.against, kld=scores.against.kld + by)
            logprob = scores.logprob + np.random.default_rng(1).normal(0, 0.01, len(scores))
            return replace(scores, logprob=logprob, against=against)

        return change

    value, found = compared(more(1e-4), {"dtype": "float16"})
    assert found["mean KLD"][0] == "held"
    # r √(2 KLD) + r², of the mean KLD after.
    _, found = compared(more(0.05), {"dtype": "float16"})
    assert found["mean KLD"][0] == "wrong"
    rms = value["difference"]["rms"]
    said = float(found["mean KLD"][1].split()[0])
    limit = rms * np.sqrt(2 * said) + rms**2
    assert float(found["mean KLD"][1].rsplit(" ", 1)[1]) == pytest.approx(limit, rel=0.1)


def test_a_base_is_judged_by_its_own_log_probabilities_and_not_by_those_that_were_made_up(compared):
    """A base that was made worse widens no limit of anything else."""

    def base_off(by):
        def change(scores):
            noise = np.random.default_rng(1).normal(0, 0.01, len(scores))
            base = scores.against.base_logprob + by + noise
            against = replace(scores.against, base_logprob=base)
            return replace(scores, logprob=scores.logprob + noise, against=against)

        return change

    name = "base's log-probabilities"
    _, found = compared(base_off(0.0), {"dtype": "float16"})
    assert found[name][0] == found["scores"][0] == "held"
    _, found = compared(base_off(-0.3), {"dtype": "float16"})
    assert found[name][0] == "wrong" and "bias -0.3" in found[name][1].replace("+", "-")
    assert found["scores"][0] == "held"


def test_scales_that_a_second_run_is_given_are_compared_without_where_they_are_from(published):
    record, scores = read_record(published.ppl), read_scores(published.ppl)
    cache = {"k": "int8-tensor", "v": "int8-tensor", "layers": 1}
    measured = {"source": "measured", "windows": 3, "tokens": 190, "k": [[0.5]], "v": [[0.25]]}
    record["engine"]["kv_cache"] = cache | {"scales": measured}
    for k, status in ((0.5, "held"), (0.6, "wrong")):
        given = cache | {"scales": {"source": "a record's", "k": [[k]], "v": [[0.25]]}}
        findings, engine = Findings(), record["identity"]["engine"]
        again = SecondRun(scores, engine, None, {"kv_cache": given})
        compare_again(typed(record), scores, None, again, findings)
        assert {f.name: f.status for f in findings.found} == {"engine": status, "scores": "held"}
    listed = not_checked(record, ["engine", "scores"])
    for name in ("source", "windows", "tokens"):
        assert f"engine.kv_cache.scales.{name}" in listed
    assert "engine.kv_cache.scales.k" not in listed


def test_columns_that_have_no_limit_are_said_not_to_be_judged(compared):
    def another(scores):
        return replace(scores, top1=scores.top1 ^ 1, logprob=scores.logprob + 1e-4)

    _, found = compared(another, {"dtype": "float16"})
    assert found["further columns"][0] == "unchecked"
    assert found["further columns"][1].startswith("top1: ")
