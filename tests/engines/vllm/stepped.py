"""A generating runner by hand: a scheduler's steps, rows in any order, and books of what was sampled.

The states are random vectors, one a token of each window, and the model is only a head, so that what a
step's rows should score is known. `test_steps.py` drives V1's shape of a runner with it, and
`drive_v2.py` vLLM's own V2 `sample`.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from scoremode.engines.vllm.prompts import Kind, ScoreRequest
from scoremode.engines.vllm.workers.steps import StepScorer
from scoremode.head.rows import RowSums

ENTRIES, WIDTH = 50, 8
GENERATOR = torch.Generator().manual_seed(0)
HEAD = torch.randn(ENTRIES, WIDTH, generator=GENERATOR)


class Head:
    """As much of a `ShardedHead` as steps need; `sizes` of the batches that it was given."""

    def __init__(self, model: Any, head_dtype: str):
        self.sizes: list[int] = []

    def score(self, hidden, target, kind, given=None):
        self.sizes.append(len(hidden))
        if given is not None:
            given(slice(0, len(hidden)), hidden)
        sums = RowSums(len(hidden), hidden.device, entropy=True)
        sums.absorb(slice(None), hidden @ HEAD.T, target, 0)
        return sums.finish()

    def own_logits(self, hidden):
        return hidden @ HEAD.T


class Model(torch.nn.Module):
    """A model that is only a head."""

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ HEAD.T


class Window:
    """Random ids with a state for each that is fed, and the request for their targets."""

    def __init__(self, length: int, index: int, kind: Kind = Kind(), **asked: Any):  # noqa: B008
        ids = torch.randint(0, ENTRIES, (length + 1,), generator=GENERATOR)
        self.ids = ids.int().numpy()
        self.states = torch.randn(length, WIDTH, generator=GENERATOR)
        self.request = ScoreRequest(self.ids[1:], index=index, kind=kind, **asked)
        self.known = self.ids[: self.request.prompt_tokens].tolist()
        self.places = np.arange(length)[self.request.first :]
        if self.request.chosen is not None:
            self.places = self.request.chosen

    def truth(self) -> np.ndarray:
        """Float64 log-probabilities of its scored targets."""
        z = (self.states.double() @ HEAD.double().T).log_softmax(1).numpy()
        return z[self.places, self.ids[1:][self.places]]


class Runner:
    """A runner of either shape. `order`: of the rows of a step, from the names that are scheduled."""

    def __init__(
        self,
        windows: dict[str, Window],
        sample: Callable[..., Any] | None = None,
        order: Callable[[Sequence[str]], Sequence[str]] = reversed,  # type: ignore[assignment]
    ):
        self.model: Any = Model()
        self.model_config = SimpleNamespace(get_vocab_size=lambda: ENTRIES)
        self.windows, self._order, self._told = windows, order, set[str]()
        self.sampled: list[int] = []
        if sample is None:
            self.input_batch = SimpleNamespace(req_ids=[])
        else:
            self.sample = sample

    def get_model(self) -> Any:
        return self.model

    def execute_model(self, output: Any, intermediate: Any = None) -> None:
        names = list(self._order(list(output.num_scheduled_tokens)))
        states, rows = [], []
        for name in names:
            end = self._ends[name]
            states.append(self.windows[name].states[end - output.num_scheduled_tokens[name] : end])
            rows.append(sum(map(len, states)) - 1)
        hidden, indices = torch.cat(states), torch.tensor(rows)
        if hasattr(self, "input_batch"):
            self.input_batch.req_ids = names
            logits = self.model.compute_logits(hidden[indices])
            self.sampled = logits.argmax(1).tolist()
        else:
            batch = SimpleNamespace(
                req_ids=names, logits_indices=indices, num_draft_tokens=0, num_reqs=len(names)
            )
            found, *_ = self.sample(hidden, batch, None)
            self.sampled = found.sampled_token_ids[:, 0].tolist()
        self._names = names

    def step(
        self, chunks: dict[str, tuple[int, int]], again: Sequence[str] = (), *, off: int = 0
    ) -> None:
        """One step: of each request its tokens `begin … end`, and then in its books what was sampled.

        `again`: requests that are told of as new, as V2's are after a preemption; `off`: by which the
        scheduler is wrong.
        """
        new = [name for name in chunks if name not in self._told or name in again]
        old = [name for name in chunks if name not in new]
        self._ends = {name: end for name, (_, end) in chunks.items()}
        self._told |= set(new)
        output = SimpleNamespace(
            finished_req_ids=set(),
            num_scheduled_tokens={name: end - begin for name, (begin, end) in chunks.items()},
            scheduled_new_reqs=[
                SimpleNamespace(
                    req_id=name,
                    num_computed_tokens=chunks[name][0] + off,
                    sampling_params=SimpleNamespace(
                        extra_args=self.windows[name].request.to_extra()
                    ),
                )
                for name in new
            ],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=old, num_computed_tokens=[chunks[name][0] + off for name in old]
            ),
        )
        self.execute_model(output)
        for name, token in zip(self._names, self.sampled, strict=True):
            window = self.windows[name]
            if self._ends[name] == len(window.known):
                window.known.append(token)


def rows_of(scorer: StepScorer, kind: Kind = Kind()) -> tuple[dict[int, np.ndarray], int]:  # noqa: B008
    """Rows [N, columns] by the request's number, and how many were prefilled."""
    index, rows, prefilled = scorer.take()
    numbers = np.frombuffer(index, "<i4")
    table = np.frombuffer(rows, "<f4").reshape(len(numbers), len(kind.columns))
    return {int(n): table[numbers == n] for n in set(numbers.tolist())}, prefilled


def check(window: Window, rows: np.ndarray) -> None:
    """Each of its targets once, in order, as float64 has it; and its ids in the books."""
    assert window.known == window.ids.tolist(), "another token was sampled"
    assert np.array_equal(rows[:, 0], window.places + 1), "positions"
    assert np.array_equal(rows[:, 1], window.ids[1:][window.places]), "targets"
    assert np.abs(rows[:, 2] - window.truth()).max() < 1e-5, "log-probabilities"


def drive(runner: Runner, scorer: StepScorer, windows: dict[str, Window]) -> None:
    """A chunked prompt beside decode steps, a preemption, gaps, and windows that end at other times."""
    runner.step({"a": (0, 1), "b": (0, 2), "c": (0, 1)})
    runner.step({"a": (1, 2), "b": (2, 4), "c": (1, 2)})
    # b's prompt of five ends here.
    runner.step({"c": (2, 3), "b": (4, 5), "a": (2, 3)})
    runner.step({"a": (3, 4), "b": (5, 6), "c": (3, 4)})
    # c has lost its tokens, and comes back in two chunks, the second of which ends in a new token.
    runner.step({"a": (4, 5), "b": (6, 7)})
    runner.step({"c": (0, 3), "a": (5, 6), "b": (7, 8)}, again=["c"])
    runner.step({"b": (8, 9), "c": (3, 5)})
    runner.step({"c": (5, 6), "b": (9, 10)})
    found, prefilled = rows_of(scorer)
    assert prefilled == 1 and sorted(found) == [0, 1, 2]
    for window in windows.values():
        check(window, found[window.request.index])


def make_windows() -> dict[str, Window]:
    return {
        "a": Window(6, 0),
        "b": Window(10, 1, first=5),
        "c": Window(6, 2, chosen=np.array([0, 2, 3, 4], np.int32)),
    }
