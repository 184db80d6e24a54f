"""A micro-batch's inputs, and which of its states the targets are predicted from."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import random_plan
from support.request_plans import plan_of, shared_plan

from scoremode.engines.torch.model.prefix_tree import ForestIds
from scoremode.engines.torch.passes.microbatch import forest_rows, inputs_of
from scoremode.text.batching import lay
from scoremode.text.task_requests import TokenRequest


def send(numbers: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(numbers.astype(np.int64))


def history(forest, row: int, place: int) -> list[int]:
    """The inputs that a place sees, itself last."""
    return [int(forest.ids[row, j]) for j in range(place + 1) if place < forest.end[row, j]]


@given(st.integers(0, 9), st.sampled_from([1, 20, 37, 64, 512]), st.data())
def test_every_target_has_the_state_of_all_before_it(seed, row, data):
    plan = shared_plan(12, seed=seed)
    begin = data.draw(st.integers(0, len(plan) - 1))
    batch = range(begin, data.draw(st.integers(begin + 1, len(plan))))
    forest = lay([plan[w].inputs for w in batch], row)
    width = forest.ids.shape[1]
    rows = forest_rows(plan, batch, forest).tolist()
    wanted = [plan[w].inputs[:t].tolist() for w in batch for t in plan.positions(w)]
    assert [history(forest, r // width, r % width) for r in rows] == wanted
    inputs = inputs_of(plan, batch, row, send)
    assert isinstance(inputs.ids, ForestIds) and inputs.ids.shape == forest.ids.shape
    # States that say where they are.
    states = torch.arange(forest.ids.size).view(*forest.ids.shape, 1)
    assert inputs.chosen(states)[:, 0].tolist() == rows
    for place, w in enumerate(batch):
        assert inputs.window(place).tolist() == plan[w].inputs.tolist()


def test_targets_of_one_state_cost_it_once():
    plan = plan_of([TokenRequest([3, 4, 5], [n], 0) for n in range(6, 11)])
    inputs = inputs_of(plan, range(5), 64, send)
    assert inputs.ids.shape == (1, 3)
    assert inputs.rows is not None and inputs.rows.tolist() == [2] * 5


def test_windows_of_one_input_and_such_as_others_begin_with():
    plan = plan_of(
        [TokenRequest([], [7], 0), TokenRequest([1], [7, 8], 1), TokenRequest([1], [9], 2)]
    )
    inputs = inputs_of(plan, range(3), 64, send)
    assert isinstance(inputs.ids, ForestIds) and inputs.ids.ids.tolist() == [[1, 7]]
    assert inputs.rows is not None and inputs.rows.tolist() == [0, 0, 1, 0]


def test_windows_of_a_text_are_as_they_are():
    plan = random_plan(length=8, windows=3, tail=0)
    inputs = inputs_of(plan, range(1, 3), None, send)
    assert isinstance(inputs.ids, torch.Tensor) and inputs.rows is None and inputs.forest is None
    assert inputs.ids.tolist() == [plan[w].inputs.tolist() for w in (1, 2)]
    states = torch.arange(14).view(2, 7, 1)
    assert inputs.chosen(states)[:, 0].tolist() == list(range(14))
