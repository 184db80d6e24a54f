"""Records as they may be read: of a schema we know, of the right types, and as they were written.

What a record says is used in many places, so it is checked in one: here, once, when it is read. Since
version 2 a record holds its own sha256, and those of the files beside it; older ones are read as well,
and known to be without.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.errors import RunFolderError
from scoremode.results.folders.store import RECORD, read_record, seal_of
from scoremode.results.record.sections import SCHEMA, SCHEMA_VERSION
from scoremode.results.record.shape import COUNT, NUMBER, SHA256, Each, Maybe, Range, misfit

__all__ = ["check_record", "check_seal", "checked_record", "has_hashes"]

_TEXT = Maybe(str)
_METRIC = {"value": NUMBER, "ci95": Maybe([NUMBER]), "n": COUNT, "note": _TEXT}
_ENGINE = {
    "engine": str,
    "vocabulary": COUNT,
    "arithmetic": str,
    "dtype": str,
    "attention": str,
    "device": {"type": str, "name": str, "threads": Maybe(COUNT)},
    "activations?": Maybe({"declared": object, "ran": object}),
    "products?": [{"native": bool, "product": str, "linears": COUNT, "format": str, "inputs": str}],
    "devices?": [dict],
    "head_dtype?": str,
    "kv_cache_dtype?": _TEXT,
    "vllm?": str,
    "linear?": dict,
}
# What the tables need of an engine that has run.
_RAN = _ENGINE | {
    "seconds": Each(NUMBER),
    "tokens": COUNT,
    "peak_bytes": COUNT,
    "unused_tensors": [str],
}
_CHECKPOINT = {
    "source": str,
    "path?": str,
    "fingerprint": str,
    "files?": Each(str),
    "gib?": Maybe(NUMBER),
    "bits_per_weight?": {"body": Maybe(NUMBER), "file": Maybe(NUMBER)},
    "not_decoded?": str,
}
_REFERENCE = {
    "kind?": str,
    "source": str,
    "sha256?": str,
    "checkpoint?": Maybe(_CHECKPOINT),
    "files?": Each(str),
}
_KEPT = {
    "states": {
        "dtype": str,
        "width": Range(int, 1),
        "rows": Range(int, 1),
        "files": [{"name": str, "rows": Range(int, 1), "sha256": SHA256}],
    },
    "head": {
        "vocabulary": Range(int, 1),
        "scale": NUMBER,
        "softcap": Maybe(NUMBER),
        "dtype": str,
        "width": Range(int, 1),
        "sha256": {"weight": SHA256, "bias?": SHA256},
        "file": _TEXT,
        "checkpoint": Maybe({"source": str, "path": str, "weight": str, "bias": _TEXT}),
    },
    "tokens?": {"name": str, "sha256": SHA256},
    "sha256": SHA256,
}
_FLOOR = {"words": str, "kld": _METRIC, "resolves": bool}
_FRAME = {
    "schema": str,
    "status": str,
    "reason?": str,
    "versions?": Each(str),
    "identity?": {"engine": {"device": {"type": str, "name": str}}},
    "checkpoint": _CHECKPOINT | {"formats": dict, "kv_cache_declared": object},
    "corpus": {
        "name": str,
        "rows": Maybe(COUNT),
        "row_limit": Maybe(COUNT),
        "text": {"rule": str, "sha256": str, "bytes": COUNT},
    },
    "tokenizer": {"source": str, "sha256": str, "size": COUNT},
    "protocol": {
        "name": str,
        "context_length": Range(int, 2, 2**31 - 1),
        "stride": Maybe(Range(int, 1)),
        "scored": str,
        "vocabulary": str,
    },
    "plan": {
        "tokens": COUNT,
        "windows": Range(int, 1),
        "scored": Range(int, 1),
        "unique": Range(int, 1),
        "stream_bos": Maybe(COUNT),
        "window_bos": Maybe(COUNT),
        "tokens_sha256": str,
        "sha256": str,
    },
    "schedule?": {"pass_windows": Range(int, 1), "batch_windows": Range(int, 1)},
    "reference?": _REFERENCE,
    "kept?": _KEPT,
}
_RUNNING = _FRAME | {
    "schedule": {"pass_windows": Range(int, 1), "batch_windows": Range(int, 1)},
    "identity": dict,
    "parts": [{"sha256": SHA256, "states?": SHA256}],
}
_DONE = _FRAME | {
    "checkpoint": _CHECKPOINT
    | {
        "formats": dict,
        "kv_cache_declared": object,
        "bits_per_weight": {"body": Maybe(NUMBER), "file": Maybe(NUMBER)},
    },
    "engine": _RAN,
    "seconds": {"write": NUMBER, "total": NUMBER},
    "scores": {"name": str, "rows": Range(int, 1), "sha256": SHA256},
    # Their numbers are held against the Scores.
    "metrics": {"ppl": _METRIC, "nll": _METRIC},
    "noise_floor?": Maybe(_FLOOR),
    "worst?": [{"context?": str, "target_text?": str, "base_top1_text?": str, "top1_text?": str}],
}
_SHAPES = {"running": _RUNNING, "done": _DONE, "invalid": _FRAME | {"reason": str}}
# The first version had no hashes of parts, scores, and itself.
_UNHASHED = 1
_SINCE = ("parts", "scores")


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
    if not isinstance(status, str) or status not in _SHAPES:
        raise RunFolderError(f"{file}: its status is {status!r}, not one of {', '.join(_SHAPES)}")
    shape = dict(_SHAPES[status])
    hashed = has_hashes(record)
    if not hashed:
        for section in _SINCE:
            shape.pop(section, None)
    if found := misfit(record, shape if not hashed else shape | {"sha256": SHA256}):
        raise RunFolderError(f"{file}: {found}")
    if not hashed and "sha256" in record:
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


def has_hashes(record: Mapping[str, Any]) -> bool:
    """Whether a checked record holds its own sha256 and those of its files."""
    return record["schema_version"] > _UNHASHED
