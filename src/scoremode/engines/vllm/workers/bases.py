"""A reference's logits of one rank's entries, some rows at a time, in the workers."""

from collections.abc import Callable
from dataclasses import dataclass

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


# Gives a reference's logits of such rows int64 [R], of the share's entries.
Base = Callable[[NDArray[np.int64]], Logits]


def open_base(reference: Reference, share: Share) -> Base:
    """Opens `reference` for comparison: what it needs on the device is loaded now, and stays."""
    if isinstance(reference, StoredReference):
        return _projected(reference, share)

    def read(rows: NDArray[np.int64]) -> Logits:
        tile = len(rows), tile_entries(len(rows), share.device)
        return reference.logits(spans_of(rows), share.device, tile)

    return read


def _projected(reference: StoredReference, share: Share) -> Base:
    """Stored states through their own head, with vLLM's kernels."""
    head = None
    if share.begin < share.end:
        stored = reference.head(torch.device("cpu"), share.begin, share.end)
        # Logits are rounded as the model's are only where the base computed in the same dtype.
        float32 = share.float32 or reference.dtype != share.dtype
        head = OtherHead(stored, share.columns, reference.dtype, share.device, float32=float32)

    def project(rows: NDArray[np.int64]) -> Logits:
        assert head is not None, "no entries"
        states = to_device(reference.states(spans_of(rows)), share.device)
        return _Whole(head.logits(states), share.begin)

    return project


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
