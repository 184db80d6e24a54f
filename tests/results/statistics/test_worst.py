"""The tokens with the largest divergence, each place once, with the text before them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.comparisons import made

from scoremode.results.scores import Comparison, Scores, expected
from scoremode.results.statistics.worst import worst_tokens
from scoremode.text.plan import Plan
from scoremode.text.protocol import preset
from scoremode.text.token_class import token_table
from scoremode.text.tokenizer import Tokenizer, load_tokenizer, tokenize


def with_kld(scores: Scores, kld: np.ndarray) -> tuple[Scores, Comparison]:
    assert scores.against is not None
    against = replace(scores.against, kld=kld.astype(np.float64))
    return replace(scores, against=against), against


@pytest.fixture(scope="module")
def tokenizer(demo) -> Tokenizer:
    return load_tokenizer(demo / "model")


@pytest.fixture(scope="module")
def plan(demo, tokenizer) -> Plan:
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:3000]
    protocol = preset("score-mode").override(context_length=64, stride=16).resolve(None)
    return tokenize(text, tokenizer, protocol)


@pytest.fixture(scope="module")
def scored(plan) -> Scores:
    columns = expected(plan, range(len(plan)))
    scores = made(columns["index"], window=columns["window"], position=columns["position"])
    return replace(scores, target=columns["target"])


def test_the_largest_are_found_and_no_place_twice(scored):
    rng = np.random.default_rng(0)
    scores, against = with_kld(scored, rng.exponential(size=len(scored)))
    found = worst_tokens(scores, against)
    best: dict[int, tuple[float, int]] = {}
    for i in range(len(scores)):
        place, kld = int(scores.index[i]), float(against.kld[i])
        if place not in best or kld > best[place][0]:
            best[place] = kld, i
    wanted = sorted(best.values(), key=lambda pair: (-pair[0], pair[1]))[:10]
    assert [f["kld"] for f in found] == [kld for kld, _ in wanted]
    for fact, (_, i) in zip(found, wanted, strict=True):
        assert (fact["window"], fact["position"]) == (scores.window[i], scores.position[i])
        assert (fact["index"], fact["target"]) == (scores.index[i], scores.target[i])
        assert fact["p_model"] == pytest.approx(np.exp(scores.logprob[i]))
        assert fact["p_base"] == pytest.approx(np.exp(against.base_logprob[i]))
        assert (fact["top1"], fact["base_top1"]) == (scores.top1[i], against.base_top1[i])
    json.dumps(found, allow_nan=False)


def test_on_ties_the_earlier_comes_first():
    scores, against = with_kld(made(np.arange(50)), np.array([1.0, 2.0] * 25))
    found = worst_tokens(scores, against, count=30)
    assert [f["index"] for f in found] == [*range(1, 50, 2), *range(0, 10, 2)]


def test_what_does_not_differ_is_not_listed():
    kld = np.zeros(50)
    scores, against = with_kld(made(np.arange(50)), kld)
    assert worst_tokens(scores, against) == []
    kld[7] = 1e-12
    kld[8] = -1e-9
    scores, against = with_kld(scores, kld)
    assert [f["index"] for f in worst_tokens(scores, against)] == [7]


@pytest.mark.parametrize("position", [1, 2, 12, 13, 63])
def test_texts_around_it(position, scored, plan, tokenizer):
    table = token_table(tokenizer)
    i = int(np.flatnonzero((scored.window == 5) & (scored.position == position))[0])
    scores, against = with_kld(scored, np.arange(len(scored)) == i)
    (fact,) = worst_tokens(scores, against, plan=plan, table=table)
    ids = plan.tokens[plan.start[5] :]
    before = ids[max(0, position - 12) : position]
    assert len(before) == min(12, position)
    assert fact["target"] == ids[position]
    assert fact["target_text"] == tokenizer.backend.decode([ids[position]])
    assert fact["context"] == tokenizer.backend.decode(before)
    assert fact["top1_text"] == table.text([fact["top1"]])
    assert fact["base_top1_text"] == table.text([fact["base_top1"]])


def test_a_window_s_own_bos_is_its_context(scored, plan, tokenizer):
    assert tokenizer.bos is not None
    table = token_table(tokenizer)
    i = int(np.flatnonzero((scored.window == 5) & (scored.position == 2))[0])
    scores, against = with_kld(scored, np.arange(len(scored)) == i)
    with_bos = replace(plan, window_bos=tokenizer.bos)
    (fact,) = worst_tokens(scores, against, plan=with_bos, table=table)
    assert fact["context"].startswith("<s>")


def test_an_id_beyond_the_tokenizer_is_called_by_its_number(scored, plan, tokenizer):
    scores, against = with_kld(scored, np.arange(len(scored)) == 3)
    padded = replace(scores, top1=np.full_like(scores.top1, 5000))
    (fact,) = worst_tokens(padded, against, plan=plan, table=token_table(tokenizer))
    assert fact["top1_text"] == "<id 5000>"
