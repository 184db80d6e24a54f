"""The library's own errors about a model, told in one line.

A config is data from elsewhere and the library builds from it unchecked: an unknown activation is a
KeyError there, a wrong type whatever its first use raises. None of them is an error of ours, and each
says that this model can't be computed.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from scoremode.checkpoint.config import layers_of
from scoremode.checkpoint.files import Checkpoint
from scoremode.errors import CheckpointError, ScoremodeError, UnsupportedModel, words_of

__all__ = ["check_layers", "telling"]


@contextmanager
def telling(checkpoint: Checkpoint, what: str) -> Iterator[None]:
    """Raises UnsupportedModel for whatever the library raises within: the model can't be `what`."""
    try:
        yield
    except (ScoremodeError, torch.OutOfMemoryError):
        raise
    # Not hidden: it is the refusal's reason.
    except Exception as error:
        raise UnsupportedModel(
            f"{checkpoint.path}: can't be {what} from its config: {words_of(error)}"
        ) from error


def check_layers(checkpoint: Checkpoint) -> None:
    """Raises CheckpointError where the config has more layers than the files have tensors.

    Building the layers takes milliseconds each, and every one has a tensor at least.
    """
    layers, tensors = layers_of(checkpoint.config), len(checkpoint.tensors)
    if layers > tensors:
        raise CheckpointError(
            f"{checkpoint.config_file}: says {layers:,} layers, and all the files have "
            f"{tensors:,} tensor{'s' * (tensors != 1)}"
        )
