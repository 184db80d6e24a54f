"""The file of states that a worker fills. Needs no vLLM."""

import numpy as np
import pytest
import torch

from scoremode.engines.vllm.workers.comparison import StateFile
from scoremode.reference.states import create_states, read_states

GENERATOR = torch.Generator().manual_seed(0)


def test_states_go_to_the_rows_of_their_prompts(tmp_path):
    states = torch.randn(9, 4, generator=GENERATOR).bfloat16()
    path = tmp_path / "states"
    create_states(path, 9, 4, torch.bfloat16)
    file = StateFile(path, 9, 4, "bfloat16")
    file.write(np.array([5, 6, 0, 1]), states[[5, 6, 0, 1]])
    # A prompt that was preempted comes again, and counts once.
    file.write(np.array([5, 6]), states[[5, 6]])
    assert file.rows == 4
    file.write(np.array([2, 3, 4, 7]), states[[2, 3, 4, 7]])
    assert file.rows == 8
    file.write(np.array([8]), states[[8]])
    assert file.rows == 9 and torch.equal(read_states(path), states)


@pytest.mark.parametrize(
    "states", [torch.zeros(2, 4), torch.zeros(2, 5).bfloat16(), torch.zeros(3, 4).bfloat16()]
)
def test_states_of_another_kind_are_not_written(states, tmp_path):
    path = tmp_path / "states"
    create_states(path, 9, 4, torch.bfloat16)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="2 rows of"):
        StateFile(path, 9, 4, "bfloat16").write(np.array([1, 2]), states)
    assert path.read_bytes() == before
