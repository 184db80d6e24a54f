"""The decision whether requests with a common prefix share its computation, and how long rows are.

A row of trees (`text.batching`) of T tokens has a mask of T × T, and its attention is by a kernel that
takes a mask, so a longer row costs more a token; a shorter one repeats more of what windows have in
common. The length is the one that costs least, of a few, by the plan and the kind of device alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from scoremode.engines.base import Schedule, Work
from scoremode.engines.torch.matmul.linears import Windows
from scoremode.engines.torch.memory.activations import widest_head
from scoremode.engines.torch.memory.budget import Memory, is_long
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.passes.execution import LayerByLayer, Layers, Way
from scoremode.engines.torch.passes.microbatch import may_pad
from scoremode.engines.torch.passes.prefix_proof import sharing_obstacle
from scoremode.errors import EngineError
from scoremode.text.batching import grouped, size_of
from scoremode.text.plan import Plan

# Lengths that are tried: up to so many tokens by kind of device, or to twice the longest window.
_LENGTHS = (512, 1_024, 2_048, 4_096, 8_192)
_USUAL = {"cpu": 2_048, "cuda": 4_096}
# Tokens of a row whose attention under a mask takes as long as all else of a layer: of an 8B model on a
# GPU, by its operations and half the rate of attention without a mask.
_EVEN = 8_192
# The least part of the work that has to be saved: attention without masks is faster.
_LEAST_SAVED = 0.1


@dataclass(frozen=True)
class RowMemory:
    """A device's memory as rows of trees take it.

    - `memory`: as windows without masks take it.
    - `kept`: bytes of masks for every two places of a row while its pass lasts; `made`: more of them
      while a layer runs, or a mask is made.
    - `tables`: bytes of positions and rotations that each token of a pass has for itself.
    - `scored`: bytes of attention's scores for every two places, where they are held at all.
    """

    memory: Memory
    kept: int
    made: int
    tables: int
    scored: int = 0

    @classmethod
    def of(cls, memory: Memory, config: Any, dtype: torch.dtype, attention: str) -> "RowMemory":
        """The row memory of a model with this `config`."""
        size, kinds = dtype.itemsize, len(set(getattr(config, "layer_types", None) or ["all"]))
        heads = getattr(config, "num_attention_heads", None) or 1
        # Of each kind of layers: cosines and sines. Ids, places, depths and ends in 64 bits.
        tables = 2 * size * widest_head(config) * kinds + 4 * 8
        if attention == "eager":
            return cls(memory, kinds * size, 4 + size, tables, heads * (4 + 2 * size))
        # Truth values, those that they are made of, and the same as numbers for the kernel.
        return cls(memory, kinds, 4 + size, tables)

    def of_rows(self, row: int) -> Memory:
        """The memory with what each token takes in rows of `row` tokens."""
        own = self.memory
        # Scores of 2,048 places are counted in any micro-batch.
        scored = self.scored * max(0, row - 2_048)
        return replace(
            own,
            pass_token=own.pass_token + row * self.kept + self.tables,
            batch_token=own.batch_token + row * self.made + scored,
        )


def choose_rows(
    plan: Plan, apart: Schedule, rows: RowMemory, batch_windows: int | None
) -> Schedule | None:
    """The schedule of a plan's windows in rows of trees; None where that saves too little of what they
    cost `apart`.

    `batch_windows`: as the user wants it.
    """
    longest = int(plan.lengths.max()) - 1
    usual = max(_USUAL[rows.memory.device.torch.type], 2 * longest)
    best, least = None, (1 - _LEAST_SAVED) * _work(plan, apart, 0)
    for row in _LENGTHS:
        if row > usual or is_long(row):
            continue
        try:
            schedule = _in_rows(row, longest, rows, batch_windows)
        except EngineError:
            # It takes more memory than there is; a shorter one may not.
            continue
        if (work := _work(plan, schedule, max(row, longest))) < least:
            best, least = schedule, work
    return best


def _in_rows(row: int, longest: int, rows: RowMemory, batch_windows: int | None) -> Schedule:
    """Pass and micro-batch of rows, which one long window may fill. Raises EngineError."""
    length = max(row, longest)
    own = rows.of_rows(length).schedule(length, None)
    batch, passes = own.batch_windows * length, own.pass_windows * length
    # Each window has a target, and of those there are no more than tokens.
    return Schedule(
        pass_windows=passes,
        batch_windows=batch_windows or batch,
        pass_tokens=passes,
        batch_tokens=batch,
        row_tokens=row,
    )


def _work(plan: Plan, schedule: Schedule, row: int) -> float:
    """The work of all windows, in tokens without attention."""
    assert schedule.batch_tokens is not None
    batches = grouped(
        plan,
        range(len(plan)),
        tokens=schedule.batch_tokens,
        most=schedule.batch_windows,
        pads=schedule.pads,
        row=schedule.row_tokens,
    )
    tokens = sum(size_of(plan, batch, schedule.row_tokens) for batch in batches)
    if schedule.row_tokens is None:
        # A window's last token is no input.
        tokens -= sum(map(len, batches))
    return tokens * (1 + row / _EVEN)


class Rows:
    """Rows of trees for one model's windows, or the reason why there are none.

    - `way`: gives the way that passes take through the layers.
    - `exact`: computed in float32, with no inputs or caches that are quantized.
    - `batch_windows`: as the user wants it.
    """

    def __init__(
        self,
        skeleton: Skeleton,
        layers: Layers,
        windows: Windows,
        way: Callable[[], Way],
        memory: RowMemory,
        *,
        exact: bool,
        batch_windows: int | None,
    ):
        self._skeleton, self._layers, self._windows, self._way = skeleton, layers, windows, way
        self._memory, self.exact, self._batch_windows = memory, exact, batch_windows
        # Why the model's windows go apart, once it was tried.
        self._tried: tuple[str | None] | None = None
        # The plan that was looked at last, and what came of it.
        self._known: tuple[Plan, Schedule | str] | None = None
        self._described: str | None = None

    def schedule(self, plan: Plan, apart: Schedule) -> Schedule:
        """The schedule of requests in rows of trees, or as they go `apart`."""
        found = self._decided(plan, apart)
        return apart if isinstance(found, str) else found

    def holds(self, work: Work) -> bool:
        """Tells whether the work's windows lie in rows of trees and may, and keeps for the record how
        they go."""
        row = work.schedule.row_tokens
        why = (
            self.sharing_obstacle() if row is not None else self._decided(work.plan, work.schedule)
        )
        if row is not None and why is None:
            self._described = f"shared in rows of {row} tokens"
            return True
        # A run that is checked may have been made where windows did not share.
        self._described = f"apart: {why if isinstance(why, str) else 'as they were scored before'}"
        return False

    def describe(self) -> dict[str, str]:
        """Returns what the record says, nothing where no requests were scored."""
        return {} if self._described is None else {"prefixes": self._described}

    def sharing_obstacle(self) -> str | None:
        """Returns why no windows of this model may share; None where they may."""
        if self._tried is None:
            way = self._way()
            if not isinstance(way, LayerByLayer):
                why = way.described
            elif self._windows.are_spanned:
                why = "a scale, or columns of outliers, span a window"
            elif not may_pad(self._skeleton.config, self._windows):
                why = "its rotations depend on how long a window is"
            else:
                why = sharing_obstacle(self._skeleton, self._layers, exact=self.exact)
            self._tried = (why,)
        return self._tried[0]

    def _decided(self, plan: Plan, apart: Schedule) -> Schedule | str:
        if self._known is None or self._known[0] is not plan:
            longest = int(plan.lengths.max())
            if self._batch_windows == 1:
                found = "--batch-size 1"
            elif is_long(longest):
                found = f"windows of {longest} tokens may go in chunks"
            else:
                rows = choose_rows(plan, apart, self._memory, self._batch_windows)
                too_little = "they have too little in common"
                found = too_little if rows is None else self.sharing_obstacle() or rows
            self._known = plan, found
        return self._known[1]
