"""Definition of a sweep's manifest, `sweep.json`: every field, its type and its meaning.

It says what was asked for and what became of it. Numbers are in the runs' records alone: nothing that
the manifest says is shown as a measurement, and a run that it names is verified as any other.
"""

from typing import Literal, TypedDict

from scoremode.results.folders.paths import MANIFEST

__all__ = ["MANIFEST", "SCHEMA", "SCHEMA_VERSION", "Entry", "Manifest", "Pair", "Status"]

SCHEMA = "scoremode.sweep"
SCHEMA_VERSION = 1

Status = Literal["waiting", "running", "done", "failed", "left out"]


class Pair(TypedDict):
    """A text under a protocol.

    - `corpus`: the text's name; `protocol`: the protocol's; `protocol_sha256`: of all its rules.
    - `reference`: the base's folder, relative to the manifest's where it lies in it, or its file of
      logits; None until it is there.
    """

    corpus: str
    protocol: str
    protocol_sha256: str
    reference: str | None


class Entry(TypedDict):
    """A model under one pair.

    - `model`: as the user named it, of a pattern one that it stands for; `pair`: an index of `pairs`.
    - `status`: `waiting`, `running`, `done`, or `failed`, which the next call tries again; `left out`
      of a finished run that is of another pair.
    - `folder`: the run's, relative to the manifest's where it lies in it; None before it is done.
    - `error`: the line that says why it failed, else None.
    - `asked`: sha256 of model, plan, base and options, by which the next call finds the run; None
      before it is done, and where a finished run was given as the model.
    """

    model: str
    pair: int
    status: Status
    folder: str | None
    error: str | None
    asked: str | None


class Manifest(TypedDict):
    """A sweep, as its last call wanted it.

    - `created`: when the first call began; `updated`: when this was written; both ISO 8601, UTC.
    - `command`: the last call's.
    - `base`: as the user named it; `revision`: of a base on the hub, or None.
    - `models`: as the user named them, patterns included.
    - `entries`: every model under every pair, in the order in which they run.
    - `sha256`: of all the rest.
    """

    schema: str
    schema_version: int
    created: str
    updated: str
    command: list[str]
    base: str
    revision: str | None
    models: list[str]
    pairs: list[Pair]
    entries: list[Entry]
    sha256: str
