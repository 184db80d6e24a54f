"""The writing, in the workers, of the states that a reference is made of.

The process that asks makes the file and names the row of every prompt; the first tensor-parallel rank
of the last pipeline stage, which has the states, writes each step's into their rows. No state goes
through vLLM's own messages.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from scoremode.engines.vllm.workers.bases import spans_of
from scoremode.reference.states import write_states

__all__ = ["StateFile"]


class StateFile:
    """A file of states [rows, width] that `create_states` has made, as one worker fills it."""

    def __init__(self, path: Path, rows: int, width: int, dtype: str):
        self._path, self._form = path, (width, dtype)
        self._written = np.zeros(rows, bool)

    def write(self, rows: NDArray[np.int64], states: torch.Tensor) -> None:
        """Puts `states` [N, D] into `rows` [N]; those of a prompt that was preempted come again."""
        form = states.shape[1], str(states.dtype).removeprefix("torch.")
        if len(states) != len(rows) or form != self._form:
            raise ValueError(
                f"{len(states)} states of {form} for {len(rows)} rows of {self._form} in {self._path}"
            )
        here, at = states.cpu(), 0
        for begin, end in spans_of(rows):
            write_states(self._path, begin, here[at : at + end - begin])
            self._written[begin:end] = True
            at += end - begin

    @property
    def rows(self) -> int:
        """The number of the file's rows that have been written."""
        return int(self._written.sum())
