"""Runs of one plan in each group of its text: what `--group-by` named."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from scoremode.results.folders.finished import FinishedRun

__all__ = ["by_group", "other_groups"]

# A group's own, which are the same in all runs.
_OF_GROUP = ("group", "n", "share")


def by_group(
    runs: Sequence[FinishedRun], labels: Sequence[str], by: Literal["kld", "ppl"]
) -> list[dict[str, Any]]:
    """Each group with its metrics of every run that has groups, in their order; plain JSON.

    The group that is worst for one of them stands first: of largest KLD, or of largest PPL, as the runs
    are ranked. Runs of other groups than the first that has any are left out.
    """
    found: dict[str, dict[str, Any]] = {}
    whose = _groups(runs)
    for run, label in zip(runs, labels, strict=True):
        own = run.get("breakdown.label")
        if own is None or whose is None or run.get("plan.labels") != whose:
            continue
        for group in own:
            of = {name: group[name] for name in _OF_GROUP}
            metrics = {k: v for k, v in group.items() if k not in of}
            found.setdefault(group["group"], of | {"runs": []})["runs"].append(
                {"model": label} | metrics
            )
    return sorted(found.values(), key=lambda group: -_worst(group, by))


def other_groups(runs: Sequence[FinishedRun]) -> list[str]:
    """Notes on the runs that `by_group` leaves out."""
    if (whose := _groups(runs)) is None:
        return []
    return [
        f"{run.folder} has "
        + ("no groups" if run.get("plan.labels") is None else "other groups")
        + ": it is not in their tables"
        for run in runs
        if run.get("plan.labels") != whose
    ]


def _groups(runs: Sequence[FinishedRun]) -> Mapping[str, int] | None:
    return next((of for run in runs if (of := run.get("plan.labels")) is not None), None)


def _worst(group: Mapping[str, Any], by: str) -> float:
    return max((run[by]["value"] for run in group["runs"] if by in run), default=0.0)
