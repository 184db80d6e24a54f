"""Blocks of texts and of conversations, decided in one place."""

import time

import numpy as np
import pytest
from support.chats.blocks import NUMBERS, chat_scores, ends_by_hand
from support.comparisons import made, overlapping

from scoremode.results.record.sections import sections
from scoremode.results.statistics.blocks import (
    CONVERSATIONS,
    SHORTEST,
    Places,
    block_length,
    planned_blocks,
    politis_white,
)
from scoremode.results.statistics.means import Blocks, Mean, estimates, percentile_intervals
from scoremode.text.plan import make_plan
from scoremode.text.protocol import preset


def test_a_text_has_blocks_of_its_stream():
    scores = made(**overlapping(12_000, 64, 48), full=False)
    places = Places.of(scores, {})
    chosen = places.chosen({"nll": scores.nll}, 64)
    assert chosen == block_length(scores.index, {"nll": scores.nll}, 64)
    blocks = places.blocks(chosen.tokens)
    assert blocks.filled == len(np.unique(scores.index // chosen.tokens))
    assert places.shortest(64) == 64


def test_conversations_are_blocks_whatever_their_scores_say():
    scores, conversation = chat_scores(0.3)
    places = Places.of(scores, {"conversation": conversation})
    assert places.chosen({"nll": scores.nll}, 64) is CONVERSATIONS and places.shortest(64) == 1
    blocks = places.blocks(1)
    assert blocks.filled == len(NUMBERS)
    mean = blocks.mean(scores.nll)
    assert mean is not None
    sums = [scores.nll[conversation == n].sum() for n in NUMBERS]
    assert mean.sums == pytest.approx(sums, rel=1e-12)


def test_intervals_of_a_record_are_those_of_whole_conversations_drawn_again():
    scores, conversation = chat_scores(0.3)
    found = sections(scores, 64, {"conversation": conversation})
    assert found["intervals"] == {
        "blocks": len(NUMBERS), "block_length": 1, "rule": "conversation", "covers": 0.89
    }  # fmt: skip
    assert scores.against is not None
    by_hand = ends_by_hand(scores.against.kld, conversation)
    assert found["metrics"]["kld"]["ci95"] == pytest.approx(by_hand, rel=1e-9)
    ends = np.exp(ends_by_hand(scores.nll, conversation))
    assert found["metrics"]["ppl"]["ci95"] == pytest.approx(ends.tolist(), rel=1e-9)
    # Not those of places in the stream, which would cut conversations.
    other = sections(scores, 64, {})["metrics"]["kld"]["ci95"]
    assert other != pytest.approx(found["metrics"]["kld"]["ci95"], rel=1e-2)


def test_too_few_conversations_are_called_so():
    scores, conversation = chat_scores(0.3)
    few = np.minimum(conversation, 6)
    found = sections(scores, 64, {"conversation": few})["metrics"]["kld"]
    assert found["ci95"] is None
    assert found["note"] == (
        "6 blocks (whole conversations, pages or questions): an interval needs at least 8"
    )


def test_a_percentile_of_few_conversations_has_no_interval():
    scores, conversation = chat_scores(0.3)
    kld = np.where(conversation == 21, 9.0, 0.1)
    blocks = Places(scores.index, conversation).blocks(1)
    found = percentile_intervals(kld, {50.0: 0.1}, blocks)[50.0]
    assert found.note == "1 conversation with a target beyond it: too few to tell"


def documents(n: int, mean: int, seed: int, spread: float = 0.6) -> np.ndarray:
    """Values of mean 0 whose level changes every `mean` tokens or so."""
    rng = np.random.default_rng(seed)
    lengths = rng.geometric(1 / mean, 4 * n // mean + 20)
    level = np.repeat(rng.normal(0, spread, len(lengths)), lengths)[rng.integers(1000) :]
    return level[:n] + rng.exponential(2.0, n) - 2.0


def covered(lengths: list[int], series: list[np.ndarray]) -> float:
    means: dict[int, Mean] = {}
    for i, (length, values) in enumerate(zip(lengths, series, strict=True)):
        mean = Blocks(np.arange(len(values)), length).mean(values)
        assert mean is not None
        means[i] = mean
    ends = [m.ci95 for m in estimates(means, 0).values()]
    return float(np.mean([low <= 0 <= high for low, high in ends]))


def test_the_interval_of_a_text_of_documents_holds_the_truth():
    """By blocks of one window, the former rule, it held it in six of ten texts."""
    series = [documents(100_000, 400, seed) for seed in range(150)]
    index = np.arange(100_000)
    chosen = [block_length(index, {"nll": values}, 128) for values in series]
    assert {c.rule for c in chosen} <= {"autocorrelation", "eighth"}
    assert 0.90 <= covered([c.tokens for c in chosen], series) <= 0.985
    assert covered([128] * len(series), series) < 0.75


def test_independent_tokens_have_short_blocks():
    for seed in range(10):
        values = np.random.default_rng(seed).exponential(2.0, 60_000)
        found = block_length(np.arange(60_000), {"nll": values}, 128)
        assert (found.tokens, found.rule) == (SHORTEST, "shortest")
        assert found.to_json(58) == {
            "blocks": 58,
            "block_length": SHORTEST,
            "rule": "shortest",
            "shortest": SHORTEST,
            "autocorrelation": found.measured,
        }


@pytest.mark.parametrize("phi", [0.3, 0.8])
def test_the_length_is_the_one_of_theory(phi):
    """Of an autoregression: G / g = 2φ / (1 − φ²), and b = (G/g)^(2/3) n^(1/3)."""
    n, found = 20_000, []
    for seed in range(10):
        values = np.random.default_rng(seed).normal(size=n)
        for i in range(1, n):
            values[i] += phi * values[i - 1]
        found.append(politis_white(values))
    wanted = (2 * phi / (1 - phi**2)) ** (2 / 3) * n ** (1 / 3)
    assert np.median(found) == pytest.approx(wanted, rel=0.15)


def test_what_tells_nothing_asks_for_nothing():
    assert politis_white(np.full(1000, 1 / 3)) is None
    assert politis_white(np.random.default_rng(0).normal(size=15)) is None
    found = block_length(np.arange(50_000), {"ppl_ratio": np.zeros(50_000)}, 256)
    assert (found.tokens, found.rule, found.measured) == (SHORTEST, "shortest", {"ppl_ratio": None})


@pytest.mark.parametrize(
    ("window", "tokens"), [(96, 1056), (128, 1024), (1000, 2000), (4096, 4096)]
)
def test_a_block_is_whole_windows(window, tokens):
    constant = block_length(np.arange(40_000), {"nll": np.ones(40_000)}, window)
    assert (constant.tokens, constant.rule) == (tokens, "shortest" if window < 1024 else "window")
    longer = block_length(np.arange(40_000), {"nll": documents(40_000, 700, 2)}, window)
    assert longer.tokens % window == 0 and longer.tokens >= tokens


def test_a_block_is_no_longer_than_an_eighth_of_the_text():
    values = np.repeat(np.random.default_rng(3).normal(size=5), 8000)
    found = block_length(np.arange(40_000), {"nll": values}, 128)
    assert found.rule == "eighth" and found.tokens <= 5000 < found.tokens + 128
    assert found.measured["nll"] > 5000  # pyright: ignore[reportOptionalOperand]


def test_a_window_hardness_at_its_start_is_no_dependence():
    """Every window begins with hard targets: that repeats, and makes no window like its neighbour."""
    places = overlapping(300_000, 512, 512)
    rng = np.random.default_rng(4)
    plain = rng.exponential(2.0, len(places["index"]))
    hard = plain + 6 / np.sqrt(places["position"])
    one, two = (block_length(places["index"], {"nll": x}, 512) for x in (plain, hard))
    assert two.measured["nll"] == pytest.approx(one.measured["nll"], rel=0.05)
    assert one.tokens == two.tokens <= 4096


def test_a_long_text_takes_no_product_of_its_targets():
    places = overlapping(300_000, 2048, 512)
    values = documents(300_000, 1000, 5)[places["index"]]
    begin = time.process_time()
    block_length(places["index"], dict.fromkeys("abc", values), 2048)
    # A second, however busy the machine is, and not the hours of a product.
    assert len(values) > 1_100_000 and time.process_time() - begin < 60


def test_weights_count():
    """Evaluations of weight 0 are not there."""
    values, index = documents(60_000, 500, 6), np.arange(60_000)
    doubled, twice = np.repeat(index, 2), np.repeat(values, 2)
    twice[1::2] = 1e6
    weights = np.tile([1.0, 0.0], 60_000)
    one = block_length(index, {"nll": values}, 128)
    assert block_length(doubled, {"nll": twice}, 128, weights) == one


def planned(tokens: int, length: int, name: str = "disjoint", limit: int | None = None):
    protocol = preset(name).override(context_length=length, max_windows=limit)
    return make_plan(np.arange(tokens, dtype=np.int32) % 100, protocol.resolve(None))


@pytest.mark.parametrize(
    ("tokens", "length", "name", "limit", "blocks", "more"),
    [
        (2048, 512, "disjoint", None, 2, "a text of 8,192 tokens (this one has 2,048) would"),
        (90_000, 512, "disjoint", 4, 2, "--limit 16 would"),
        (90_000, 512, "score-mode", 4, 2, "--limit 16 would"),
        (8192, 512, "score-mode", 4, 2, "a text of 8,193 tokens (this one has 8,192) would"),
        (10_000, 2048, "disjoint", None, 5, "(this one has 10,000), or -c 1024, would"),
        (7168, 512, "disjoint", None, 7, "a text of 8,192 tokens (this one has 7,168) would"),
        (7170, 512, "disjoint", None, 8, None),
        (90_000, 2048, "score-mode", 40, 11, None),
    ],
)
def test_a_plan_tells_whether_there_will_be_intervals(tokens, length, name, limit, blocks, more):
    plan = planned(tokens, length, name, limit)
    found = planned_blocks(plan)
    assert (found["blocks"], found["block_length"]) == (blocks, max(length, SHORTEST))
    if more is None:
        assert found["note"] is None
    else:
        assert found["note"].startswith(
            f"these windows give no interval and no test ({blocks} block"
        )
        assert found["note"].endswith(more)
    # As it is when the scores are there.
    index = plan.targets()[2]
    chosen = block_length(index, {"nll": np.ones(len(index))}, length)
    ends = np.unique(index // chosen.tokens)
    assert (len(ends) < 8) == (more is not None)


def test_the_advice_gives_an_interval():
    for name in ("disjoint", "score-mode", "llama.cpp"):
        few = planned_blocks(planned(90_000, 512, name, 2))["note"]
        limit = int(few.partition("--limit ")[2].partition(" ")[0])
        assert planned_blocks(planned(90_000, 512, name, limit))["note"] is None
