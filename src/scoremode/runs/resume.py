"""The folder that a run writes to: a new one, or an earlier run's, whose passes are read again."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scoremode.engines.base import Schedule
from scoremode.errors import InvalidMeasurement, RunFolderError
from scoremode.lib.json import canonical, json_digest
from scoremode.results.folders.store import RECORD, RunFolder, find_runs
from scoremode.results.record.checks import (
    check_identity,
    check_record,
    check_seal,
    checked_record,
)
from scoremode.results.record.definition import Done, Invalid, Record, Running, ShardDone
from scoremode.results.record.section import first_difference
from scoremode.results.scores import Scores, check
from scoremode.runs.context import RunContext
from scoremode.runs.shards import shard_section, share_of
from scoremode.text.plan import Plan

# Of a model's label in a folder's name.
_MOST_BYTES = 150


def find_earlier(context: RunContext, identity: Mapping[str, Any]) -> tuple[Path, Record] | None:
    """The run to go on with, or that is finished already: same identity, same weights.

    The user is told of records beside it that can't be read. Raises RunFolderError where the request's
    output is some other run's folder, or the run is damaged.
    """
    output, resume = context.request.output, context.request.resume
    if os.path.lexists(output / RECORD):
        if not resume:
            raise RunFolderError(f"{output}: holds a run already: add --resume to go on with it")
        record = checked_record(output)
        if differing := first_difference("", record.document.get("identity"), dict(identity)):
            field, theirs, ours = differing
            raise RunFolderError(
                f"{output}: is another run: its {field} is {_short(theirs)}, this one's {_short(ours)}"
            )
        if isinstance(record, Invalid):
            raise RunFolderError(f"{output}: that run ended as invalid: {record.reason}")
        for section, files in _hashes(context).items():
            check_files(output, record.document, section, files)
        return output, record
    if not resume or not output.is_dir():
        return None
    same = [
        (folder, check_record(document, folder / RECORD))
        for folder, document in find_runs(output, context.notify)
        if document.get("identity") == identity
    ]
    if not same:
        return None
    for folder, record in same:
        check_seal(record, folder / RECORD)
    # The identity is of headers only: two quantizations of one model share it.
    files = _hashes(context)
    ours: dict[str, Any] = {"checkpoint": {"path": context.checkpoint.place}}
    if context.baseline is not None:
        ours["reference"] = context.baseline.section()
    for kind in (Running, Done, ShardDone):
        for folder, record in same:
            if isinstance(record, kind) and all(
                _is_of(
                    files_section(record.document, section),
                    now,
                    files_section(ours, section).get("path"),
                )
                for section, now in files.items()
            ):
                return folder, record
    return None


def _is_of(stored: Mapping[str, Any], files: dict[str, str], place: str | None) -> bool:
    """Tells whether a record's section is of those files; of a run that was killed before it knew
    their hashes, whether it is of that place."""
    return stored["files"] == files if "files" in stored else stored.get("path") == place


def check_files(
    folder: Path, document: Mapping[str, Any], section: str, files: dict[str, str]
) -> None:
    """Raises RunFolderError unless `files`, name → sha256, are those that the record's section has."""
    stored = files_section(document, section).get("files") or files
    for name in sorted(stored.keys() | files.keys()):
        then, now = stored.get(name), files.get(name)
        if then != now:
            raise RunFolderError(
                f"{folder}: {name} has changed since this run began "
                f"(sha256 {str(then)[:12]}… then, {str(now)[:12]}… now)"
            )


def go_on(path: Path, record: Record) -> tuple[RunFolder, dict[str, Any]]:
    """The folder of a running run, locked, without what is behind its last whole pass; its record.

    A pass that a kill interrupts is not in the record. One whose file somebody removed is to be scored
    again, with those after it. Raises RunFolderError, as for a part that the record doesn't know.
    """
    # It needs torch, which a plan alone does not.
    from scoremode.reference.writer import name_of

    folder = RunFolder.open(path)
    try:
        # Until it was locked, another process may have written.
        if checked_record(path).sha256 != record.sha256:
            raise RunFolderError(f"{path}: another process has just written this run")
        document = record.document
        parts = document["parts"]
        there = [
            os.path.lexists(folder.part_path(i))
            and ("states" not in part or os.path.lexists(path / name_of(i)))
            for i, part in enumerate(parts)
        ]
        whole = next((i for i, found in enumerate(there) if not found), len(parts))
        folder.keep_parts(len(parts), whole)
        document["parts"] = parts[:whole]
    except BaseException:
        folder.close()
        raise
    return folder, document


def relabeled(path: Path, record: Record, label: str | None) -> Record:
    """The record of the run in `path`, written anew if it has another label than this one, None for
    whichever it has: a run is found by what makes its scores, which a label is no part of. Raises
    RunFolderError."""
    if label is None or record.label == label:
        return record
    folder = RunFolder.open(path)
    try:
        if checked_record(path).sha256 != record.sha256:
            raise RunFolderError(f"{path}: another process has just written this run")
        folder.write_record({**record.document, "label": label})
        return checked_record(path)
    finally:
        folder.close()


def check_earlier(context: RunContext, folder: RunFolder, document: dict[str, Any]) -> None:
    """Reads the parts of a resumed run again, as if an engine had just made them.

    Raises RunFolderError, also for a record that is not of this text and plan.
    """
    check_identity(folder.path / RECORD, document)
    schedule, shard = Schedule(**document["schedule"]), context.request.shard
    made = context.planned.to_json(context.request.corpus)
    sections = {name: made[name] for name in ("protocol", "plan")}
    if shard is not None:
        sections["shard"] = shard_section(shard, schedule, context.plan)
    for name, ours in sections.items():
        theirs = document.get(name) or {}
        # Two names of one procedure are one.
        if differing := first_difference(name, {**theirs, "name": None}, {**ours, "name": None}):
            field, value, own = differing
            raise RunFolderError(
                f"{folder.path / RECORD}: was changed: its {field} is {value}, this run's {own}"
            )
    done, passes = len(document["parts"]), share_of(schedule, shard, context.plan).passes
    if done > len(passes):
        raise RunFolderError(
            f"{folder.path}: its record has {done} parts, and its plan {len(passes)} passes"
        )
    for number, windows in enumerate(passes[:done]):
        sha256 = document["parts"][number]["sha256"]
        scores = read_part(folder, sha256, context.plan, windows, number)
        if context.baseline is not None:
            begin = int(context.plan.offsets[windows.start])
            context.baseline.check(scores, begin, context.engine.identity())
    context.notify(f"resuming {folder.path} after {done} passes")


def read_part(folder: RunFolder, sha256: str, plan: Plan, windows: range, number: int) -> Scores:
    """A finished pass of `plan`, its bytes those that have this sha256, its scores those of `windows`.

    Raises RunFolderError, which says what to do.
    """
    try:
        rows = int(plan.offsets[windows.stop] - plan.offsets[windows.start])
        scores = folder.read_part(number, sha256, rows)
        check(scores, plan, windows)
    except (RunFolderError, InvalidMeasurement) as error:
        path = folder.part_path(number)
        named = "" if str(path) in str(error) else f"{path}: "
        raise RunFolderError(
            f"{named}{error}: remove it, and --resume scores its pass again, with those after it"
        ) from None
    return scores


def new_folder(output: Path, label: str, identity: Mapping[str, Any]) -> Path:
    """A folder that does not exist, under `output`: time, the model's label, and the identity's first
    digits."""
    digest = json_digest(identity)[:8]
    safe = "".join(c if c.isalnum() or c in "-._" else "-" for c in label)
    # A file system's names are of 255 bytes at most.
    safe = safe.encode()[:_MOST_BYTES].decode(errors="ignore")
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    folder = output / f"{time}_{safe}_{digest}"
    number = 2
    while folder.exists():
        folder = output / f"{time}_{safe}_{digest}-{number}"
        number += 1
    return folder


def files_section(document: Mapping[str, Any], section: str) -> dict[str, Any]:
    """The part of a record that lists the `files` of one of its sections, once they are known.

    A section `reference` does so under its `checkpoint`, where it has one.
    """
    part = document.get(section)
    if not isinstance(part, dict):
        raise RunFolderError(f"a run's record has no {section}")
    return part.get("checkpoint") or part if section == "reference" else part


def _hashes(context: RunContext) -> dict[str, dict[str, str]]:
    """Section of the record → sha256 of each file that it lists; none of a base whose identity has
    them. May take long."""
    found = {"checkpoint": context.checkpoint.hash_files()}
    base = None if context.baseline is None else context.baseline.settle()
    return found if base is None else found | {"reference": base}


def _short(value: Any) -> str:
    return canonical(value)[:120]
