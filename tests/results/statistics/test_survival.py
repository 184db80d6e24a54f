"""How long generations stay the same: by hand, and against a simulated coupling."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scoremode.results.scores import Comparison, Scores
from scoremode.results.statistics import survival
from scoremode.results.statistics.survival import follow, survival_section

# Two languages of four words, which agree in some states and not in others.
P = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4], [0.25] * 4, [0.05, 0.05, 0.6, 0.3]])
Q = np.array(
    [[0.6, 0.2, 0.1, 0.1], [0.4, 0.3, 0.2, 0.1], [0.3, 0.2, 0.25, 0.25], [0, 0.1, 0.5, 0.4]]
)
TV = 0.5 * np.abs(P - Q).sum(1)
TOKENS = 12


def drawn(rows: np.ndarray, u: np.ndarray) -> np.ndarray:
    """A word of each of the distributions `rows`, [N, 4], by `u`, [N]."""
    return (rows.cumsum(1) / rows.sum(1)[:, None] < u[:, None]).sum(1).clip(max=3)


@pytest.fixture(scope="module")
def sampled() -> tuple[np.ndarray, np.ndarray]:
    """10,000 texts of the base's: the states before each word, and the words, [texts, TOKENS]."""
    rng = np.random.default_rng(1)
    states, words, state = [], [], np.zeros(10_000, int)
    for _ in range(TOKENS):
        states.append(state)
        state = drawn(P[state], rng.random(len(state)))
        words.append(state)
    return np.stack(states, 1), np.stack(words, 1)


def coupled(draws: int) -> np.ndarray:
    """The share of pairs, drawn by the maximal coupling, that are one after 1 … TOKENS words."""
    rng = np.random.default_rng(2)
    state, found = np.zeros(draws, int), []
    for _ in range(TOKENS):
        # With 1 − TV both have a word of min(p, q); else they part.
        state = state[rng.random(len(state)) < 1 - TV[state]]
        state = drawn(np.minimum(P, Q)[state], rng.random(len(state)))
        found.append(len(state) / draws)
    return np.array(found)


def test_a_sampled_text_tells_how_long_the_best_coupling_holds(sampled):
    states, words = sampled
    begin = np.arange(0, states.size, TOKENS)
    kept = np.minimum(1, Q / P)[states, words].ravel()
    block = np.repeat(np.arange(len(states)) // 100, TOKENS)
    by_words = follow(1 - kept, begin, block, 1, kept=kept)
    by_tv = follow(TV[states].ravel(), begin, block, 1, kept=kept)
    # All that both can draw alike, over all paths.
    exact, left = [], np.array([1.0, 0, 0, 0])
    for _ in range(TOKENS):
        left = left @ np.minimum(P, Q)
        exact.append(left.sum())
    exact, draws = np.array(exact), 100_000
    error = np.sqrt(exact * (1 - exact) / draws)
    simulated = coupled(draws)
    assert (np.abs(simulated - exact) < 4 * error).all()
    spread = np.sqrt(exact * (1 - exact) / len(states))
    for found in (by_words, by_tv):
        assert (np.abs(found.curve - exact) < 4 * spread).all()
        assert (np.abs(found.curve - simulated) < 4 * np.hypot(spread, error)).all()
        half_life = int((exact > 0.5).sum()) + 1
        assert found.half_life == half_life
        low, high = found.interval or (0, 0)
        assert low is not None and high is not None and low <= half_life <= high


def test_on_another_text_each_token_parts_by_itself():
    """Half of the base's texts go on where the two agree, and the model prefers these: the weights of
    its own text know that, and the product of 1 − TV doesn't."""
    x, kept = np.array([0.4, 0.0, 0.4, 0.8]), np.array([1.0, 1.0, 0.2, 0.2])
    begin, block = np.array([0, 2]), np.array([0, 0, 1, 1])
    # 0.5 · 1 + 0.1 · 0.2 of both, and 0.6 · (0.5 · 1 + 0.5 · 0.2).
    assert np.allclose(follow(x, begin, block, 1, kept=kept).curve, [0.6, 0.52])
    assert np.allclose(follow(x, begin, block, 1).curve, [0.6, 0.36])


def test_a_unit_that_ends_whole_says_nothing_of_later_tokens():
    """Kaplan and Meier's own arithmetic, on five units."""
    parts = [[0, 1, 0, 1], [0, 0, 1], [0, 0], [0, 0, 0, 0], [0, 0, 1]]
    until = [[0, 0, 0, 0], [0, 0, 0], [0, 0], [0, 0, 0, 0], [0, 0, 1]]
    begin = np.cumsum([0, *map(len, parts)])[:-1]
    x, left = np.concatenate(parts).astype(float), np.concatenate(until).astype(bool)
    found = follow(x, begin, np.zeros(len(x), int), 1, until=left)
    assert np.allclose(found.curve, [1, 4 / 5, 4 / 5 * 1 / 2, 4 / 5 * 1 / 2])
    assert found.half_life == 3 and found.interval is None and "needs at least 8" in str(found.note)
    assert found.parted.tolist() == [True, True, False, False, False]
    assert found.stopped.tolist() == [False, False, False, False, True]


def test_a_half_life_that_no_unit_reaches_is_beyond_the_longest():
    x = np.full(300, 0.001)
    found = follow(x, np.arange(0, 300, 30), np.repeat(np.arange(10), 30), 1)
    assert found.half_life is None and found.interval == (None, None)
    assert found.to_json()["longest"] == 30
    # By arithmetic alone: every unit is as every other, whichever are drawn.
    x = np.full(3000, 0.01)
    found = follow(x, np.arange(0, 3000, 300), np.repeat(np.arange(10), 300), 1)
    assert found.half_life == 69 and found.interval == (69, 69)


def test_the_interval_holds_the_half_life_of_19_texts_in_20():
    """Of exponential lengths, cut at 40 tokens: half part by token 14 of a geometric of 0.05."""
    rng, held, tries = np.random.default_rng(3), 0, 40
    for _ in range(tries):
        lengths = np.minimum(rng.geometric(0.05, 60), 41)
        x = [np.arange(1, min(n, 40) + 1) == n for n in lengths]
        begin = np.cumsum([0, *map(len, x)])[:-1]
        of = np.repeat(np.arange(60), list(map(len, x)))
        low, high = follow(np.concatenate(x).astype(float), begin, of, 1).interval or (None, None)
        held += low is not None and low <= 14 <= (high or 41)
    assert held >= 0.95 * tries - 2 * np.sqrt(tries * 0.95 * 0.05)


def test_an_interval_does_not_depend_on_how_many_tokens_are_resampled_at_a_time(monkeypatch):
    """One unit is far longer than the rest, and all are left before its end."""
    sizes = np.array([*[30] * 10, 400])
    begin, n = np.cumsum([0, *sizes])[:-1], sizes.sum()
    x, until = np.full(n, 0.01), np.arange(n) >= n - 20
    x[::7] = 0.1
    block = np.repeat(np.arange(11), sizes)
    found = [follow(x, begin, block, 1, until=until)]
    monkeypatch.setattr(survival, "_CELLS", 20)
    monkeypatch.setattr(survival, "_FIRST", 3)
    found.append(follow(x, begin, block, 1, until=until))
    assert found[0].interval == found[1].interval and found[0].half_life == found[1].half_life


def test_no_end_lies_between_a_half_life_and_one_beyond_all_units(monkeypatch):
    """For 8 blocks the upper end is widened to the seventh of 1,000 resamples from the end."""
    x, block = np.full(8 * 500, 0.1), np.repeat(np.arange(8), 500)
    for beyond, high in ((5, 12), (6, None), (7, None)):
        lives = np.full(1000, 12.0)
        lives[-beyond:] = 501
        monkeypatch.setattr(survival, "_resampled_half_lives", lambda *_, lives=lives: lives)
        assert follow(x, np.arange(0, len(x), 500), block, 1).interval == (12, high)


FILES = {"model.safetensors": "1"}
TEMPLATE: dict[str, Any] = {"sha256": "1", "arguments": {}, "date": None}


def a_run(
    unlike: int = 0, turns: int = 1, **sampling: Any
) -> tuple[Scores, dict[str, Any], dict[str, Any]]:
    """Ten replies of five targets; the model's likeliest token is another at the second of the first
    three."""
    n = 50
    place = np.tile(np.arange(5), 10)
    target = np.arange(n, dtype=np.int32)
    base_top1, top1 = target.copy(), target.copy()
    top1[[1, 6, 11]] += 1
    base_top1[25 : 25 + unlike] += 1
    top1[25 : 25 + unlike] += 1
    log = np.full(n, -0.5)
    against = Comparison(log, base_top1, log, np.zeros(n), np.zeros(n), np.full(n, 0.2))
    window = np.repeat(np.arange(10, dtype=np.int32), 5)
    scores = Scores(window, (place + 3).astype("i4"), target, target, log - 0.1, top1, log, against)
    extras = {"turn_place": place.astype("i4"), "conversation": window // turns}
    how = {"temperature": 0.0, "top_p": 1.0, "top_k": 0} | sampling
    record: dict[str, Any] = {
        "corpus": {
            "generated": {
                "base": {"source": "base", "files": FILES},
                "sampling": how,
                "template": TEMPLATE | {"source": "base"},
            },
            "conversations": {"long": 0, "template": TEMPLATE | {"source": "quant"}},
        },
        "reference": {"checkpoint": {"files": FILES}},
        "protocol": {"scored": "assistant", "long": "truncate"},
    }
    return scores, extras, record


def section(run: tuple[Scores, dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    scores, extras, record = run
    return survival_section(scores, extras, 1, record) or {}


def test_a_greedy_text_tells_where_greedy_generations_part():
    found = section(a_run())
    assert (found["units"], found["n"]) == ("replies", 10) and not found["sampled"]["by_base"]
    greedy = found["greedy"]
    assert (greedy["parted"], greedy["stopped"], greedy["unlike"]) == (3, 0, 0)
    assert greedy["tokens"] == [1, 2, 3, 4, 5]
    assert np.allclose(greedy["whole"], [1, 0.7, 0.7, 0.7, 0.7])
    assert greedy["half_life"] is None
    assert greedy["identical"]["value"] == 0.7 and greedy["identical"]["n"] == 10


def test_where_the_text_is_not_what_the_base_finds_likeliest_a_reply_is_left():
    greedy = section(a_run(unlike=2))["greedy"]
    assert (greedy["parted"], greedy["stopped"], greedy["unlike"]) == (3, 1, 2)
    # The sixth reply is left before its first token.
    assert np.allclose(greedy["whole"][:2], [1, 6 / 9])
    assert greedy["identical"]["n"] == 9 and greedy["identical"]["value"] == 6 / 9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"temperature": 0.7}, "the text was generated at temperature 0.7, not 0"),
        ({"turns": 2}, "a conversation has several turns, of which the base generated the last"),
    ],
)
def test_another_text_has_no_greedy_length_and_a_line_why(change, words):
    found = section(a_run(**change))
    assert "greedy" not in found and found["greedy_note"].startswith(words)


def test_another_base_s_text_has_no_greedy_length():
    scores, extras, record = a_run()
    record["reference"]["checkpoint"]["files"] = {"model.safetensors": "2"}
    assert section((scores, extras, record))["greedy_note"] == (
        "the text was generated by base, which isn't this base"
    )
    record["reference"] = {"kind": "llama.cpp"}
    assert "isn't this base" in section((scores, extras, record))["greedy_note"]
    record["protocol"] = {"scored": "all"}
    record["reference"] = {"checkpoint": {"files": FILES}}
    assert section((scores, extras, record))["greedy_note"] == (
        "tokens are scored that the base didn't generate"
    )


@pytest.mark.parametrize(
    "change", [{"sha256": "2"}, {"arguments": {"enable_thinking": False}}, {"date": "2025-01-02"}]
)
def test_behind_other_prompts_the_text_is_not_the_base_s(change):
    words = "the text was generated by another chat template, or one that was told otherwise"
    for temperature in (0.0, 1.0):
        scores, extras, record = a_run(temperature=temperature)
        record["corpus"]["conversations"]["template"] |= change
        found = section((scores, extras, record))
        assert not found["sampled"]["by_base"]
        assert temperature or found["greedy_note"] == words


def test_text_that_nobody_generated_has_a_half_life_on_this_text():
    scores, extras, record = a_run()
    del record["corpus"]["generated"], extras["turn_place"]
    found = section((scores, extras, record))
    # 0.8 ⁿ is at most a half from the fourth token on.
    assert found["sampled"]["half_life"] == 4 and found["sampled"]["by_base"] is False
    assert found["greedy_note"] == "the text is none that scoremode generate wrote"
    assert found["units"] == "windows"
    alone = replace(scores, against=None)
    assert survival_section(alone, extras, 1, record) is None


def test_text_that_the_base_sampled_is_followed_by_its_own_words():
    found = section(a_run(temperature=1.0))["sampled"]
    assert found["by_base"] is True
    # What is whole goes on by q/p, and parts by the total variation.
    kept = np.exp(-0.1 * np.arange(5))
    assert np.allclose(found["whole"], np.cumprod(1 - 0.2 * kept / kept))
    assert not section(a_run(temperature=1.0, top_k=40))["sampled"]["by_base"]
