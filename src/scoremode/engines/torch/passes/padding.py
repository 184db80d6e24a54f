"""Windows of several lengths in one micro-batch: filled up behind their ends, and never seen there.

A causal model computes a position from itself and those before it: what stands behind a window's end
can't reach it. Two things can, and then windows share a micro-batch with their like alone: a scale or
columns of outliers that span a window, and rotations that depend on how long the longest window is.
What nobody thought of is shown by the first pass, which one of its windows goes through alone as well.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scoremode.engines.torch.matmul.linears import Windows
from scoremode.errors import UnsupportedModel
from scoremode.text.plan import Plan

__all__ = ["filled_ids", "may_pad", "most_filled", "prove_filled", "state_rows"]

# Rotations whose frequencies follow from the config alone; those of others from the longest position.
_FIXED_ROTATIONS = {"default", "linear", "yarn", "llama3", "proportional"}
# The same as for states that would change with tokens after them (`proofs`), but for the rounding of
# another number of rows.
_MOST_CHANGE = 0.1


def may_pad(config: Any, windows: Windows) -> bool:
    """Tells whether windows of several lengths may share a micro-batch of a model of that config, whose
    linears and caches know `windows`."""
    return not windows.are_spanned and _rotations(config) <= _FIXED_ROTATIONS


def _rotations(config: Any) -> set[str]:
    """The types of rotation that a config names, in any of the library's ways."""
    found: set[str] = set()
    for name in ("rope_parameters", "rope_scaling"):
        value = getattr(config, name, None)
        if isinstance(value, Mapping):
            # One for all layers, or one for each kind.
            for each in (value, *(v for v in value.values() if isinstance(v, Mapping))):
                kind = each.get("rope_type", each.get("type"))
                found |= {str(kind)} if kind is not None else set()
    return found


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


def prove_filled(name: str, alone: torch.Tensor, filled: torch.Tensor) -> None:
    """Checks that a window's states alone, [T, D], are those that it has filled up, [T + some, D].

    Raises UnsupportedModel.
    """
    one, other = alone.float(), filled[: len(alone)].float()
    # By the median feature, as for tokens after a state.
    change = (one - other).norm(dim=0) / one.norm(dim=0).clamp_min(1e-30)
    if change.median() > _MOST_CHANGE:
        raise UnsupportedModel(
            f"{name}: a window's states change with what fills it up behind its end: --batch-size 1 "
            "scores each by itself"
        )
