"""Plans of requests."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoremode.errors import CorpusError, ProtocolError
from scoremode.text.task_requests import TASKS, TokenRequest, plan_of_requests, rolling_requests

PREFIX = 9
IDS = st.lists(st.integers(0, 3), max_size=6)
REQUESTS = st.lists(
    st.builds(TokenRequest, IDS.filter(bool), IDS, st.integers(0, 5)), min_size=1, max_size=30
).filter(lambda requests: any(r.continuation for r in requests))


def protocol(length: int):
    return replace(TASKS, context_length=length).resolve(None)


@given(REQUESTS, st.integers(6, 12))
def test_each_request_is_what_the_harness_feeds(requests: list[TokenRequest], length: int):
    found = plan_of_requests(requests, protocol(length), PREFIX)
    for request, w in zip(requests, found.window.tolist(), strict=True):
        if not request.continuation:
            assert w == -1
            continue
        window = found.plan[w]
        # As its hf backend cuts them.
        whole = [*request.context, *request.continuation][-(length + 1) :]
        n = len(request.continuation)
        assert window.inputs.tolist() == whole[:-1]
        assert window.targets[window.scored - 1].tolist() == list(request.continuation)
        assert len(window.scored) == n == found.plan.counts[w]
    long = [
        r for r in requests if r.continuation and len(r.context) + len(r.continuation) > length + 1
    ]
    assert found.shortened == len(long)


@given(REQUESTS, st.integers(6, 12), st.randoms(use_true_random=False))
def test_the_order_of_requests_changes_nothing(requests, length: int, random):
    one = plan_of_requests(requests, protocol(length), PREFIX)
    order = list(range(len(requests)))
    random.shuffle(order)
    other = plan_of_requests([requests[i] for i in order], protocol(length), PREFIX)
    assert other.plan.sha256 == one.plan.sha256
    assert other.plan.conversation.tolist() == one.plan.conversation.tolist()  # pyright: ignore[reportOptionalMemberAccess]
    assert other.window.tolist() == one.window[order].tolist()


@given(REQUESTS, st.integers(6, 12))
def test_windows_are_sorted_and_different(requests: list[TokenRequest], length: int):
    plan = plan_of_requests(requests, protocol(length), PREFIX).plan
    spans = zip(plan.start, plan.stop, plan.first, strict=True)
    windows = [(plan.tokens[a:b].tolist(), int(first)) for a, b, first in spans]
    assert windows == sorted(windows)
    assert all(a != b for a, b in pairwise(windows))
    assert plan.tokens.dtype == np.int32
    assert plan.undrawn.tolist() == list(range(len(plan)))


def test_an_equal_request_counts_as_the_first_documents():
    requests = [
        TokenRequest([1, 2], [3], 7),
        TokenRequest([1, 2], [3], 4),
        TokenRequest([1], [2, 3], 9),
    ]
    found = plan_of_requests(requests, protocol(8), PREFIX)
    assert found.window.tolist() == [1, 1, 0]
    assert found.plan.conversation is not None
    assert found.plan.conversation.tolist() == [9, 4]


def test_ids_of_two_bytes_sort_as_numbers():
    requests = [
        TokenRequest([256], [1], 0),
        TokenRequest([255], [1], 1),
        TokenRequest([70_000], [1], 2),
    ]
    assert plan_of_requests(requests, protocol(8), PREFIX).window.tolist() == [1, 0, 2]


def test_what_no_model_can_score_is_refused():
    with pytest.raises(ProtocolError, match=r"request 1: its continuation has 5 tokens.*reads 4"):
        plan_of_requests(
            [TokenRequest([1], [2], 0), TokenRequest([1], [2] * 5, 0)], protocol(4), PREFIX
        )
    with pytest.raises(CorpusError, match="no token is to be scored of 2 requests"):
        plan_of_requests([TokenRequest([1], [], 0)] * 2, protocol(4), PREFIX)


def test_an_empty_context_is_the_prefix():
    requests = [TokenRequest([], [1, 2], 0), TokenRequest([], [PREFIX, 3], 1)]
    plan = plan_of_requests(requests, protocol(8), PREFIX).plan
    spans = zip(plan.start, plan.stop, plan.first, strict=True)
    assert [(plan.tokens[a:b].tolist(), int(first)) for a, b, first in spans] == [
        ([PREFIX, 1, 2], 1),
        # As the harness has it: the token that is the prefix is not scored, nor written twice.
        ([PREFIX, 3], 1),
    ]


def test_a_text_that_is_the_prefix_alone_has_nothing_to_score():
    requests = [TokenRequest([], [PREFIX], 0), TokenRequest([], [], 1), TokenRequest([1], [2], 2)]
    assert plan_of_requests(requests, protocol(8), PREFIX).window.tolist() == [-1, -1, 0]


def windows_of_the_harness(tokens: list[int], prefix: int, length: int):
    """`get_rolling_token_windows` with a context of 1, and `make_disjoint_window`, of its utils.py."""
    if not tokens:
        return
    predicted = min(length, len(tokens))
    yield [prefix], tokens[:predicted]
    while predicted < len(tokens):
        new = min(len(tokens) - predicted, length)
        end = predicted + new
        inputs, targets = tokens[end - length - 1 : end - 1], tokens[end - new : end]
        yield inputs[: len(inputs) - (len(targets) - 1)], targets
        predicted += new


@given(st.lists(st.integers(0, 99), max_size=40), st.integers(2, 12))
def test_a_text_is_cut_as_the_harness_cuts_it(tokens: list[int], length: int):
    found = rolling_requests(tokens, PREFIX, length, 3)
    pairs = [(list(r.context), list(r.continuation)) for r in found]
    assert pairs == list(windows_of_the_harness(tokens, PREFIX, length))
    assert [i for r in found for i in r.continuation] == tokens
    assert all(r.document == 3 for r in found)
