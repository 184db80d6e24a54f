"""A finished run, read back and held against its own record."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import RunFolderError
from scoremode.results.record import SCHEMA, SCHEMA_VERSION
from scoremode.results.scores import Scores
from scoremode.results.store import read_extras, read_record, read_scores

__all__ = ["Run", "open_run"]

_SECTIONS = ("checkpoint", "corpus", "tokenizer", "protocol", "plan", "engine", "metrics")
# Sums in another order, on another machine, come this close.
_SAME = 1e-9


@dataclass(frozen=True, eq=False)
class Run:
    """A run that is done: its record, and of its Scores what a comparison needs.

    - `nll` float64 [N]; `kld` float64 [N], None without a base.
    - `index` int32 [N]: the targets' places in the token stream.
    - `weights` float64 [N]: what each evaluation counts, None for one each.
    - `targets`: sha256 of windows, positions, places and ids of all targets, and of their weights.
    """

    folder: Path
    record: dict[str, Any]
    nll: NDArray[np.float64]
    kld: NDArray[np.float64] | None
    index: NDArray[np.int32]
    weights: NDArray[np.float64] | None
    targets: str

    def at(self, path: str) -> Any:
        """What stands in the record under `path`, its keys joined by dots. Raises RunFolderError."""
        value = _look(self.record, path)
        if value is _MISSING:
            raise RunFolderError(f"{self.folder}: its record has no {path}")
        return value

    def metric(self, name: str) -> dict[str, Any] | None:
        """The metric of that name, None where there is none. Raises RunFolderError."""
        found = self.get(f"metrics.{name}")
        if found is not None and not _is_metric(found):
            raise RunFolderError(f"{self.folder}: its record's {name} is no metric: {found!r}")
        return found

    def get(self, path: str) -> Any:
        """The same, None where there is nothing."""
        value = _look(self.record, path)
        return None if value is _MISSING else value


def open_run(folder: Path) -> Run:
    """The finished run in `folder`. Raises RunFolderError where it is none.

    The Scores must be as many as the plan has, and have the record's means.
    """
    record = read_record(folder)
    schema = record.get("schema"), record.get("schema_version")
    if schema != (SCHEMA, SCHEMA_VERSION):
        raise RunFolderError(
            f"{folder}: its record is {schema[0]!r} version {schema[1]!r}, "
            f"not {SCHEMA!r} version {SCHEMA_VERSION}"
        )
    if record.get("status") != "done":
        reason = f" ({record['reason']})" if record.get("reason") else ""
        raise RunFolderError(
            f"{folder}: is not done: its status is {record.get('status')!r}{reason}"
        )
    scores, weights = read_scores(folder), read_extras(folder).get("weight")
    kld = None if scores.against is None else scores.against.kld
    targets = _digest(scores, weights)
    run = Run(folder, record, scores.nll, kld, scores.index, weights, targets)
    _check(run)
    return run


def _check(run: Run) -> None:
    for section in _SECTIONS:
        if not isinstance(run.at(section), Mapping):
            raise RunFolderError(f"{run.folder}: its record's {section} is {run.at(section)!r}")
    if run.metric("ppl") is None:
        raise RunFolderError(f"{run.folder}: its record has no metrics.ppl")
    n, planned = len(run.nll), run.at("plan.scored")
    if n != planned or not n:
        raise RunFolderError(f"{run.folder}: {n} scores, and its record has {planned}")
    columns = {"nll": run.nll}
    if run.kld is not None:
        columns["kld"] = run.kld
    elif run.get("metrics.kld") is not None:
        raise RunFolderError(f"{run.folder}: its record has a KLD, and its scores have none")
    for name, column in columns.items():
        mean = float(np.average(column, weights=run.weights))
        stored = run.at(f"metrics.{name}.value")
        if not isinstance(stored, float | int) or not math.isclose(
            mean, stored, rel_tol=_SAME, abs_tol=_SAME**2
        ):
            raise RunFolderError(
                f"{run.folder}: its scores have a mean {name} of {mean}, its record {stored}"
            )


def _is_metric(found: Any) -> bool:
    if not isinstance(found, dict) or not found.keys() >= {"value", "ci95", "n", "note"}:
        return False
    ends = found["ci95"]
    numbers = [found["value"], found["n"], *(ends if isinstance(ends, list) else ())]
    return len(numbers) == (2 if ends is None else 4) and all(
        isinstance(number, float | int) for number in numbers
    )


def _digest(scores: Scores, weights: NDArray[np.float64] | None) -> str:
    digest = sha256()
    for column in (scores.window, scores.position, scores.index, scores.target):
        digest.update(column.astype("<i4").tobytes())
    if weights is not None:
        digest.update(weights.astype("<f8").tobytes())
    return digest.hexdigest()


_MISSING = object()


def _look(record: Mapping[str, Any], path: str) -> Any:
    value: Any = record
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return _MISSING
        value = value[key]
    return value
