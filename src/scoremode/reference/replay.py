"""The proof that a reference's logits come back as they were.

What was stored are states and a head, and the base's log-probabilities as they were when it ran. The
same states through the same head must give those again: to the bit on the same device with the same
kernels, and else to the rounding of the logits, which is then the floor of every comparison.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scoremode.errors import ReferenceUnusable
from scoremode.head.project import score_rows, tile_of
from scoremode.reference.stored import StoredReference
from scoremode.results.statistics.agreement import LIMITS

__all__ = ["Replay", "compare_base", "logits_of", "replay"]


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
    rows, _ = tile = tile_of(device)
    scores, head = reference.scores, reference.head(device)
    count = min(rows, reference.record["kept"]["states"]["files"][0]["rows"])
    batch = _batch_windows(reference.record)
    found, begin = [], 0
    while begin < count:
        # Windows are numbered from 0, and their rows lie in that order.
        last = (int(scores.window[begin]) // batch + 1) * batch
        end = min(int(np.searchsorted(scores.window, last)), begin + rows)
        states = reference.states([(begin, end)]).to(device)
        target = torch.from_numpy(scores.target[begin:end].astype(np.int64)).to(device)
        found.append(score_rows(head, states, target, tile=tile).logprob.cpu().numpy())
        begin = end
    return compare_base(reference, 0, np.concatenate(found), "float32")


def _batch_windows(record: Mapping[str, Any]) -> int:
    """Windows of a micro-batch of the first pass."""
    change = record.get("schedule_change")
    if change is not None and change["after_passes"] > 0:
        return change["batch_windows_before"]
    return record["schedule"]["batch_windows"]


def compare_base(
    reference: StoredReference, begin: int, logprob: NDArray[np.float64], logits: str
) -> Replay:
    """The stored log-probabilities from row `begin` on against repeated ones, float64 [N].

    - `logits`: the dtype that the repeated ones' logits were rounded to.

    Raises ReferenceUnusable where they differ by more than rounding explains.
    """
    stored = reference.scores.logprob[begin : begin + len(logprob)]
    if len(stored) != len(logprob):
        raise ReferenceUnusable(
            f"{reference.folder}: {len(reference.scores)} scores where rows {begin} to "
            f"{begin + len(logprob)} are asked"
        )
    apart = logprob - stored
    found = Replay(
        len(apart),
        bool(np.array_equal(logprob, stored)),
        float(np.sqrt((apart**2).mean())) if len(apart) else 0.0,
        float(np.abs(apart).max()) if len(apart) else 0.0,
    )
    coarsest = max(logits, logits_of(reference.record["engine"]), key=list(LIMITS).index)
    limit = LIMITS[coarsest].rms
    if not found.rms <= limit:
        raise ReferenceUnusable(
            f"{reference.folder}: replayed, its log-probabilities differ from the stored ones by "
            f"{found.rms:.3g} nats (rms of {found.rows} rows from row {begin}; {coarsest} logits "
            f"explain {limit:g}): its states, its head or its scores are not what they were"
        )
    return found


def logits_of(engine: Mapping[str, Any]) -> str:
    """The dtype that an engine, by its section of a record, rounds its logits to."""
    own = engine["engine"] == "vllm" and engine["head_dtype"] == "model"
    return engine["dtype"] if own else "float32"
