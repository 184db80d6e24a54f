"""Attributions of a run made again from their columns."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.errors import RunFolderError
from scoremode.results.attribution.columns import column_of, metrics_of, read_attributed
from scoremode.results.audit.findings import Findings
from scoremode.results.folders.store import seal_of
from scoremode.results.record.differences import differences
from scoremode.untrusted_files import MOST_JSON, read_regular

__all__ = ["SCHEMA", "SCHEMA_VERSION", "audit_attributions", "read_attribution"]

SCHEMA, SCHEMA_VERSION = "scoremode/attribution", 1


def read_attribution(path: Path) -> dict[str, Any]:
    """The attribution in a file. Raises RunFolderError for what is none, or is not as it was
    written."""
    try:
        value = json.loads(read_regular(path, MOST_JSON))
    except OSError as error:
        raise RunFolderError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise RunFolderError(f"{path}: is no attribution of scoremode's")
    if value.get("schema_version") != SCHEMA_VERSION:
        raise RunFolderError(
            f"{path}: has schema version {value.get('schema_version')}, and {SCHEMA_VERSION} is read"
        )
    if value.get("sha256") != seal_of(value):
        raise RunFolderError(f"{path}: was changed after it was written: its sha256 is another")
    return value


def audit_attributions(folder: Path, record: Mapping[str, Any], findings: Findings) -> None:
    """Makes every attribution in a run's folder again, in nats, and holds it against its file."""
    for path in sorted(folder.glob("attribution-*.json")):
        part = path.stem
        try:
            value = read_attribution(path)
            columns = read_attributed(folder / value["columns"]["name"], value["columns"]["sha256"])
        except RunFolderError as error:
            findings.wrong(part, "files", str(error))
            continue
        findings.same(part, "run", value["run"], record.get("sha256"), "the record is")
        names = [unit["name"] for unit in value["units"]]
        directions = [d for d in ("alone", "without") if d in value["units"][0]]
        wanted = {"index", "kld", *(column_of(d, n) for n in names for d in directions)}
        if missing := sorted(wanted - columns.keys()):
            findings.wrong(part, "columns", f"there is no column {missing[0]}")
            continue
        summary, units = metrics_of(columns, names, value["block_tokens"])
        of = "its columns'"
        for name, made in summary.items():
            found = differences(name, value[name], made, of=of)
            findings.judge(part, name, (d.words for d in found))
        for said, made in zip(value["units"], units, strict=True):
            for name in made:
                found = differences(f"{said['name']}.{name}", said[name], made[name], of=of)
                findings.judge(part, f"{said['name']} {name}", (d.words for d in found))
