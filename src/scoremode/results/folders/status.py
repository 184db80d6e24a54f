"""The state of runs, finished or not, from their folders alone, which are only read.

A running run's record is replaced as a whole and knows the sha256 of every part, so what is read here
is true of some moment, even while the run goes on. Where two looks at one folder contradict each other
(a run that ended in between), it is looked at again.
"""

import shlex
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType

from scoremode.errors import InvalidMeasurement, RunFolderError
from scoremode.lib.files import is_held
from scoremode.results.folders.finished import check_numbers, read_verified
from scoremode.results.folders.store import LOCK, PARTS, RECORD, part_name, read_columns
from scoremode.results.labels import label_of
from scoremode.results.record.checks import checked_record
from scoremode.results.record.definition import Done, Invalid, Record, Running, ShardDone
from scoremode.results.scores import check_values
from scoremode.results.statistics.blocks import CONVERSATION
from scoremode.results.statistics.windows import WindowSums, estimates_of, window_sums

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
                now = record if found["state"] != "killed" else checked_record(folder)
                if now.sha256 == record.sha256:
                    return found
            except (RunFolderError, OSError) as error:
                problem = str(error)
                time.sleep(0.05)
        return {"folder": str(folder), "state": "damaged", "problem": problem}

    def _status(self, folder: Path, record: Record) -> dict[str, Any]:
        found = {"folder": str(folder), "state": record.status} | _of(record)
        if isinstance(record, Invalid):
            return found | {"problem": record.reason}
        if isinstance(record, Done):
            return found | self._metrics(folder, record)
        if isinstance(record, ShardDone):
            begin, end = record.shard.windows
            return found | {"windows": end - begin, "of": end - begin}
        assert isinstance(record, Running)
        state = "running" if is_held(folder / LOCK) else "killed"
        return found | {"state": state} | self._progress(folder, record, state)

    def _metrics(self, folder: Path, record: Done) -> dict[str, Any]:
        """The numbers of a run that is done, made again from its scores."""
        key = f"{folder} {record.sha256}"
        if key not in self._done:
            made = check_numbers(folder, record, *read_verified(folder, record))["metrics"]
            self._done[key] = {
                name: {k: made[name][k] for k in ("value", "ci95")}
                for name in _METRICS
                if name in made
            }
        return {
            "windows": record.plan.windows,
            "of": (record.plan.planned or record.plan).windows,
            "estimates": self._done[key],
        }

    def _progress(self, folder: Path, record: Running, state: str) -> dict[str, Any]:
        """How far a run is that is not done."""
        shard = record.shard
        begin, end = shard.windows if shard else (0, record.plan.windows)
        of = end - begin
        sums, times = [], []
        for number, part in enumerate(record.parts):
            path = folder / PARTS / part_name(number)
            sums.append(self._part(path, part.sha256, record.plan.scored))
            times.append(path.stat().st_mtime)
        windows = [len(each) for each in sums]
        done = sum(windows)
        rate = pace(times, windows, _epoch(record.created))
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
            "resume": _resuming(record.command) if state == "killed" else None,
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


def _of(record: Record) -> dict[str, Any]:
    """What a run is of."""
    return {
        "label": label_of(record),
        "model": record.checkpoint.source,
        "reference": record.reference.source if record.reference else None,
        "protocol": record.protocol.name,
        "text": record.corpus.name,
        "stop_when": record.protocol.stop_when or None,
        "keeps": "keep" in record.document.get("identity", {}),
        **({"shard": f"{record.shard.number}/{record.shard.of}"} if record.shard else {}),
    }


def _estimates(record: Running, sums: Sequence[WindowSums]) -> dict[str, Any]:
    """The metrics of the windows done; none where windows weigh otherwise than by their targets, which
    the parts don't tell."""
    protocol, drawn_from = record.protocol, None
    if not sums or (protocol.average or "token") != "token":
        return {}
    if protocol.seed is not UNSET:
        drawn_from = record.plan.conversations or record.plan.windows
    found = estimates_of(WindowSums.joined(sums), protocol.context_length, drawn_from)
    return {
        name: {
            "value": found[name].value,
            "ci95": None if (ends := found[name].interval) is None else list(ends),
        }
        for name in _METRICS
        if name in found
    }


def _resuming(command: list[str] | UnsetType) -> str | None:
    """The command that goes on with a killed run."""
    if not command:
        return None
    return shlex.join([*command, *(() if "--resume" in command else ("--resume",))])


def _epoch(created: str | UnsetType) -> float | None:
    try:
        return datetime.fromisoformat(created).timestamp() if created else None
    except ValueError:
        return None
