"""A reference's logits of a rank's entries. Needs no vLLM."""

from typing import Any, cast

import numpy as np
import pytest
import torch

from scoremode.engines.vllm.workers import comparison as bases
from scoremode.engines.vllm.workers.comparison import Share, open_base, spans_of, to_device
from scoremode.reference.stored import StoredReference

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("rows", "spans"),
    [
        ([], []),
        ([4], [(4, 5)]),
        ([0, 1, 2], [(0, 3)]),
        ([5, 6, 2, 3, 4, 9], [(5, 7), (2, 5), (9, 10)]),
        ([3, 3, 4], [(3, 4), (3, 5)]),
    ],
)
def test_successive_rows_are_read_at_once(rows, spans):
    assert spans_of(np.array(rows, np.int64)) == spans


class Stored(StoredReference):
    """States and a head that nobody stored."""

    vocabulary, extra_sums, dtype = 9, None, torch.bfloat16

    def __init__(self):
        self.all = torch.arange(12.0).view(6, 2).bfloat16()

    def head(self, device, *span) -> Any:
        return span

    def states(self, spans) -> torch.Tensor:
        return torch.cat([self.all[slice(*span)] for span in spans])


@pytest.mark.parametrize(
    ("dtype", "float32", "rounded"),
    [
        (torch.bfloat16, False, True),
        (torch.float16, False, False),
        (torch.bfloat16, True, False),
    ],
)
def test_stored_states_go_through_their_head_as_the_model_would(
    dtype, float32, rounded, monkeypatch
):
    """Logits are rounded where the model's are and the base computed in the same dtype."""
    made: list[Any] = []

    class Head:
        def __init__(self, *arguments, float32):
            made.append((*arguments, float32))

        def logits(self, states):
            return states.float() @ torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]])

    monkeypatch.setattr(bases, "OtherHead", Head)
    base = open_base(Stored(), Share(4, 7, 5, dtype, CPU, float32=float32))
    assert made == [((4, 7), 5, torch.bfloat16, CPU, not rounded)]
    logits = base(np.array([5, 1]))
    logits.load(5, 7)
    tile = logits(slice(0, 2))
    assert tile.tolist() == [[11.0, 20.0], [3.0, 4.0]]
    # The caller's to destroy.
    tile.zero_()
    assert logits(slice(1, 2)).tolist() == [[3.0, 4.0]]


def test_a_rank_without_entries_loads_nothing():
    base = open_base(cast(Any, Stored()), Share(7, 7, 5, torch.bfloat16, CPU, float32=False))
    with pytest.raises(AssertionError, match="no entries"):
        base(np.array([0]))


def test_on_a_cpu_nothing_is_copied():
    values = torch.zeros(3)
    assert to_device(values, CPU) is values
