"""A reference's logits of one rank's entries, some rows at a time, in the workers."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from scoremode.engines.vllm.workers.pairs import tile_entries
from scoremode.engines.vllm.workers.projection import OtherHead
from scoremode.head.project import Logits
from scoremode.reference.base import Reference, Span
from scoremode.reference.stored import StoredReference

__all__ = ["Base", "Share", "open_base", "spans_of", "to_device"]


@dataclass(frozen=True)
class Share:
    """One rank's part of a head, which a base has to have as well.

    - `begin`, `end`: its vocabulary entries. `columns`: of its projection, with padding.
    - `dtype`: of the states it is given. `float32`: its logits are not rounded to that.
    """

    begin: int
    end: int
    columns: int
    dtype: torch.dtype
    device: torch.device
    float32: bool


class Base(Protocol):
    """A reference, ready to be compared with."""

    def logits(self, rows: NDArray[np.int64]) -> Logits:
        """Logits of the reference's rows `rows`, of the share's entries."""
        ...


def open_base(reference: Reference, share: Share) -> Base:
    """Opens `reference` for comparison: what it needs on the device is loaded now, and stays."""
    if isinstance(reference, StoredReference):
        return _Projected(reference, share)
    return _Read(reference, share)


class _Projected:
    """Stored states through their own head, with vLLM's kernels."""

    def __init__(self, reference: StoredReference, share: Share):
        self._reference, self._share = reference, share
        self._head: OtherHead | None = None
        if share.begin < share.end:
            head = reference.head(torch.device("cpu"), share.begin, share.end)
            # Logits are rounded as the model's are only where the base computed in the same dtype.
            float32 = share.float32 or reference.dtype != share.dtype
            self._head = OtherHead(
                head, share.columns, reference.dtype, share.device, float32=float32
            )

    def logits(self, rows: NDArray[np.int64]) -> Logits:
        assert self._head is not None, "no entries"
        states = self._reference.states(spans_of(rows))
        return _Whole(self._head.logits(to_device(states, self._share.device)), self._share.begin)


class _Read:
    """A reference that has logits."""

    def __init__(self, reference: Reference, share: Share):
        self._reference, self._share = reference, share

    def logits(self, rows: NDArray[np.int64]) -> Logits:
        device = self._share.device
        tile = len(rows), tile_entries(len(rows), device)
        return self._reference.logits(spans_of(rows), device, tile)


class _Whole:
    """`logits` [R, E] of the entries `begin …`, which stay as they are."""

    def __init__(self, logits: torch.Tensor, begin: int):
        self._logits, self._begin = logits, begin
        self._tile = logits

    def load(self, begin: int, end: int) -> None:
        self._tile = self._logits[:, begin - self._begin : end - self._begin]

    def __call__(self, block: slice) -> torch.Tensor:
        return self._tile[block].to(torch.float32, copy=True)


def spans_of(rows: NDArray[np.int64]) -> list[Span]:
    """Runs of successive rows."""
    if not len(rows):
        return []
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    return [(int(run[0]), int(run[-1]) + 1) for run in runs]


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies `values` without waiting for the device, which has work of later steps to do."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
