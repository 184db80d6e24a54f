"""Parts of a run and of what a command prints, without what differs from run to run."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from commands import Printed

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pyarrow")
# Fields of JSON that tell of the moment, the machine and its libraries.
VOLATILE = {"seconds", "peak_bytes", "created", "started", "finished", "versions", "directory",
            "device", "torch", "threads", "elapsed", "rate", "pid", "mtime", "modified",
            "timings", "fingerprints"}  # fmt: skip
# Sections of a record that are a part of their own, or say who made it, where and how.
PROVENANCE = {"schema", "schema_version", "command", "identity", "sha256", "scores"}
# Hashes of files with a time in them.
SEALS = {"sha256", "record_sha256", "record", "records", "seal", "run", "reference"}
SHA256 = re.compile(r"[0-9a-f]{64}")
# Rows of a run's table that tell of its speed.
SPEEDS = {"peak memory", "speed", "seconds"}
# A file that safetensors writes in another order each time where it has metadata; its identity stays.
FILES = {"model.safetensors"}
RULES = (
    # Lines of progress, which come every few seconds.
    (
        re.compile(
            r"^scoremode: [^\n]*(\([^()\n]*\d (s|min|h)\)|\d% of [^\n]*| left[^\n]*)\n",
            re.MULTILINE,
        ),
        "",
    ),
    # A run's folder: its time, its model and its hash.
    (re.compile(r"\b\d{8}T\d{6}_(\S+?)_[0-9a-f]{8}\b"), r"TIME_\1_ID"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? (s|ms|min|h)\b"), "DURATION"),
    (re.compile(r"\brecords? [0-9a-f]{12}(, [0-9a-f]{12})*"), "records SEALS"),
    (re.compile(r"(\bseal\b\W+held\W+)[0-9a-f]{12}…"), r"\1SEAL"),
    (re.compile(r"(<dt>sha256 of record</dt>\s*)<dd>[0-9a-f]{64}</dd>"), r"\1<dd>SEAL</dd>"),
    # How fast a run was, and on how much memory: lines of its table, and of a page.
    (re.compile(r"<dd>(start \d|\d[\d.,]* (in all: |tokens/s|GiB))[^<]*</dd>"), "<dd>…</dd>"),
    (re.compile(r"^(peak memory|speed|seconds) +\d.*$", re.MULTILINE), r"\1 …"),
)

Parts = dict[str, Any]


def parts_of_run(folder: Path, exports: Sequence[Path] = ()) -> dict[str, Parts]:
    """Part → field → value of a run, or of a share of one; of Parquet files column → hash."""
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    sections = {key: value for key, value in record.items() if key not in PROVENANCE}
    identity = record["identity"] | {key: record[key]["sha256"] for key in ("protocol", "plan")}
    scores = folder / "scores.parquet"
    return {
        "scores": columns_of(scores) if scores.is_file() else {},
        "metrics": steady(sections.pop("metrics", {})),
        "record": steady(sections),
        "identity": steady(identity),
        "files": files_of(folder, exports),
    }


def columns_of(path: Path) -> Parts:
    """Column → hash of its dtype and bytes; their order is a field as well."""
    table = pq.read_table(path)
    columns = {name: table[name].to_numpy() for name in table.column_names}
    hashes = {
        name: hash_of(f"{c.dtype} {len(c)} ".encode() + bytes_of(c)) for name, c in columns.items()
    }
    return hashes | {"(order)": " ".join(columns)}


def bytes_of(column: Any) -> bytes:
    return repr(column.tolist()).encode() if column.dtype == object else column.tobytes()


def files_of(folder: Path, exports: Sequence[Path]) -> Parts:
    """Other files of a run, and what it exported: of JSON the value, of others hashes."""
    others = {"record.json", "scores.parquet"}
    files = [f for f in sorted(folder.rglob("*")) if f.is_file() and f.name not in others]
    return {str(f.relative_to(folder)): file_of(f) for f in files} | {
        f.name: file_of(f) for f in exports
    }


def file_of(path: Path) -> Any:
    if path.suffix == ".json":
        return steady(json.loads(path.read_text(encoding="utf-8")))
    if path.suffix == ".parquet":
        return columns_of(path)
    return hash_of(path.read_bytes())


def parts_of_output(printed: Printed, files: Mapping[str, str]) -> Parts:
    """Exit code, the two streams and the files that were written, as texts."""
    texts = {"stdout": printed.out, "stderr": printed.err} | files
    return {"exit code": printed.code} | {k: steady_text(v) for k, v in texts.items()}


def steady_text(text: str) -> str:
    """A text without paths, times and versions; JSON is indented."""
    try:
        value = json.loads(text)
    except ValueError:
        return steady_string(text)
    return json.dumps(steady(value), indent=1, ensure_ascii=False)


def steady(value: Any) -> Any:
    """A value of JSON without what differs from run to run: `null` stands for it."""
    if isinstance(value, Mapping):
        if isinstance(label := value.get("label"), str) and label in SPEEDS:
            return {"label": label}
        if value.get("name") == "seal" and "words" in value:
            return {**value, "words": "SEAL"}
        return {key: steady_field(key, field) for key, field in value.items()}
    if isinstance(value, list):
        return [steady(item) for item in value]
    return steady_string(value) if isinstance(value, str) else value


def steady_field(key: str, value: Any) -> Any:
    is_seal = key in SEALS and isinstance(value, str) and SHA256.fullmatch(value) is not None
    return None if key in VOLATILE or key in FILES or is_seal else steady(value)


def steady_string(text: str) -> str:
    for path, name in places():
        text = text.replace(path, name)
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    return text


@cache
def places() -> list[tuple[str, str]]:
    """What stands for the folders of this work, of the data and for versions, longest first."""
    import scoremode

    named = {str(Path.cwd()): "WORK", str(Path(scoremode.__file__).parent): "PACKAGE"}
    if data := os.environ.get("SCOREMODE_DATA"):
        named[str(Path(data).resolve())] = "DATA"
    for name in LIBRARIES:
        named[metadata.version(name)] = f"VERSION-OF-{name}"
    return sorted(named.items(), key=lambda item: -len(item[0]))


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def hash_of_value(value: Any) -> str:
    """Of canonical JSON: keys sorted, every float with all its digits."""
    return hash_of(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())
