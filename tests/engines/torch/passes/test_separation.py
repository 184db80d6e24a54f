"""Layers that may run apart, by what a forward does when they seem to return something else."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from scoremode.engines.torch.model.layer_recorder import Call, NotSeparable
from scoremode.engines.torch.model.skeleton import Recorded, Skeleton
from scoremode.engines.torch.passes.execution import prove_separable


class Made:
    """A skeleton of two layers; each flag has it do what it should not."""

    def __init__(self, *, flat=False, embeds=False, breaks=False):
        self.device, self.embeds_at_end = torch.device("cpu"), True
        self._made = SimpleNamespace(flat=flat, embeds=embeds, breaks=breaks)

    def record(self, ids: torch.Tensor, *, perturb: bool = False) -> Recorded:
        embedded = ids[..., None].float().expand(*ids.shape, 3)
        given: dict[str, Any] = {"mask": [embedded * 2], "other": None}
        return Recorded(embedded, [Call((None,), given, 0), Call((None,), given, 0)])

    def finish(self, ids: torch.Tensor, hidden: torch.Tensor, *, perturb=False) -> torch.Tensor:
        final = hidden * 0.5
        if not self.embeds_at_end and self._made.breaks:
            raise RuntimeError("another shape")
        if self.embeds_at_end and self._made.embeds:
            final = final + ids[..., None]
        return final.flatten(0, 1) if self._made.flat else final


def prove(**made: bool) -> Made:
    skeleton = Made(**made)
    prove_separable(cast("Skeleton", skeleton))
    return skeleton


def test_a_head_that_gets_no_rows_of_tokens_is_found():
    with pytest.raises(NotSeparable, match="what its head gets is not one row a token"):
        prove(flat=True)


@pytest.mark.parametrize(
    ("made", "embeds"), [({}, False), ({"embeds": True}, True), ({"breaks": True}, True)]
)
def test_the_embedding_is_left_out_at_the_end_where_nothing_looks_at_it(made, embeds):
    assert prove(**made).embeds_at_end is embeds
