"""What made a run, of its record: command, versions, hashes, arithmetic, device, seconds."""

from collections.abc import Mapping
from typing import Any

from scoremode.report.page.definition import Provenance
from scoremode.report.table import measured_rows, ran_rows
from scoremode.results.record.shape import value_at

__all__ = ["provenance"]

_HASHES = {
    "record": "sha256",
    "scores.parquet": "scores.sha256",
    "checkpoint": "checkpoint.fingerprint",
    "tokenizer": "tokenizer.sha256",
    "text": "corpus.text.sha256",
    "token ids": "plan.tokens_sha256",
    "plan": "plan.sha256",
    "protocol": "protocol.sha256",
    "reference": "reference.sha256",
    "reference's states": "reference.states_sha256",
}
_FILES = 12


def provenance(record: Mapping[str, Any]) -> Provenance:
    """What a finished run's record says of how its numbers came about."""
    files = sorted((record["checkpoint"].get("files") or {}).items())
    hashes = {name: value_at(record, path) for name, path in _HASHES.items()}
    facts = [*measured_rows(record), *ran_rows(record)]
    return {
        "command": record.get("command"),
        "created": record.get("created"),
        "finished": record.get("finished"),
        "versions": dict(record.get("versions") or {}),
        "hashes": {name: value for name, value in hashes.items() if value is not None},
        "files": dict(files[:_FILES]),
        "more_files": len(files[_FILES:]),
        "seconds": dict(record["seconds"]),
        "facts": [{"label": label, "value": value} for label, value in facts],
    }
