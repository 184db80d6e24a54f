"""Made run folders, written as a run writes them."""

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from support.comparisons import made, overlapping

from scoremode.results.folders.store import SCORES, RunFolder, read_columns
from scoremode.results.record.checks import protocol_sha256, windows_sha256
from scoremode.results.record.definition import SCHEMA, SCHEMA_VERSION
from scoremode.results.record.sections import sections, versions
from scoremode.results.scores import Scores

CONTEXT = 64
BASE_FILES = {"config.json": "c0", "model.safetensors": "b0"}
REFERENCE = {
    "sha256": "1f" * 32,
    "source": "models/base",
    "kind": "stored",
    "checkpoint": {"source": "models/base", "fingerprint": "f0", "files": BASE_FILES},
}
ENGINE = {
    "engine": "torch",
    "vocabulary": 12,
    "arithmetic": "weights",
    "dtype": "bfloat16",
    "attention": "sdpa",
    "kv_cache_dtype": None,
    "device": {"type": "cpu", "name": "made", "threads": 2},
    "activations": {"declared": None, "ran": None},
    "unused_tensors": [],
    "tokens": 1000,
    "seconds": {"load": 1.0, "layers": 2.0},
    "peak_bytes": 2**30,
}

# Some windows of a block, and enough blocks.
PLACES = overlapping(12_000, CONTEXT, 48)
NOISE = {"W8A16": 0.02, "W4A16": 0.3, "W2A16": 1.0}


def scores_of(noise: float, seed: int = 0) -> Scores:
    """Scores of PLACES, the worse the larger `noise`."""
    return made(**PLACES, noise=noise, seed=seed, full=False)


def labels_of(scores: Scores) -> dict[str, np.ndarray]:
    """A group for each target: long stretches of prose and code, and a little math."""
    names = np.array(["prose", "code", "prose", "math"], object)
    group = scores.index // 1_000 % 3
    return {"label": names[np.where(scores.index % 97 == 0, 3, group)]}


def write_run(
    folder: Path,
    scores: Scores,
    *,
    model: str | None = None,
    files: dict[str, str] | None = None,
    extras: dict[str, np.ndarray] | None = None,
    changes: dict[str, Any] | None = None,
) -> Path:
    """A finished run of `scores` in `folder`.

    `model`: its source, by default the folder's name. `changes`: dotted path → value, in the record.
    """
    run = RunFolder.create(folder)
    digest = run.merge([scores], lambda _: extras or {})
    read, beside = read_columns(folder / SCORES)
    source = model or f"models/{folder.name}"
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "status": "done",
        "command": ["scoremode", "kld"],
        "versions": versions(),
        "checkpoint": {
            "source": source,
            "fingerprint": "f1",
            "parameters": 1000,
            "bytes": 2**29,
            "gib": 0.5,
            "bits_per_weight": {"body": 4.125, "file": 4.25},
            "formats": {"W4A16-g128": {}},
            "kv_cache_declared": None,
            "files": files or {"config.json": "c1", "model.safetensors": source},
        },
        "corpus": {
            "name": "made.txt",
            "rows": None,
            "row_limit": None,
            "text": {"rule": "rows", "sha256": "7e" * 32, "bytes": 5000},
        },
        "tokenizer": {"source": source, "sha256": "70" * 32, "size": 12, "bos": None},
        "protocol": {
            "name": "disjoint+context-length=64",
            "text": "rows",
            "context_length": CONTEXT,
            "stride": CONTEXT,
            "scored": "all",
            "vocabulary": "config",
        },
        "plan": {
            "tokens": int(scores.index.max()) + 1,
            "windows": int(scores.window.max()) + 1,
            "scored": len(scores),
            "unique": len(np.unique(scores.index)),
            "stream_bos": None,
            "window_bos": None,
            "tokens_sha256": "a0" * 32,
        },
        "schedule": {"pass_windows": 100, "batch_windows": 10},
        "identity": {"engine": {"device": ENGINE["device"]}},
        "engine": copy.deepcopy(ENGINE),
        "seconds": {"score": 3.0, "write": 0.5, "total": 4.0},
        "scores": {"name": SCORES, "rows": len(scores), "sha256": digest},
    }
    if "label" in beside:
        record["corpus"]["group_by"] = "domain"
        record["plan"]["labels"] = dict(Counter(beside["label"].tolist()))
    if scores.against is not None:
        record["reference"] = copy.deepcopy(REFERENCE)
    record |= sections(read, CONTEXT, beside, record=record)
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        place = record
        for key in parents:
            place = place[key]
        place[last] = value
    # As a run of such a protocol has them, unless they are what is changed.
    if isinstance(protocol := record["protocol"], dict):
        protocol.setdefault("sha256", protocol_sha256(protocol))
        record["plan"].setdefault("sha256", windows_sha256(record, scores))
    run.write_record(record)
    run.drop_parts()
    run.close()
    return folder


def with_record(folder: Path, record: dict) -> Path:
    """The run in `folder` with another record, unsealed."""
    (folder / "record.json").write_text(json.dumps(record))
    return folder
