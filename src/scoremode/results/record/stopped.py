"""The record's section of a rule to stop by, made of the Scores, and held against its plan."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scoremode.errors import ProtocolError, RunFolderError
from scoremode.results.folders.store import RECORD
from scoremode.results.scores import Scores
from scoremode.results.statistics.places import CONVERSATION
from scoremode.results.statistics.stopping import stopping_section
from scoremode.results.statistics.windows import window_sums

__all__ = ["check_stopped", "stopping"]


def stopping(
    scores: Scores,
    rule: str | None,
    seed: int | None,
    planned: Mapping[str, Any],
    extras: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """The section `stopping` under its name, of Scores whose windows were drawn from those that a
    record has as `planned`; nothing without a rule. Raises ProtocolError for what is no rule."""
    if rule is None or seed is None:
        return {}
    sums = window_sums(scores, extras.get("weight"), extras.get(CONVERSATION))
    windows, conversations = planned["windows"], planned.get("conversations")
    return {"stopping": stopping_section(sums, windows, rule, seed, conversations)}


def check_stopped(
    folder: Path, record: Mapping[str, Any], scores: Scores, extras: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """The section of a finished run's checked record, made of its Scores.

    Raises RunFolderError where it ended at another window than its rule ends it at.
    """
    protocol, plan, file = record["protocol"], record["plan"], folder / RECORD
    rule, seed, planned = protocol.get("stop_when"), protocol.get("seed"), plan.get("planned")
    if (rule is None) != (planned is None) or (rule is None) != (seed is None):
        raise RunFolderError(
            f"{file}: its protocol's stop_when is {rule!r}, its seed {seed}, and its plan "
            f"{'has' if planned else 'lacks'} the windows that were planned"
        )
    if rule is None or planned is None:
        return {}
    try:
        made = stopping(scores, rule, seed, planned, extras)
    except ProtocolError as error:
        raise RunFolderError(f"{file}: {error}") from None
    found, windows = made["stopping"], plan["windows"]
    if found["after"] != windows or not found["met"]:
        where = f"after {found['after']}" if found["met"] else "after more"
        raise RunFolderError(
            f"{file}: has {windows} of {planned['windows']} windows, and by its scores {rule} ends the "
            f"run {where}"
        )
    return made
