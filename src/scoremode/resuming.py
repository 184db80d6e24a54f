"""Which folder a run writes to, and what two runs must share to be one."""

import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scoremode.errors import RunFolderError
from scoremode.results.store import find_runs, read_record

__all__ = [
    "Files",
    "check_files",
    "files_section",
    "find_earlier",
    "first_difference",
    "new_folder",
]

# Name → sha256 of what is read, by a call that may take long; None where the identity holds hashes.
Files = Callable[[], dict[str, str] | None]


def find_earlier(
    output: Path,
    identity: Mapping[str, Any],
    reads: Mapping[str, Files],
    *,
    resume: bool,
) -> tuple[Path, dict[str, Any]] | None:
    """The run to go on with, or that is finished already: same identity, same weights.

    - `output`: a run's own folder, or one that holds several.
    - `reads`: section of the record → the files that it lists.

    Raises RunFolderError where `output` is some other run's folder.
    """
    if (output / "record.json").exists():
        record = read_record(output)
        if not resume:
            raise RunFolderError(f"{output}: holds a run already: add --resume to go on with it")
        if differing := first_difference("", record.get("identity"), dict(identity)):
            field, theirs, ours = differing
            raise RunFolderError(
                f"{output}: is another run: its {field} is {_short(theirs)}, this one's {_short(ours)}"
            )
        if record["status"] == "invalid":
            raise RunFolderError(f"{output}: that run ended as invalid: {record.get('reason')}")
        for section, files in _hashed(reads).items():
            check_files(output, record, section, files)
        return output, record
    if not resume or not output.is_dir():
        return None
    same = [(f, r) for f, r in find_runs(output) if r.get("identity") == identity]
    if not same:
        return None
    # The identity is of headers only: two quantizations of one model share it.
    files = _hashed(reads)
    for status in ("running", "done"):
        for folder, record in same:
            if record["status"] == status and all(
                files_section(record, section).get("files") in (None, now)
                for section, now in files.items()
            ):
                return folder, record
    return None


def check_files(
    folder: Path, record: Mapping[str, Any], section: str, files: dict[str, str]
) -> None:
    """Raises RunFolderError unless `files`, name → sha256, are those that the record's section has."""
    stored = files_section(record, section).get("files") or files
    for name in sorted(stored.keys() | files.keys()):
        then, now = stored.get(name), files.get(name)
        if then != now:
            raise RunFolderError(
                f"{folder}: {name} has changed since this run began "
                f"(sha256 {str(then)[:12]}… then, {str(now)[:12]}… now)"
            )


def new_folder(output: Path, model: str, identity: Mapping[str, Any]) -> Path:
    """One that does not exist, under `output`: time, model, and the identity's first digits."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    name = Path(model).resolve().name if Path(model).is_dir() else model
    safe = "".join(c if c.isalnum() or c in "-._" else "-" for c in name)
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    folder = output / f"{time}_{safe}_{digest}"
    number = 2
    while folder.exists():
        folder = output / f"{time}_{safe}_{digest}-{number}"
        number += 1
    return folder


def files_section(record: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Where a record lists the `files` of one of its sections, once they are known.

    A section `reference` does so under its `checkpoint`, where it has one.
    """
    part = record[section]
    return part.get("checkpoint") or part if section == "reference" else part


def _hashed(reads: Mapping[str, Files]) -> dict[str, dict[str, str]]:
    found = {section: files() for section, files in reads.items()}
    return {section: files for section, files in found.items() if files is not None}


def first_difference(name: str, theirs: Any, ours: Any) -> tuple[str, Any, Any] | None:
    """The innermost field of `name` that differs, and both values; None where nothing does."""
    if theirs == ours:
        return None
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            inside = f"{name} {key}".strip()
            if found := first_difference(inside, theirs.get(key), ours.get(key)):
                return found
    return name or "identity", theirs, ours


def _short(value: Any) -> str:
    return json.dumps(value, sort_keys=True)[:120]
