"""The face of a run's base, whatever its kind."""

from collections.abc import Mapping
from typing import Any, Protocol

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.base import Options, Progress, Schedule
from scoremode.lib.json import json_digest
from scoremode.reference.base import Reference
from scoremode.results.scores import Scores
from scoremode.text.plan import Plan

__all__ = ["Baseline", "base_sha256"]


class Baseline(Protocol):
    """A base of one run.

    - `vocabulary`: entries of its softmax.
    - `runs`: how many models go through every pass because of it: 0, or 1 beside the measured one.
    - `checkpoint`: its own where it is read in this run, else None.
    """

    @property
    def vocabulary(self) -> int: ...

    @property
    def runs(self) -> int: ...

    @property
    def checkpoint(self) -> Checkpoint | None: ...

    def identity(self) -> dict[str, Any]:
        """Returns what two runs must share to be one, and what is known before anything runs."""
        ...

    def beside(self, options: Options) -> Options:
        """Gives `options` for an engine that may share a GPU with it; they bound its memory for both.

        To be called before that engine is made: what it has to bring to the device begins to go there.
        Raises EngineError, UsageError.
        """
        ...

    def prove(self) -> None:
        """Makes sure, before anything else runs, that it can be compared with. Raises
        ReferenceUnusable."""
        ...

    def reference(self, plan: Plan, schedule: Schedule, progress: Progress | None) -> Reference:
        """The reference that an engine is given."""
        ...

    def section(self) -> dict[str, Any]:
        """The record's section `reference`, as far as it is known before a pass is scored."""
        ...

    def settle(self) -> dict[str, str] | None:
        """Returns when all that it reads is known to be what it was: its files, name → sha256, or None
        where `identity` holds their hashes. Raises ReferenceUnusable, CheckpointError."""
        ...

    def check(self, scores: Scores, begin: int, engine: Mapping[str, Any]) -> None:
        """Compares the base's part of a pass, from row `begin` of the plan, with what is known of it.

        `engine`: what scored it. Raises ReferenceUnusable.
        """
        ...

    def finish(self) -> dict[str, Any]:
        """Returns what the section gains at the end."""
        ...

    def close(self) -> None:
        """Ends what it has started to compute with; afterwards nothing can be compared with it."""
        ...


# What another run may have otherwise and still be compared with the same base: its machine, and how its
# windows are grouped. Scores move by rounding with both.
_GROUPING = ("batch_windows", "device")


def base_sha256(files: Mapping[str, str], engine: Mapping[str, Any]) -> str:
    """The sha256 of what two runs must share to be compared with the same base: its files, and its
    arithmetic."""
    arithmetic = {name: value for name, value in engine.items() if name not in _GROUPING}
    arithmetic["device"] = {k: engine["device"][k] for k in ("type", "name")}
    return json_digest([files, arithmetic])
