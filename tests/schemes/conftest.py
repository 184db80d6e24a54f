import pytest
from support.schemes import write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError
from scoremode.schemes.resolve import resolve


@pytest.fixture
def resolved(tmp_path):
    """The Schemes of a checkpoint of these tensors and this `quantization_config`; others are fields
    of its config."""
    return lambda tensors, config=None, **others: resolve(
        open_checkpoint(write_checkpoint(tmp_path, tensors, config, **others))
    )


@pytest.fixture
def refusal(resolved):
    """The one line that a file's own `resolved` ends in, an error of this very class."""

    def refuse(*args, error=CheckpointError, **others) -> str:
        with pytest.raises(error) as caught:
            resolved(*args, **others)
        assert type(caught.value) is error and "\n" not in str(caught.value)
        return str(caught.value)

    return refuse
