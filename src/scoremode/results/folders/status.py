"""The state of runs, finished or not, from their folders alone, which are only read.

A running run's record is replaced as a whole and knows the sha256 of every part, so what is read here
is true of some moment, even while the run goes on. Where two looks at one folder contradict each other
(a run that ended in between), it is looked at again.
"""

import shlex
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from scoremode.errors import InvalidMeasurement, RunFolderError
from scoremode.lib.files import is_held
from scoremode.results.folders.finished import check_numbers, read_verified
from scoremode.results.folders.store import LOCK, PARTS, RECORD, part_name, read_columns
from scoremode.results.record.checks import checked_record
from scoremode.results.record.section import value_at
from scoremode.results.scores import check_values
from scoremode.results.statistics.blocks import CONVERSATION
from scoremode.results.statistics.windows import WindowSums, estimates_of, window_sums

__all__ = ["StatusReader", "found_runs", "pace"]

_METRICS = ("ppl", "ppl_ratio", "kld")
# A run that ends while it is read is read again; one that contradicts itself so often is damaged.
_ATTEMPTS = 3
# A pause between two parts so many times the usual one, and longer than so many seconds, is none of
# the run's: it was killed and went on later.
_TIMES, _SECONDS = 10, 60


@dataclass
class StatusReader:
    """Reads the state of runs again and again, a part of theirs only once.

    - `now`: seconds since the epoch, which time left is told from.
    """

    now: Any = time.time
    _sums: dict[tuple[str, str], WindowSums] = field(default_factory=dict)
    _done: dict[str, dict[str, Any]] = field(default_factory=dict)

    def status(self, folder: Path) -> dict[str, Any]:
        """Plain JSON: the run's `folder`, its `state` (`running`, `killed`, `done`, `shard` for one
        that is done, `invalid`, `damaged`), what it is of, how far it is, its estimates, how to go on
        with it."""
        problem = ""
        for _ in range(_ATTEMPTS):
            try:
                record = checked_record(folder)
                found = self._status(folder, record)
                # What was read is of one moment only if no other record came meanwhile.
                if found is not None and (found["state"] != "killed" or _is_still(folder, record)):
                    return found
            except (RunFolderError, OSError) as error:
                problem = str(error)
                time.sleep(0.05)
        return {"folder": str(folder), "state": "damaged", "problem": problem}

    def _status(self, folder: Path, record: dict[str, Any]) -> dict[str, Any] | None:
        found = {"folder": str(folder), "state": record["status"]} | _of(record)
        if record["status"] == "invalid":
            return found | {"problem": record["reason"]}
        if record["status"] == "done":
            return found | self._metrics(folder, record)
        if record["status"] == "shard":
            begin, end = record["shard"]["windows"]
            return found | {"windows": end - begin, "of": end - begin}
        state = "running" if is_held(folder / LOCK) else "killed"
        return found | {"state": state} | self._progress(folder, record, state)

    def _metrics(self, folder: Path, record: dict[str, Any]) -> dict[str, Any]:
        """The numbers of a run that is done, made again from its scores."""
        key = f"{folder} {record.get('sha256')}"
        if key not in self._done:
            made = check_numbers(folder, record, *read_verified(folder, record))["metrics"]
            self._done[key] = {
                name: {k: made[name][k] for k in ("value", "ci95")}
                for name in _METRICS
                if name in made
            }
        windows = record["plan"]["windows"]
        return {
            "windows": windows,
            "of": value_at(record, "plan.planned.windows", windows),
            "estimates": self._done[key],
        }

    def _progress(self, folder: Path, record: dict[str, Any], state: str) -> dict[str, Any]:
        """How far a run is that is not done."""
        parts, shard = record["parts"], record.get("shard")
        begin, end = shard["windows"] if shard else (0, record["plan"]["windows"])
        of = end - begin
        sums, times = [], []
        for number, part in enumerate(parts):
            path = folder / PARTS / part_name(number)
            sums.append(self._part(path, part["sha256"], record["plan"]["scored"]))
            times.append(path.stat().st_mtime)
        windows = [len(each) for each in sums]
        done = sum(windows)
        rate = pace(times, windows, _epoch(record.get("created")))
        left = None
        if rate is not None and state == "running":
            left = round(max(0.0, (of - done) / rate - (self.now() - times[-1])), 1)
        return {
            "windows": done,
            "of": of,
            "windows_per_second": None if rate is None else round(rate, 4),
            "seconds_left": left,
            # A part of the text says nothing of all of it.
            "estimates": {} if shard else _estimates(record, sums),
            "resume": _resuming(record) if state == "killed" else None,
        }

    def _part(self, path: Path, sha256: str, rows: int) -> WindowSums:
        key = (str(path), sha256)
        if key not in self._sums:
            scores, extras = read_columns(path, sha256, rows)
            try:
                check_values(scores)
            except InvalidMeasurement as error:
                raise RunFolderError(f"{path}: {error}") from None
            self._sums[key] = window_sums(scores, conversation=extras.get(CONVERSATION))
        return self._sums[key]


def found_runs(path: Path, *, is_sweep: bool = False) -> list[Path]:
    """The run folders that `path` is or holds, at most two levels down, whatever their state, by their
    names. Raises RunFolderError where there is none; a sweep that has just begun may have none."""
    if (path / RECORD).is_file():
        return [path]
    if not path.is_dir():
        raise RunFolderError(f"{path}: {'is no folder' if path.exists() else 'is not there'}")
    found = [file.parent for depth in ("*", "*/*") for file in path.glob(f"{depth}/{RECORD}")]
    runs = sorted(f for f in found if f.parent not in found)
    if not runs and not is_sweep:
        raise RunFolderError(f"{path}: is no run, and holds none")
    return runs


def pace(times: Sequence[float], windows: Sequence[int], begin: float | None) -> float | None:
    """Windows a second of the last stretch without a pause, from when each part was written.

    `begin`: when the run began, None where that isn't known. None where there is nothing to tell from.
    """
    if not times:
        return None
    steps = [b - a for a, b in pairwise(times)]
    first = 0
    if steps:
        most = max(_SECONDS, _TIMES * statistics.median(steps))
        first = max((i + 1 for i, step in enumerate(steps) if step > most), default=0)
    seconds, done = times[-1] - times[first], sum(windows[first + 1 :])
    # The first parts wait for the files' hashes, and are then written at once.
    if first == 0 and begin is not None and seconds < 0.5 * (times[-1] - begin):
        seconds, done = times[-1] - begin, sum(windows)
    return done / seconds if done and seconds > 0 else None


def _of(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is of."""
    shard = record.get("shard")
    return {
        "model": record["checkpoint"]["source"],
        "reference": value_at(record, "reference.source"),
        "protocol": record["protocol"]["name"],
        "text": record["corpus"]["name"],
        "stop_when": record["protocol"].get("stop_when"),
        "keeps": "keep" in record.get("identity", {}),
        **({} if shard is None else {"shard": f"{shard['number']}/{shard['of']}"}),
    }


def _estimates(record: Mapping[str, Any], sums: Sequence[WindowSums]) -> dict[str, Any]:
    """The metrics of the windows done; none where windows weigh otherwise than by their targets, which
    the parts don't tell."""
    protocol = record["protocol"]
    if not sums or protocol.get("average", "token") != "token":
        return {}
    plan, drawn_from = record["plan"], None
    if protocol.get("seed") is not None:
        drawn_from = plan.get("conversations", plan["windows"])
    found = estimates_of(WindowSums.joined(sums), protocol["context_length"], drawn_from)
    return {
        name: {
            "value": found[name].value,
            "ci95": None if (ends := found[name].interval) is None else list(ends),
        }
        for name in _METRICS
        if name in found
    }


def _is_still(folder: Path, record: Mapping[str, Any]) -> bool:
    return checked_record(folder) == record


def _resuming(record: Mapping[str, Any]) -> str | None:
    """The command that goes on with a killed run, as its record has it."""
    command = record.get("command")
    if not command:
        return None
    return shlex.join([*command, *(() if "--resume" in command else ("--resume",))])


def _epoch(created: str | None) -> float | None:
    try:
        return None if created is None else datetime.fromisoformat(created).timestamp()
    except ValueError:
        return None
