"""Commands: what the first rank tells the others to do, as it travels in JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from scoremode.engines.base import Schedule

__all__ = ["Command", "End", "LookFor", "ScorePasses", "ScoreVariant", "command_of", "json_of"]


@dataclass(frozen=True)
class ScorePasses:
    """The command to score each pass of a plan's first `windows` windows from `first_pass` on.

    `keeps`: whether the first rank says of each pass which file its final states go to.
    """

    schedule: Schedule
    first_pass: int
    keeps: bool
    windows: int


@dataclass(frozen=True)
class ScoreVariant:
    """The command to make the engine of the noise floor's variant `index`, for the command after it."""

    index: int


@dataclass(frozen=True)
class LookFor:
    """The command to say whether there is a file at `path` with this `content`."""

    path: str
    content: str


@dataclass(frozen=True)
class End:
    """The last command."""


Command = ScorePasses | ScoreVariant | LookFor | End


def json_of(command: Command) -> dict[str, Any]:
    return {"do": type(command).__name__} | asdict(command)


def command_of(said: Mapping[str, Any]) -> Command:
    """The command that `json_of` made this of."""
    match said["do"]:
        case "ScorePasses":
            schedule = Schedule(**said["schedule"])
            return ScorePasses(schedule, said["first_pass"], said["keeps"], said["windows"])
        case "ScoreVariant":
            return ScoreVariant(said["index"])
        case "LookFor":
            return LookFor(said["path"], said["content"])
    return End()
