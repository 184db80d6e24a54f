"""Commands: what the first rank says is what the others do."""

import json

import pytest

from scoremode.engines.base import Schedule
from scoremode.engines.torch.ranks.messages import (
    End,
    LookFor,
    ScorePasses,
    ScoreVariant,
    command_of,
    json_of,
)


@pytest.mark.parametrize(
    "command",
    [
        ScorePasses(Schedule(12, 3), 2, keeps=True, windows=24),
        ScorePasses(Schedule(1, 1), 0, keeps=False, windows=1),
        ScoreVariant(1),
        LookFor("/shared/ref/.seen", "0f"),
        End(),
    ],
)
def test_a_command_is_the_same_where_it_arrives(command):
    assert command_of(json.loads(json.dumps(json_of(command)))) == command
