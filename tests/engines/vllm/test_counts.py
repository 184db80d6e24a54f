"""Each target once, whatever vLLM's scheduler does with a prompt."""

import numpy as np
import pytest
from engines.vllm.processes import FLOAT32, LENGTH

CALLS = (
    *("windows", "inputs", "mixed", "mixed targets", "chosen", "first", "repeated"),
    *("shuffled", "narrow", "narrower"),
)


def chunks(answer, call: str) -> list[int]:
    """Into how many steps each prompt was cut."""
    counts: dict[str, int] = {}
    for step in answer.facts["steps"][call]["steps"]:
        for prompt in step:
            counts[prompt] = counts.get(prompt, 0) + 1
    return list(counts.values())


def scheduled(answer, call: str) -> int:
    return sum(sum(step.values()) for step in answer.facts["steps"][call]["steps"])


@pytest.mark.parametrize("call", CALLS)
def test_each_target_is_scored_once(call, ran, calls):
    ours, asked = ran("float32", "plain"), calls[call]
    prompts = len(asked["prompts"])
    targets = asked.get("targets", [ids[1:] for ids in asked["prompts"]])
    first, chosen = asked.get("first", [0] * prompts), asked.get("chosen", [None] * prompts)
    places = [
        np.arange(f, len(t)) if c is None else np.array(c, int)
        for f, c, t in zip(first, chosen, targets, strict=True)
    ]
    for name, columns in (
        ("position", [p + 1 for p in places]),
        ("target", [np.array(t)[p] for t, p in zip(targets, places, strict=True)]),
    ):
        got = ours.prompts(call, name)
        assert len(got) == len(columns)
        assert all(map(np.array_equal, got, columns)), name


@FLOAT32
@pytest.mark.parametrize("call", CALLS)
def test_every_engine_gives_what_the_plain_one_does(other, call, ran):
    """In float32 another batch, or a sum over two ranks, moves a token by rounding only."""
    ours, plain = ran(*other), ran("float32", "plain")
    for name in ("position", "target", "top1", "lengths"):
        assert np.array_equal(ours.column(call, name), plain.column(call, name)), name
    for name in ("logprob", "entropy", "top1_logprob"):
        np.testing.assert_allclose(
            ours.column(call, name), plain.column(call, name), rtol=0, atol=2e-5
        )


def test_whole_prompts_fill_a_step(ran):
    """What makes a score independent of time: no prompt is cut, every full step is alike."""
    ours = ran("float32", "plain")
    steps = ours.facts["steps"]["windows"]["steps"]
    assert [list(step.values()) for step in steps] == [[LENGTH] * 8] * 2
    assert set(chunks(ours, "mixed")) == {1}


@pytest.mark.large
def test_prompts_were_cut_into_chunks(ran):
    ours = ran("float32, chunked")
    assert max(chunks(ours, "windows")) == 4 and max(chunks(ours, "mixed")) >= 3
    assert ours.facts["steps"]["windows"]["preempted"] == 0


def test_prompts_were_preempted(ran):
    """Else the test of the values proves nothing: tokens were thrown away and computed again."""
    ours = ran("float32", "preempted")
    for call in ("windows", "inputs", "mixed", "mixed targets", "first"):
        assert ours.facts["steps"][call]["preempted"] > 0, call
    assert scheduled(ours, "windows") > 16 * LENGTH and max(chunks(ours, "mixed")) >= 3


def test_a_cached_prefix_is_computed_all_the_same(ran, calls):
    """It has no hidden states to score. Three prompts alike and one that begins as they do."""
    ours = ran("float32", "cached")
    assert ours.facts["steps"]["repeated"]["keeps prefixes"] is True
    assert ran("float32", "plain").facts["steps"]["repeated"]["keeps prefixes"] is False
    assert scheduled(ours, "repeated") == sum(map(len, calls["repeated"]["prompts"]))
    once, *others = ours.prompts("repeated")
    np.testing.assert_allclose(once, others[0], rtol=0, atol=2e-5)
    np.testing.assert_allclose(once[:199], others[2][:199], rtol=0, atol=2e-5)


def test_first_and_chosen_are_parts_of_all(ran, calls):
    ours = ran("float32", "plain")
    for call, whole, key in (("first", "mixed", "first"), ("chosen", "mixed targets", "chosen")):
        for part, all_of_it, places in zip(
            ours.prompts(call), ours.prompts(whole), calls[call][key], strict=True
        ):
            wanted = all_of_it[places:] if key == "first" else all_of_it[places]
            np.testing.assert_allclose(part, wanted, rtol=0, atol=2e-5)


def test_the_head_runs_for_no_token_before_first(ran, calls):
    """A prompt with nothing to score is not run at all; one with its last token's target is."""
    ours = ran("float32", "plain")
    assert [len(p) for p in ours.prompts("last only")] == [0, 1]
    assert scheduled(ours, "last only") == len(calls["last only"]["prompts"][1])


def test_one_token_prompts(ran, calls):
    ours = ran("float32", "plain")
    ones = [i for i, ids in enumerate(calls["mixed"]["prompts"]) if len(ids) == 1]
    assert len(ones) == 2
    for i in ones:
        assert len(ours.prompts("mixed")[i]) == 0
        assert len(ours.prompts("mixed targets")[i]) == 1
        assert np.isfinite(ours.prompts("mixed targets")[i]).all()


def test_no_prompts_give_no_scores(ran):
    ours = ran("float32", "plain")
    assert ours.prompts("none") == [] and ours.facts["steps"]["none"]["steps"] == []
