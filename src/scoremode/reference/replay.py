"""The proof that a reference's logits come back as they were.

What was stored are states and a head, and the base's log-probabilities as they were when it ran. The
same states through the same head must give those again: to the bit on the same device with the same
kernels, and else to the rounding of the logits, which is then the floor of every comparison.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scoremode.errors import ReferenceUnusable
from scoremode.head.project import score_rows, tile_of
from scoremode.reference.base import Span
from scoremode.reference.stored import StoredReference
from scoremode.results.record.definition import Done
from scoremode.results.scores import Scores
from scoremode.results.statistics.agreement import LIMITS, logits_of
from scoremode.text.batching import grouped, parts_of
from scoremode.text.plan import Plan


@dataclass(frozen=True)
class Replay:
    """Stored and repeated log-probabilities of `rows` targets: how far apart, in nats."""

    rows: int
    bitwise: bool
    rms: float
    worst: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def joined(self, other: "Replay") -> "Replay":
        """The Replay of the rows of both."""
        rows = self.rows + other.rows
        squares = self.rows * self.rms**2 + other.rows * other.rms**2
        return Replay(
            rows,
            self.bitwise and other.bitwise,
            float(np.sqrt(squares / max(1, rows))),
            max(self.worst, other.worst),
        )


def replay(reference: StoredReference, device: torch.device) -> Replay:
    """Replays the first rows of the reference, about as many as one tile has, each micro-batch's in
    one call as they were scored. Raises ReferenceUnusable."""
    rows, _ = tile_of(device)
    scores, head = reference.scores, reference.head(device)
    found = []
    for begin, end in _micro_batches(reference):
        if begin >= rows:
            break
        # Of one that has more than a tile's rows, the first tile.
        end = min(end, begin + rows)
        states = reference.states([(begin, end)]).to(device)
        target = torch.from_numpy(scores.target[begin:end].astype(np.int64)).to(device)
        found.append(score_rows(head, states, target).logprob.cpu().numpy())
    return compare_base(reference, 0, np.concatenate(found), "float32")


def _micro_batches(reference: StoredReference) -> Iterator[Span]:
    """Rows of each micro-batch of the first pass."""
    record, scores = reference.record, reference.scores
    if record.schedule and record.schedule.batch_tokens:
        return _of_conversations(record, reference.plan())
    return _of_windows(record, scores)


def _of_conversations(record: Done, plan: Plan) -> Iterator[Span]:
    """Rows of each micro-batch of conversations, whose lengths and the schedule tell them."""
    schedule = record.schedule
    assert schedule and record.kept
    windows = range(int(np.searchsorted(plan.offsets, record.kept.states.files[0].rows)))
    assert schedule.batch_tokens
    most, tokens, pads = schedule.batch_windows, schedule.batch_tokens, bool(schedule.pads)
    split, row = schedule.split or 1, schedule.row_tokens or None
    if record.schedule_change and record.schedule_change.after_passes > 0:
        split = 1
    for batch in grouped(plan, windows, tokens=tokens, most=most, pads=pads, row=row):
        for part in parts_of(batch, split):
            yield int(plan.offsets[part.start]), int(plan.offsets[part.stop])


def _of_windows(record: Done, scores: Scores) -> Iterator[Span]:
    """Rows of each micro-batch of a text: so many neighbouring windows, fewer where another length
    begins, which the position of a window's last target tells."""
    assert record.schedule and record.kept
    most, change = record.schedule.batch_windows, record.schedule_change
    if change and change.after_passes > 0:
        most = change.batch_windows_before
    window = scores.window[: record.kept.states.files[0].rows]
    edges = np.flatnonzero(np.diff(window, prepend=-1, append=-1))
    lasts = scores.position[edges[1:] - 1]
    begin = 0
    for w in range(1, len(edges)):
        if w == len(lasts) or w - begin == most or lasts[w] != lasts[begin]:
            yield int(edges[begin]), int(edges[w])
            begin = w


def compare_base(
    reference: StoredReference,
    begin: int,
    logprob: NDArray[np.float64],
    logits: str,
    rows: NDArray[np.int64] | None = None,
) -> Replay:
    """The stored log-probabilities from row `begin` on against repeated ones, float64 [N].

    - `rows`: int64 [N], the reference's rows where they don't follow each other.
    - `logits`: the dtype that the repeated ones' logits were rounded to.

    Raises ReferenceUnusable where they differ by more than rounding explains.
    """
    stored = (
        reference.scores.logprob[begin : begin + len(logprob)]
        if rows is None
        else (reference.scores.logprob[rows])
    )
    if len(stored) != len(logprob):
        raise ReferenceUnusable(
            f"{reference.path}: {len(reference.scores)} scores where rows {begin} to "
            f"{begin + len(logprob)} are asked"
        )
    apart = logprob - stored
    found = Replay(
        len(apart),
        bool(np.array_equal(logprob, stored)),
        float(np.sqrt((apart**2).mean())) if len(apart) else 0.0,
        float(np.abs(apart).max()) if len(apart) else 0.0,
    )
    coarsest, limit = most_apart(reference, logits)
    if not found.rms <= limit:
        raise ReferenceUnusable(
            f"{reference.path}: replayed, its log-probabilities differ from the stored ones by "
            f"{found.rms:.3g} nats (rms of {found.rows} rows from row {begin}; {coarsest} logits "
            f"explain {limit:g}): its states, its head or its scores are not what they were"
        )
    return found


def most_apart(reference: StoredReference, logits: str) -> tuple[str, float]:
    """The rms that rounding explains between the stored log-probabilities and repeated ones, in nats,
    and the coarser dtype of their logits, of which `logits` is the repeated ones'."""
    coarsest = max(logits, logits_of(reference.record.document["engine"]), key=list(LIMITS).index)
    return coarsest, LIMITS[coarsest].rms
