"""A micro-batch's windows as a model is given them, and the states that their targets are predicted
from: rows of windows that are filled up, or rows of trees."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from scoremode.engines.torch.model.forest import ForestIds, Ids
from scoremode.engines.torch.passes.padding import filled_ids, state_rows
from scoremode.text.batching import Forest, lay
from scoremode.text.plan import Plan

__all__ = ["Inputs", "forest_rows", "inputs_of"]

# Takes numbers to the device, as int64.
Send = Callable[[NDArray[np.integer]], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Inputs:
    """A micro-batch on the device.

    - `ids` [B, T]: of its windows, or of rows of trees, which are the `forest` then.
    - `rows` int64 [n]: the rows of its states [B · T, D] that its targets are predicted from, window by
      window; None where the last ones of each window, from its position `firsts` - 1 on, are.
    """

    ids: Ids
    rows: torch.Tensor | None
    firsts: tuple[int, ...]
    forest: Forest | None = None

    def window(self, place: int) -> torch.Tensor:
        """int64 [T] or more: the inputs of a window, by its place in the micro-batch, and what may fill
        them up behind."""
        if isinstance(self.ids, torch.Tensor):
            return self.ids[place]
        assert self.forest is not None
        places = torch.from_numpy(self.forest.places(place)).to(self.ids.ids.device)
        return self.ids.ids[int(self.forest.row[place]), places]

    def chosen(self, states: torch.Tensor) -> torch.Tensor:
        """[n, D]: those of the states [B, T, D] that its targets are predicted from."""
        if self.rows is not None:
            return states.flatten(0, 1).index_select(0, self.rows)
        return torch.cat([states[r, first - 1 :] for r, first in enumerate(self.firsts)])


def inputs_of(plan: Plan, batch: range, row: int | None, send: Send) -> Inputs:
    """The micro-batch of a plan's windows `batch`, in rows of trees of `row` tokens where given.

    `send`: takes numbers to the device; all of them go before a layer is queued, behind which a copy
    would wait.
    """
    firsts = tuple(plan.first[batch.start : batch.stop].tolist())
    if row is None:
        ids = send(filled_ids(plan, batch))
        rows = None if plan.counted is None else send(state_rows(plan, batch))
        return Inputs(ids, rows, firsts)
    forest = lay([plan[w].inputs for w in batch], row)
    ids = ForestIds(send(forest.ids), send(forest.depth), send(forest.end))
    return Inputs(ids, send(forest_rows(plan, batch, forest)), firsts, forest)


def forest_rows(plan: Plan, batch: range, forest: Forest) -> NDArray[np.int64]:
    """int64 [n]: the rows of the states [B · T, D] of a micro-batch laid out as `forest` that its
    targets are predicted from: the target at position t of a window from its state at t - 1."""
    width = forest.ids.shape[1]
    rows = [
        forest.row[i] * width + forest.places(i)[plan.positions(w) - 1] for i, w in enumerate(batch)
    ]
    return np.concatenate(rows)
