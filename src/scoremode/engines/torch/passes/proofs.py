"""Proofs of what must hold for a score to count, shown on a few states before the first one does.

A model taken apart by general rules can be taken apart wrongly, and the result would look like any
other number. So before the first pass's scores are used, a short probe that went through all layers
beside it has to show two things: that no state depends on tokens after it, and that the model's head is
the function that ours is. (`execution.prove_separable` shows that its layers may be run apart.)
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from scoremode.engines.base import Work
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.passes.execution import Way
from scoremode.engines.torch.passes.microbatch import (
    Inputs,
    median_change,
    most_filled,
    prove_filled,
)
from scoremode.engines.torch.passes.prefix_proof import most_shared, prove_shared
from scoremode.errors import UnsupportedModel
from scoremode.head.project import Head

_PROBE_TOKENS = 16
_HEAD_ROWS = 512
# Of the weight; products of usual size, and some that bend every softcap.
_MAGNITUDES = (1.0, 32.0, 1024.0)


class FirstPass:
    """Probes that go through the layers ahead of the first pass's windows, and what they show.

    - `probes`: ids [B, T]: those of `probe_ids`, and by themselves the window that its micro-batch
      fills up most, or those that share most of a row of trees, where any does.
    """

    def __init__(self, work: Work, inputs: Sequence[Inputs], entries: int, *, exact: bool = True):
        """`inputs`: of each micro-batch of `work`; `entries`: of the vocabulary; `exact`: computed in
        float32, with no inputs or caches that are quantized."""
        self._inputs, self._exact = inputs, exact
        self._shared = most_shared(inputs)
        # In rows of trees nothing but a row's end is filled up.
        in_rows = work.schedule.row_tokens is not None
        self._filled = None if in_rows else most_filled(work.plan, work.batches)
        windows = [(one.batch, one.window) for one in self._shared]
        windows += [] if self._filled is None else [self._filled]
        self.probes = [probe_ids(inputs[0].window(0), entries)]
        for batch, place in windows:
            length = len(work.plan[work.batches[batch][place]].inputs)
            self.probes.append(inputs[batch].window(place)[None, :length])

    def prove(self, skeleton: Skeleton, way: Way, head: Head, out: list[Any]) -> None:
        """Checks what the layers made of the probes, as `way` has it, which is in front of `out` and
        leaves it. Raises UnsupportedModel, saying what does not hold."""
        name = type(skeleton.model).__name__
        prove(skeleton, way, head, self.probes[0], out.pop(0))
        alone = [way.finish(ids, out.pop(0))[0] for ids in self.probes[1:]]
        for one, states in zip(self._shared, alone, strict=False):
            together = way.finish(self._inputs[one.batch].ids, out[one.batch])[one.row]
            places, depths = (
                torch.from_numpy(x).to(states.device) for x in (one.places, one.depths)
            )
            prove_shared(name, states[depths], together[places[depths]], exact=self._exact)
        if self._filled is not None:
            batch, place = self._filled
            together = way.finish(self._inputs[batch].ids, out[batch])[place]
            prove_filled(name, alone[-1], together)


def probe_ids(ids: torch.Tensor, entries: int) -> torch.Tensor:
    """int64 [2, n]: the first few of `ids` [T], and the same with another second half."""
    first = ids[:_PROBE_TOKENS]
    second = first.clone()
    half = len(first) // 2
    second[half:] = (second[half:] + 1) % entries
    return torch.stack((first, second))


def prove(skeleton: Skeleton, way: Way, head: Head, ids: torch.Tensor, out: Any) -> None:
    """Checks what the layers made of the probe `ids` [2, n], as `way` has it, and the head.

    Raises UnsupportedModel, saying what does not hold.
    """
    name = type(skeleton.model).__name__
    final = way.finish(ids, out)
    if final.dim() != 3 or final.shape[:2] != ids.shape:
        raise UnsupportedModel(f"{name}: what its head gets is not one row a token")
    prove_causal(name, final)
    prove_head(name, skeleton.head, head, lambda: way.own_logits(ids, out))


def prove_causal(name: str, hidden: torch.Tensor) -> None:
    """Checks that states [2, n, D] of `probe_ids` are alike before the place where the two rows part.
    Raises UnsupportedModel."""
    one, other = hidden[:, : hidden.shape[1] // 2]
    # Two rows of one batch differ by rounding at most; a token ahead moves everything.
    if one.numel() and median_change(one, other) > 0.05:
        raise UnsupportedModel(
            f"{name}: a state changes with tokens after it: the model sees what it should predict"
        )


def prove_head(name: str, module: Any, head: Head, own_logits: Callable[[], torch.Tensor]) -> None:
    """Checks the model's own logits against ours, in float32, with a small part of the weight of its
    head `module`. Raises UnsupportedModel.

    The part is there several times, each magnified more so that a softcap bends: a factor that was
    missed shows far above rounding.
    """
    rows = max(1, min(_HEAD_ROWS, head.vocabulary // len(_MAGNITUDES)))
    # Minimums of a packed weight are in columns behind its own.
    part = head.weight[:rows, : module.weight.shape[1]].float()
    weight = torch.cat([part * magnitude for magnitude in _MAGNITUDES])
    bias = None if head.bias is None else head.bias[:rows].float().repeat(len(_MAGNITUDES))
    ours = Head(weight, bias, head.scale, head.softcap, len(weight))
    states: list[torch.Tensor] = []

    def upcast(_: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        states.append(args[0].float())
        return (states[-1],)

    saved = dict(module._parameters)
    handle = module.register_forward_pre_hook(upcast)
    try:
        module._parameters["weight"] = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            module._parameters["bias"] = nn.Parameter(bias, requires_grad=False)
        own = own_logits()
    finally:
        handle.remove()
        module._parameters.update(saved)
    if len(states) != 1:
        raise UnsupportedModel(
            f"{name}: its forward calls its output embedding {len(states)} times"
        )
    if own.shape[-1] != len(weight):
        raise UnsupportedModel(
            f"{name}: its head gives {own.shape[-1]} logits where its weight has {len(weight)} rows"
        )
    logits = ours.logits(states[-1].flatten(0, -2) @ weight.T, 0)
    _compare(name, own.float().flatten(0, -2), logits, rows)


def _compare(name: str, own: torch.Tensor, ours: torch.Tensor, rows: int) -> None:
    """Each magnitude by itself, `rows` columns each: the largest would hide the others."""
    for theirs, part in zip(own.split(rows, dim=-1), ours.split(rows, dim=-1), strict=True):
        # States that are not finite say nothing of the head: their scores will end the run.
        judged = theirs.isfinite()
        if not torch.equal(judged, part.isfinite()):
            raise UnsupportedModel(
                f"{name}: its own logits and ours are not finite in other places"
            )
        if not judged.any():
            continue
        limit = 1e-4 * float(theirs[judged].abs().max()) + 1e-6
        difference = float((theirs - part)[judged].abs().max())
        if not difference <= limit:
            raise UnsupportedModel(
                f"{name}: its own logits differ from ours by {difference:.3g} (allowed "
                f"{limit:.1g}): its head is more than a matrix, a scale and a softcap"
            )
