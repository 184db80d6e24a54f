"""The library's errors about a model: one line each, and none of ours hidden."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.torch.model.architecture import check_layers, library_errors
from scoremode.errors import CheckpointError, UnsupportedModel


def checkpoint(layers: int = 2, tensors: int = 2) -> Checkpoint:
    """What is asked of one: its folder, its config, and how many tensors it has."""
    config = {"num_hidden_layers": layers}
    made = SimpleNamespace(
        path=Path("m"),
        config_file=Path("m/config.json"),
        config=config,
        tensors=dict.fromkeys(range(tensors)),
    )
    return cast("Checkpoint", made)


def test_whatever_the_library_raises_is_one_line():
    with pytest.raises(UnsupportedModel) as error, library_errors(checkpoint(), "built"):
        raise KeyError("swishy\nactivation")
    assert str(error.value).startswith("m: can't be built from its config: KeyError")
    assert "\n" not in str(error.value) and "swishy" in str(error.value)


@pytest.mark.parametrize(
    "own", [CheckpointError("ours"), torch.OutOfMemoryError("full"), KeyboardInterrupt()]
)
def test_what_says_more_already_stays_itself(own):
    with pytest.raises(type(own)) as error, library_errors(checkpoint(), "computed"):
        raise own
    assert error.value is own


@pytest.mark.parametrize(
    ("tensors", "words"), [(2, "2 tensors"), (1, "1 tensor"), (0, "0 tensors")]
)
def test_more_layers_than_tensors_are_refused_before_they_are_built(tensors, words):
    check_layers(checkpoint(tensors, tensors))
    with pytest.raises(
        CheckpointError, match=f"says 1,234 layers, and all the files have {words}$"
    ):
        check_layers(checkpoint(1234, tensors))
