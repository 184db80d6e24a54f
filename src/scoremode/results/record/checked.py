"""Records as they may be read: of a schema we know, of the right types, and as they were written.

A record's fields are used in many places, so they are checked in one: here, once, when it is read,
against `results.record.definition`. Since version 2 a record holds its own sha256, and those of the
files beside it; older ones are read as well, and known to be without.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.errors import RunFolderError
from scoremode.results.folders.store import RECORD, read_record, seal_of
from scoremode.results.record.definition import SCHEMA, SCHEMA_VERSION, STATUSES, record_shape
from scoremode.results.record.shape import Choice, misfit

__all__ = ["check_done", "check_record", "check_seal", "checked_record", "has_hashes", "undone"]

# The last version without hashes of parts, scores and itself.
_UNHASHED = 1


def checked_record(folder: Path, *, sealed: bool = True) -> dict[str, Any]:
    """The record in a run's folder. Raises RunFolderError, which names the file and the field.

    - `sealed`: whether its own sha256 is compared, too; if not, that is left to `check_seal`.
    """
    record = read_record(folder)
    check_record(record, folder / RECORD)
    if sealed:
        check_seal(record, folder / RECORD)
    return record


def check_record(record: Mapping[str, Any], file: Path) -> None:
    """Raises RunFolderError unless `record`, read from `file`, is one that we know how to read."""
    schema, version = record.get("schema"), record.get("schema_version")
    number = 0 if isinstance(version, bool) or not isinstance(version, int) else version
    if schema != SCHEMA or not _UNHASHED <= number <= SCHEMA_VERSION:
        newer = " (a newer scoremode's)" if number > SCHEMA_VERSION else ""
        raise RunFolderError(
            f"{file}: its record is {schema!r} version {version!r}{newer}, not {SCHEMA!r} version "
            f"{_UNHASHED} to {SCHEMA_VERSION}"
        )
    status = record.get("status")
    # What else it must have depends on it.
    found = misfit(status, Choice(*STATUSES), "status")
    if found := found or misfit(record, record_shape(str(status), number)):
        raise RunFolderError(f"{file}: {found}")
    if not has_hashes(record) and "sha256" in record:
        raise RunFolderError(
            f"{file}: was changed: its schema_version is {version!r}, and it has hashes"
        )


def check_seal(record: Mapping[str, Any], file: Path) -> None:
    """Raises RunFolderError unless a record that `check_record` let pass is as it was written."""
    if has_hashes(record) and (found := seal_of(dict(record))) != record["sha256"]:
        raise RunFolderError(
            f"{file}: was changed after it was written: its contents have the sha256 {found[:12]}…, "
            f"and its sha256 says {record['sha256'][:12]}…"
        )


def check_done(folder: Path, record: Mapping[str, Any]) -> None:
    """Raises RunFolderError unless the record in `folder` is of a whole run that is done."""
    if (words := undone(record)) is not None:
        raise RunFolderError(f"{folder}: {words}")


def undone(record: Mapping[str, Any]) -> str | None:
    """Why a record is none of a whole run that is done, in words; None where it is."""
    status, shard = record.get("status"), record.get("shard")
    if status == "done":
        return None
    if status == "shard" and isinstance(shard, Mapping):
        number, of = shard.get("number"), shard.get("of")
        return (
            f"is shard {number}/{of} of a run, and no whole one: scoremode merge makes the run of all "
            f"{of}"
        )
    reason = f" ({record['reason']})" if record.get("reason") else ""
    return f"is not done: its status is {status!r}{reason}"


def has_hashes(record: Mapping[str, Any]) -> bool:
    """Tells whether a checked record holds its own sha256 and those of its files."""
    return record["schema_version"] > _UNHASHED
