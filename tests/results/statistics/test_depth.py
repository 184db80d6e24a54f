"""Means by the tokens before a target: every evaluation of a long window in one of them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from support.comparisons import made

from scoremode.results.record.sections import sections
from scoremode.results.scores import Scores
from scoremode.results.statistics.depth import depth_groups
from scoremode.results.statistics.means import Blocks

NAMES = ["below 1k", "from 1k", "from 2k", "from 4k", "from 8k"]


def long_scores(length: int, windows: int = 2) -> Scores:
    """Windows in which the model is worse than its base from 4,096 tokens on."""
    position = np.tile(np.arange(1, length), windows)
    window = np.repeat(np.arange(windows), length - 1)
    scores = made(window * length + position, window=window, position=position, full=False)
    return replace(scores, logprob=scores.logprob - np.where(position >= 4096, 1.0, 0.0))


def expected(position: int) -> str:
    """By the definition, one position."""
    if position < 1024:
        return "below 1k"
    return f"from {2 ** int(math.log2(position // 1024))}k"


@pytest.mark.parametrize("weighted", [False, True])
def test_groups_are_those_made_row_by_row(weighted):
    scores = long_scores(9000)
    weights = np.random.default_rng(1).choice([0.0, 1.0, 2.0], len(scores)) if weighted else None
    w = np.ones(len(scores)) if weights is None else weights
    found = depth_groups(scores, Blocks(scores.index, 9000, weights))
    assert [group.name for group in found] == NAMES
    names = np.array([expected(int(p)) for p in scores.position])
    against = scores.against
    assert against is not None
    for group in found:
        assert group.of == "depth"
        rows = names == group.name
        assert (group.n, group.share) == (rows.sum(), rows.mean())
        assert group.bounds == (scores.position[rows].min(), scores.position[rows].max())

        def mean(column, rows=rows):
            return float((column * w)[rows].sum() / w[rows].sum())

        values = {name: one.value for name, one in group.means.items()}
        assert values["ppl"] == pytest.approx(np.exp(mean(-scores.logprob)))
        ratio = np.exp(mean(against.base_logprob - scores.logprob))
        assert values["ppl_ratio"] == pytest.approx(ratio)
        assert values["kld"] == pytest.approx(mean(against.kld))
        assert values["top1"] == pytest.approx(mean(scores.top1 == against.base_top1))
    assert sum(group.n for group in found) == len(scores)
    late = [group.means["ppl_ratio"].value for group in found]
    assert max(late[:3]) < 1.1 < 2.4 < min(late[3:])


def test_without_a_base_there_are_perplexities():
    scores = replace(long_scores(5000), against=None)
    found = depth_groups(scores, Blocks(scores.index, 5000))
    assert [group.name for group in found] == NAMES[:4]
    assert all(set(group.means) == {"ppl"} for group in found)


@pytest.mark.parametrize(
    ("length", "names"),
    [
        (2048, []),
        (4096, []),
        (4097, ["below 1k", "from 4k"]),
        (1 << 17, ["below 1k", "from 64k"]),
        ((1 << 17) + 1, ["below 1k", "from 128k"]),
    ],
)
def test_windows_of_the_usual_protocols_have_none(length, names):
    """A window of which the first and the last target are scored."""
    position = np.array([1, length - 1])
    scores = replace(made(position, position=position, full=False), against=None)
    found = depth_groups(scores, Blocks(scores.index, length))
    assert [group.name for group in found] == names


def test_a_group_that_weighs_nothing_is_left_out():
    scores = long_scores(5000, windows=1)
    weights = np.where(scores.position < 1024, 0.0, 1.0)
    found = depth_groups(scores, Blocks(scores.index, 5000, weights))
    assert [group.name for group in found] == NAMES[1:4]


@pytest.mark.parametrize("alone", [False, True])
def test_a_record_has_them_with_intervals(alone):
    """Of as many windows as an interval needs; each is a block."""
    scores = long_scores(4200, windows=9)
    scores = replace(scores, against=None) if alone else scores
    found = sections(scores, 4200, {}, block_length=4200)["breakdown"]["depth"]
    assert [group["group"] for group in found] == NAMES[:4]
    for group in found:
        for name in ["ppl"] if alone else ["ppl", "ppl_ratio", "kld", "top1"]:
            low, high = group[name]["ci95"]
            assert low <= group[name]["value"] <= high
    if not alone:
        # All of 4,096 and more are worse, and no other is.
        late, before = found[-1]["ppl_ratio"]["ci95"], found[-2]["ppl_ratio"]["ci95"]
        assert before[1] < 1.1 < 2 < late[0]


def test_a_run_of_ordinary_windows_has_none_in_its_record():
    scores = replace(long_scores(2048), against=None)
    assert "breakdown" not in sections(scores, 2048, {}, block_length=2048)
