"""A sweep's request and its outcome."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scoremode.runs.request import Request, Result
from scoremode.runs.sweep.definition import Entry, Manifest

__all__ = ["Ended", "Outcome", "SweepRequest"]


@dataclass(frozen=True)
class SweepRequest:
    """Models to be measured against one base.

    - `models`: as the user named them: models, patterns, finished runs' folders.
    - `pairs`: a request for each text and protocol, whose model is put in; the `reference` of each is
      the base, a kept reference or a file of logits.
    - `output`: the folder that all goes to.
    """

    models: tuple[str, ...]
    pairs: tuple[Request, ...]
    output: Path
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """One entry that has ended: with its run, with the error that it names, or left out.

    - `under`: its text and protocol, where there are several.
    """

    entry: Entry
    under: str
    number: int
    count: int
    result: Result | None


@dataclass(frozen=True)
class Outcome:
    """What became of a sweep: its manifest, and the runs of its entries, None where there is none."""

    folder: Path
    manifest: Manifest
    results: list[Result | None]

    @property
    def failed(self) -> int:
        return sum(entry["status"] == "failed" for entry in self.manifest["entries"])


Tell = Callable[[Ended], None]
