import pytest

from scoremode.errors import CheckpointError


@pytest.fixture
def refusal(resolved):
    """The one line that a file's own `resolved` ends in, an error of this very class."""

    def refuse(*args, error=CheckpointError, **others) -> str:
        with pytest.raises(error) as caught:
            resolved(*args, **others)
        assert type(caught.value) is error and "\n" not in str(caught.value)
        return str(caught.value)

    return refuse
