"""The watch on a generating runner: which row is whose, and what a runner may not do. Needs no vLLM."""

from typing import Any

import numpy as np
import pytest
import torch
from engines.vllm.stepped import (
    ENTRIES,
    WIDTH,
    Head,
    Runner,
    Window,
    check,
    drive,
    make_windows,
    rows_of,
)

from scoremode.engines.vllm.decoding import check_replayed
from scoremode.engines.vllm.prompts import Kind
from scoremode.engines.vllm.workers import scorer as scorers
from scoremode.engines.vllm.workers.comparison import StateFile
from scoremode.engines.vllm.workers.steps import StepScorer
from scoremode.errors import InvalidMeasurement
from scoremode.reference.states import create_states, read_states


@pytest.fixture
def watch(monkeypatch):
    monkeypatch.setattr(scorers, "ShardedHead", Head)

    def make(windows: dict[str, Window], **more: Any) -> tuple[Runner, StepScorer]:
        runner = Runner(windows, **more)
        return runner, StepScorer(runner, "model")

    return make


@pytest.mark.parametrize("order", [reversed, sorted, lambda names: names[1:] + names[:1]])
def test_each_target_once_whatever_the_order_of_rows(order, watch):
    windows = make_windows()
    runner, scorer = watch(windows, order=order)
    drive(runner, scorer, windows)


def test_all_rows_of_a_step_are_scored_together(watch):
    """As the sampler would have had their logits, those of unscored tokens among them."""
    windows = make_windows()
    runner, scorer = watch(windows)
    drive(runner, scorer, windows)
    assert scorer._head.sizes == [3, 3, 3, 3, 2, 3, 2, 2]


def test_a_row_taken_for_anothers_shows_in_the_books(watch, monkeypatch):
    names = StepScorer._requests_of_rows
    monkeypatch.setattr(StepScorer, "_requests_of_rows", lambda s: [*names(s)[1:], *names(s)[:1]])
    windows = {"a": Window(6, 0), "b": Window(6, 1)}
    runner, _ = watch(windows)
    for place in range(6):
        runner.step(dict.fromkeys(windows, (place, place + 1)))
    for window in windows.values():
        with pytest.raises(InvalidMeasurement, match="vLLM took token"):
            check_replayed(window.ids, 1, window.known[:1], window.known[1:])


@pytest.mark.parametrize(("off", "said"), [(1, "where 2 was next"), (20, "of a window of 6")])
def test_a_skipped_token_is_an_error(off, said, watch):
    runner, _ = watch({"a": Window(6, 0)})
    runner.step({"a": (0, 1)})
    runner.step({"a": (1, 2)})
    with pytest.raises(RuntimeError, match=said):
        runner.step({"a": (2, 3)}, off=off)


def test_a_place_that_is_behind_is_given_again_and_not_scored_twice(watch):
    window = Window(4, 0)
    runner, scorer = watch({"a": window})
    runner.step({"a": (0, 1)})
    window.known.pop()
    for place in range(4):
        runner.step({"a": (place, place + 1)})
    check(window, rows_of(scorer)[0][0])


def test_rows_of_other_requests_than_those_scheduled_are_an_error(watch):
    runner, _ = watch({"a": Window(4, 0), "b": Window(4, 1)})
    runner.step({"a": (0, 1), "b": (0, 1)})
    with pytest.raises(RuntimeError, match="3 rows to sample from 2 requests, of 2 that"):
        runner.model.compute_logits(torch.zeros(3, WIDTH))
    runner.input_batch.req_ids = ["a", "c"]
    with pytest.raises(RuntimeError, match="2 rows to sample from 2 requests, of 2 that"):
        runner.model.compute_logits(torch.zeros(2, WIDTH))


def test_without_a_window_the_logits_are_the_models(watch):
    runner, scorer = watch({"a": Window(4, 0)})
    hidden = torch.randn(5, WIDTH)
    assert torch.equal(runner.model.compute_logits(hidden), scorer._head.own_logits(hidden))
    assert scorer.take() == (b"", b"", 0)


def test_what_a_failed_call_left_is_gone_when_it_is_taken(watch):
    runner, scorer = watch({"a": Window(4, 0)})
    runner.step({"a": (0, 1)})
    assert len(rows_of(scorer)[0][0]) == 1 and scorer.take() == (b"", b"", 0)
    assert runner.model.compute_logits(torch.zeros(1, WIDTH)).shape == (1, ENTRIES)


def test_states_go_to_the_rows_of_their_windows(watch, tmp_path):
    """In whatever order steps bring them; those of unscored tokens to none."""
    kind = Kind(kept=True)
    windows = {"a": Window(3, 0, kind, place=4), "b": Window(6, 1, kind, first=2)}
    runner, scorer = watch(windows)
    path = tmp_path / "states"
    create_states(path, 7, WIDTH, torch.float32)
    scorer.scorer.states = StateFile(path, 7, WIDTH, "float32", holds=True)
    runner.step({"a": (0, 1), "b": (0, 2)})
    runner.step({"a": (1, 2), "b": (2, 3)})
    runner.step({"a": (2, 3), "b": (3, 4)})
    runner.step({"b": (4, 5)})
    assert scorer.scorer.states.rows == 6
    runner.step({"b": (5, 6)})
    assert scorer.scorer.states.rows == 7
    wanted = torch.cat([windows["b"].states[2:], windows["a"].states])
    assert torch.equal(read_states(path), wanted)


def test_the_books_must_have_the_window():
    whole = np.array([3, 1, 4, 1], np.int32)
    check_replayed(whole, 2, [3, 1], [4, 1])
    for prompt, sampled, said in [
        ([3, 1], [4], "decoded 1 tokens after 2, where 2 after 2 were asked"),
        ([3], [1, 4, 1], "decoded 3 tokens after 1, where 2 after 2"),
        ([3, 1], [4, 5], "took token 5 at position 3 of a window whose token there is 1"),
        ([3, 2], [4, 1], "took token 2 at position 1 of a window whose token there is 1"),
    ]:
        with pytest.raises(InvalidMeasurement, match=said):
            check_replayed(whole, 2, prompt, sampled)
