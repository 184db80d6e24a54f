"""A run's record by itself: each section's shape, its seal, and what it says twice."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.errors import RunFolderError
from scoremode.results.audit.findings import Findings
from scoremode.results.folders.store import RECORD, read_record, seal_of
from scoremode.results.record.checked import check_done, check_record
from scoremode.results.record.definition import SCHEMA, SCHEMA_VERSION, SECTIONS, STATUSES
from scoremode.results.record.described import identity_pairs
from scoremode.results.record.differences import differences
from scoremode.results.record.shape import misfit

__all__ = ["audited_record"]

_PART = "record"


def audited_record(folder: Path, findings: Findings) -> dict[str, Any] | None:
    """The record of the finished run in `folder`, as far as it may be read on: sections of another
    shape than they must have are left out. None where nothing of it can be read.

    Raises RunFolderError where there is no finished run.
    """
    file = folder / RECORD
    if not file.is_file():
        raise RunFolderError(f"{folder}: no readable record: there is no {RECORD}")
    try:
        record = read_record(folder)
    except RunFolderError as error:
        findings.wrong(_PART, "JSON", str(error))
        return None
    _audit_seal(record, findings)
    sound = _sound(record, file, findings)
    if sound is None:
        return None
    if sound.get("status") in STATUSES:
        check_done(folder, sound)
    _audit_identity(sound, findings)
    return sound


def _sound(record: Mapping[str, Any], file: Path, findings: Findings) -> dict[str, Any] | None:
    """The sections of `record` that have the shape which they must have."""
    version = record.get("schema_version")
    number = version if type(version) is int else 0
    if record.get("schema") != SCHEMA or not 1 <= number <= SCHEMA_VERSION:
        try:
            check_record(record, file)
        except RunFolderError as error:
            findings.wrong(_PART, "schema", str(error))
        return None
    sound, broken = dict(record), []
    status = record.get("status")
    for name, section in SECTIONS.items():
        if number < section.since:
            if name == "sha256" and name in record:
                broken.append(f"its schema_version is {version}, and it has hashes")
        elif name in record:
            if found := misfit(record[name], section.shape, name):
                broken.append(found)
                del sound[name]
        elif status in section.needed:
            broken.append(f"has no {name}")
    for words in broken:
        findings.wrong(_PART, "schema", words)
    if not broken:
        findings.held(_PART, "schema", f"{SCHEMA} version {version}, {len(record)} sections")
    return sound


def _audit_seal(record: dict[str, Any], findings: Findings) -> None:
    said = record.get("sha256")
    if said is None and record.get("schema_version") == 1:
        words = "was written before records had hashes: nothing vouches for it"
        findings.unchecked(_PART, "seal", words)
        return
    findings.same(_PART, "seal", said, seal_of(record), "its contents have")


def _audit_identity(record: Mapping[str, Any], findings: Findings) -> None:
    for (inside, one), (outside, two) in identity_pairs(record):
        findings.same(_PART, f"identity.{inside}", one, two, f"its {outside} is")
    engine, said = record.get("engine", {}), record.get("identity", {}).get("engine", {})
    twice = {name: value for name, value in said.items() if name in engine}
    if twice:
        found = differences("identity.engine", twice, engine, ("device",), of="its engine's fields")
        findings.judge(_PART, "identity.engine", (d.words for d in found), f"{len(twice)} fields")
