"""Rows of final hidden states in a worker, scored as a request wants them: with a base, kept, tested.

What hands over the rows and knows which token each belongs to is the pooler (`pooler.py`) for prompts
and the watch on a generating runner (`steps.py`) for decode steps.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

import weakref
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import torch
from numpy.typing import NDArray

from scoremode.engines.torch.device import DeviceClock
from scoremode.engines.vllm.prompts import Kind
from scoremode.engines.vllm.workers.comparison import StateFile, to_device
from scoremode.engines.vllm.workers.vocab_slice import Given, ShardedHead
from scoremode.errors import ReferenceUnusable
from scoremode.reference.base import OnDisk


class RowScorer:
    """Scores of rows by the head of `model`, which holds it.

    - `head_dtype`: as `ShardedHead` has it.
    """

    def __init__(self, model: torch.nn.Module, head_dtype: str):
        self._head_dtype = head_dtype
        # A reference proper would make the model its own submodule.
        self._model = weakref.ref(model)
        self._head: ShardedHead | None = None
        self._reference: tuple[Path, str] | None = None
        # The head's seconds, from its first use on, which names the device.
        self.clock: DeviceClock | None = None
        # Where states go that are to be kept. Every rank has them, and only one a file.
        self.states: StateFile | None = None

    @property
    def head(self) -> ShardedHead:
        """Made at the first use, when the model is whole."""
        if self._head is None:
            model = self._model()
            assert model is not None
            self._head = ShardedHead(model, self._head_dtype)
        return self._head

    def compare_with(self, opener: str, path: Path, sha256: str) -> None:
        """Makes `path`, opened by the class that `opener` names as `module:class`, the reference that
        later requests are compared with.

        Raises ReferenceUnusable where it is not the one that has this `sha256`.
        """
        if self._reference == (path, sha256):
            return
        reference: OnDisk = resolve_name(opener)(path)
        if reference.sha256 != sha256:
            raise ReferenceUnusable(
                f"{path}: has the sha256 {reference.sha256[:12]}… in a vLLM worker, and {sha256[:12]}… "
                "where the run was started"
            )
        self._reference = None
        self.head.compare_with(reference)
        self._reference = path, sha256

    def score(
        self,
        rows: torch.Tensor,
        places: NDArray[np.integer],
        targets: NDArray[np.integer],
        kind: Kind,
        *,
        base: NDArray[np.int64],
        kept: NDArray[np.int64],
    ) -> torch.Tensor:
        """Float32 [N, columns of `kind`] of final hidden states `rows` [N, D], on their device. N is at
        least 1.

        - `places` [N]: the tokens that the rows are of; `targets` [N]: the ids scored after them.
        - `base`, `kept` [N]: the rows of the reference, and of the file for states, that belong to
          them; read where `kind` says so. A row that is -1 in `kept` is not kept.
        """
        device = rows.device
        goal = to_device(torch.from_numpy(targets.astype(np.int64)), device)
        self.clock = self.clock or DeviceClock(device)
        given = self._writer(kept) if kind.kept else None
        with self.clock.stage("head"):
            if kind.compared:
                values = self.head.compare(rows, goal, kind, base, given)
            else:
                values = dict(vars(self.head.score(rows, goal, kind, given)))
        position = (places + 1).astype(np.float32)
        values["position"] = to_device(torch.from_numpy(position), device)
        values["target"] = goal
        if kind.self_test:
            wanted = vars(self.head.gathered(rows, goal, kind.vocabulary))
            values |= {f"gathered_{name}": column for name, column in wanted.items()}
        if not kind.entropy:
            values["entropy"] = torch.full_like(values["logprob"], torch.nan)
        return torch.stack([values[name].float() for name in kind.columns], 1)

    def _writer(self, kept: NDArray[np.int64]) -> Given | None:
        """Puts states into their rows of the file."""
        if self.states is None:
            return None
        file = self.states

        def write(part: slice, states: torch.Tensor) -> None:
            wanted = kept[part] >= 0
            whole = states if wanted.all() else states[torch.from_numpy(wanted)]
            file.write(kept[part][wanted], whole)

        return write
