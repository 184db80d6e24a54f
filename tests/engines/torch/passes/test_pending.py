"""Scores on their way: columns of plan and head, put together in order when they are there."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from scoremode.engines.base import OutOfMemory
from scoremode.engines.torch.passes.microbatch import PendingScores, fetched, to_host

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Result:
    first: torch.Tensor
    nested: "Result | None" = None
    name: str = "x"

    def columns(self):
        return {"logprob": self.first.double().numpy() * -1.0}


@dataclass(frozen=True)
class Tops:
    top: torch.Tensor

    def columns(self):
        return {"top1": self.top.numpy().astype(np.int32), "top1_logprob": -self.top.numpy() * 0.5}


def columns(begin: int, count: int) -> dict[str, np.ndarray]:
    index = np.arange(begin, begin + count)
    return {
        "window": (index * 0).astype(np.int32),
        "position": index.astype(np.int32),
        "index": index.astype(np.int64),
        "target": (index + 5).astype(np.int32),
    }


def results(begin: int, count: int) -> list:
    values = torch.arange(begin, begin + count, dtype=torch.float32)
    return [Result(values), Tops(values)]


def test_groups_are_put_together_in_order_with_all_columns():
    launched = PendingScores([columns(1, 3), columns(4, 2)], [results(1, 3), results(4, 2)], CPU)
    scores = launched.scores()
    assert scores.position.tolist() == [1, 2, 3, 4, 5]
    assert scores.target.tolist() == [6, 7, 8, 9, 10]
    assert scores.logprob.tolist() == [-1.0, -2.0, -3.0, -4.0, -5.0]
    assert scores.top1.tolist() == [1, 2, 3, 4, 5]
    assert scores.top1_logprob.tolist() == [-0.5, -1.0, -1.5, -2.0, -2.5]


def test_a_group_without_results_is_an_error_not_a_shorter_pass():
    with pytest.raises(ValueError, match="shorter"):
        PendingScores([columns(1, 3), columns(4, 2)], [results(1, 3)], CPU).scores()


def begun(order: list[str], count: int, fails_at: int | None = None):
    """Calls for Scores of so many passes; `order` notes what begins and what is waited for."""
    for i in range(count):
        if i == fails_at:
            raise OutOfMemory("no room")
        order.append(f"begin {i}")

        def scores(i: int = i):
            order.append(f"wait {i}")
            return PendingScores([columns(i, 1)], [results(i, 1)], CPU).scores()

        yield scores


def test_a_pass_is_waited_for_when_the_next_one_has_begun():
    order: list[str] = []
    assert [s.position[0] for s in fetched(begun(order, 3), ahead=True)] == [0, 1, 2]
    assert order == ["begin 0", "begin 1", "wait 0", "begin 2", "wait 1", "wait 2"]
    assert not list(fetched(begun(order, 0), ahead=True))


def test_without_a_queue_a_pass_is_waited_for_at_once():
    order: list[str] = []
    assert [s.position[0] for s in fetched(begun(order, 2), ahead=False)] == [0, 1]
    assert order == ["begin 0", "wait 0", "begin 1", "wait 1"]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_all_passes_before_one_without_memory_are_fetched_once(ahead, fails_at):
    order: list[str] = []
    found = []
    with pytest.raises(OutOfMemory, match="no room"):
        for scores in fetched(begun(order, 3, fails_at), ahead=ahead):
            found.append(scores.position[0])
    assert found == list(range(fails_at))
    assert sorted(order) == sorted(f"{w} {i}" for w in ("begin", "wait") for i in range(fails_at))


def test_to_host_takes_nested_results_and_leaves_the_rest():
    inner, outer = torch.arange(3.0), torch.arange(4.0)
    moved = to_host(Result(outer, Result(inner), "name"))
    assert moved.name == "name" and moved.nested is not None and moved.nested.nested is None
    assert torch.equal(moved.first, outer) and torch.equal(moved.nested.first, inner)
    (moved,) = to_host({"a": Result(inner)}).values()
    assert torch.equal(moved.first, inner)
    assert to_host(None) is None and to_host(Result) is Result


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpus_scores_are_waited_for():
    values = torch.zeros(1 << 20, device="cuda")
    torch.cuda._sleep(100_000_000)
    values += 3
    moved = to_host(Result(values))
    launched = PendingScores(
        [columns(0, 1 << 20)], [[moved, Tops(torch.zeros(1 << 20))]], values.device
    )
    assert (launched.scores().logprob == -3.0).all()
