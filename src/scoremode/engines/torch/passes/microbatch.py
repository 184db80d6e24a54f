"""A micro-batch: its windows as a model is given them, the states that its targets are predicted from,
and the head's results on their way to the host.

Rows are windows, filled up behind their ends where they are of several lengths, or trees. A causal
model computes a position from itself and those before it: what stands behind a window's end can't reach
it. Two things can, and then windows share a micro-batch with their like alone: a scale or columns of
outliers that span a window, and rotations that depend on how long the longest window is. What nobody
thought of is shown by the first pass, which one of its windows goes through alone as well.

On a GPU a pass is queued and not waited for, so that the next one is queued behind it before this one's
scores are fetched, checked and written.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from scoremode.engines.base import OutOfMemory, Work
from scoremode.engines.torch.device import DeviceClock
from scoremode.engines.torch.matmul.linears import Windows
from scoremode.engines.torch.model.prefix_tree import ForestIds, Ids
from scoremode.errors import UnsupportedModel
from scoremode.head.full import full_pairs
from scoremode.head.project import (
    Head,
    HeadLogits,
    Logits,
    draft_variation,
    score_logits,
    score_pairs,
    tile_of,
)
from scoremode.reference.base import Span
from scoremode.results.scores import Scores
from scoremode.text.batching import Forest, lay
from scoremode.text.plan import Plan

# Rotations whose frequencies follow from the config alone; those of others from the longest position.
_FIXED_ROTATIONS = {"default", "linear", "yarn", "llama3", "proportional"}
# The same as for states that would change with tokens after them (`proofs`), but for the rounding of
# another number of rows.
_MOST_CHANGE = 0.1
# Takes numbers to the device, as int64.
Send = Callable[[NDArray[np.integer]], torch.Tensor]
T = TypeVar("T")


def may_pad(config: Any, windows: Windows) -> bool:
    """Tells whether windows of several lengths may share a micro-batch of a model of that config, whose
    linears and caches know `windows`."""
    # The types of rotation that the config names, in any of the library's ways.
    rotations: set[str] = set()
    for name in ("rope_parameters", "rope_scaling"):
        value = getattr(config, name, None)
        if isinstance(value, Mapping):
            # One for all layers, or one for each kind.
            for each in (value, *(v for v in value.values() if isinstance(v, Mapping))):
                kind = each.get("rope_type", each.get("type"))
                rotations |= {str(kind)} if kind is not None else set()
    return not windows.are_spanned and rotations <= _FIXED_ROTATIONS


def filled_ids(plan: Plan, batch: range) -> NDArray[np.int32]:
    """int32 [B, T]: the inputs of a micro-batch's windows, each followed by its last one."""
    windows = [plan[w].inputs for w in batch]
    longest = max(map(len, windows))
    return np.stack([np.pad(ids, (0, longest - len(ids)), mode="edge") for ids in windows])


def state_rows(plan: Plan, batch: range) -> NDArray[np.int64]:
    """int64 [n]: the rows of a micro-batch's states [B · T, D] that its targets are predicted from: the
    target at position t of a window from its state at t - 1."""
    longest = int(plan.lengths[batch.start : batch.stop].max()) - 1
    rows = [place * longest + plan.positions(w) - 1 for place, w in enumerate(batch)]
    return np.concatenate(rows)


def most_filled(plan: Plan, batches: Sequence[range]) -> tuple[int, int] | None:
    """The micro-batch and the place in it of the window that was filled up most; None for none."""
    most, found = 0, None
    for b, batch in enumerate(batches):
        lengths = plan.lengths[batch.start : batch.stop]
        filled = lengths.max() - lengths
        if filled.max() > most:
            most, found = int(filled.max()), (b, int(filled.argmax()))
    return found


def median_change(one: torch.Tensor, other: torch.Tensor) -> float:
    """The change from one to other states [T, D] of the median feature, as a part of its length: a few
    features of most models are so large that they would hide any change."""
    one, other = one.float(), other.float()
    change = (one - other).norm(dim=0) / one.norm(dim=0).clamp_min(1e-30)
    return float(change.median())


def prove_filled(name: str, alone: torch.Tensor, filled: torch.Tensor) -> None:
    """Checks that a window's states alone, [T, D], are those that it has filled up, [T + some, D].

    Raises UnsupportedModel.
    """
    if median_change(alone, filled[: len(alone)]) > _MOST_CHANGE:
        raise UnsupportedModel(
            f"{name}: a window's states change with what fills it up behind its end: --batch-size 1 "
            "scores each by itself"
        )


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


class PendingScores:
    """A pass whose scores are on their way: `columns` are of the plan, `results` of the head, for each
    group of windows."""

    def __init__(
        self, columns: list[dict[str, np.ndarray]], results: list[list[Any]], device: torch.device
    ):
        self._columns, self._results = columns, results
        self._done: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._done = torch.cuda.Event()
            self._done.record(torch.cuda.current_stream(device))

    def scores(self) -> Scores:
        """Waits for them."""
        if self._done is not None:
            self._done.synchronize()
        groups = []
        for columns, results in zip(self._columns, self._results, strict=True):
            whole = dict(columns)
            for result in results:
                whole |= result.columns()
            groups.append(whole)
        names = groups[0]
        return Scores.from_columns({n: np.concatenate([g[n] for g in groups]) for n in names})


def fetched(begun: Iterator[Callable[[], T]], *, ahead: bool) -> Iterator[T]:
    """The result of each pass that `begun` begins and gives a call to wait for.

    `ahead`: a pass is waited for when the next one has begun, as for a GPU that has it queued; or when
    there is too little memory for that one, before its OutOfMemory is raised.
    """
    if not ahead:
        yield from (wait() for wait in begun)
        return
    waiting: Callable[[], T] | None = None
    while True:
        try:
            following = next(begun, None)
        except OutOfMemory:
            if waiting is not None:
                yield waiting()
            raise
        if waiting is not None:
            yield waiting()
        if following is None:
            return
        waiting = following


def to_host(result: Any) -> Any:
    """`result`, a dataclass of tensors and dictionaries of them, with those on a GPU on their way to
    the host.

    They are there when a `PendingScores` that was made after says so.
    """
    if isinstance(result, torch.Tensor):
        return result.to("cpu", non_blocking=True)
    if isinstance(result, dict):
        return {name: to_host(value) for name, value in result.items()}
    if not is_dataclass(result) or isinstance(result, type):
        return result
    return replace(result, **{f.name: to_host(getattr(result, f.name)) for f in fields(result)})


def score_states(
    head: Head,
    work: Work,
    rows: Span,
    states: torch.Tensor,
    target: torch.Tensor,
    clock: DeviceClock,
) -> list[Any]:
    """Results with `columns` for the plan's scored targets `rows`, int64 [N], and their states [N, D],
    on their way to the host."""
    logits = partial(HeadLogits, head, states)
    return score_span(logits, head.vocabulary, work, rows, target, clock)


def score_span(
    logits: Callable[[tuple[int, int]], Logits],
    entries: int,
    work: Work,
    rows: Span,
    target: torch.Tensor,
    clock: DeviceClock,
) -> list[Any]:
    """The same of any model's logits over so many entries, which `logits` gives in tiles."""
    reference, device = work.extras.reference, target.device
    tile = tile_of(device)
    if reference is None:
        with clock.stage("head"):
            return [to_host(score_logits(logits(tile), target, entries, tile))]
    with clock.stage("reference"):
        base = reference.logits([rows], device, tile)
    with clock.stage("head"):
        model = logits(tile)
        extra = reference.extra_sums
        pair = score_pairs(target, entries, model=model, base=base, extra=extra, tile=tile)
        if (draft := work.extras.draft) is not None:
            tv = draft_variation(target, entries, draft, model=model, base=base, tile=tile)
            pair = replace(pair, extra={**pair.extra, "tv_draft": tv})
        found: list[Any] = [pair]
        if work.extras.full:
            found.append(full_pairs(pair, entries, model=model, base=base, tile=tile))
        return [to_host(result) for result in found]
