"""The record of a run that is merged of its shards."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scoremode.results.folders.store import SCORES, Columns
from scoremode.results.record.sections import now, sections
from scoremode.results.record.shape import COUNT, NUMBER, Each, misfit
from scoremode.results.scores import Scores
from scoremode.results.shards.opened import OpenedShard
from scoremode.results.statistics.effects import CONFIDENT
from scoremode.results.statistics.worst import worst_tokens

__all__ = ["merged_record"]

# Of a shard alone, or made anew.
_OWN = ("shard", "worst", "scores", "sha256")
# What a base's engine has to say for its work to be added up; its section is otherwise free.
_WORK = {
    "tokens": COUNT,
    "seconds": Each(NUMBER),
    "peak_bytes": COUNT,
    "device": {"name": str},
    "devices?": [dict],
}


def merged_record(
    shards: Sequence[OpenedShard],
    scores: Scores,
    extras: Columns,
    sha256: str,
    command: Sequence[str],
) -> dict[str, Any]:
    """The record of the run that all `shards`, in their order, are of.

    - `scores`, `extras`: of the merged file, whose bytes have that `sha256`.
    - `command`: what the user typed to merge them.

    Raises InvalidMeasurement where a mean is not finite.
    """
    records = [each.record for each in shards]
    first = records[0]
    identity = {name: value for name, value in first["identity"].items() if name != "shard"}
    written: dict[str, Any] = {"name": SCORES, "rows": len(scores), "sha256": sha256}
    if first["scores"].get("token_text"):
        written["token_text"] = True
    record = {
        **{name: value for name, value in first.items() if name not in _OWN},
        **sections(
            scores,
            first["protocol"]["context_length"],
            extras,
            confident=identity.get("confident", CONFIDENT),
        ),
        "status": "done",
        "finished": now(),
        "command": list(command),
        "identity": identity,
        "engine": _engine([record["engine"] for record in records]),
        "seconds": _sums([record["seconds"] for record in records]),
        "scores": written,
        "merged": {"shards": [_entry(each) for each in shards]},
    }
    if begun := [each["created"] for each in records if "created" in each]:
        record["created"] = min(begun)
    if scores.against is not None:
        record["worst"] = _worst(records, scores)
    if "reference" in first:
        record["reference"] = _reference([record["reference"] for record in records])
    return record


def _entry(each: OpenedShard) -> dict[str, Any]:
    """What the merged record says of one shard."""
    record, section = each.record, each.record["shard"]
    engine = record["engine"]
    return {
        "number": section["number"],
        "run": each.folder.resolve().name,
        "record_sha256": record["sha256"],
        "scores_sha256": record["scores"]["sha256"],
        **{name: section[name] for name in ("passes", "of_passes", "windows", "targets")},
        "device": engine["device"],
        "processes": max(1, len(engine.get("devices") or ())),
        "command": record.get("command", []),
        **{name: record[name] for name in ("created", "finished") if name in record},
        "seconds": record["seconds"],
    }


def _engine(engines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first shard's with the work of all; `devices` tells of each process apart."""
    first = engines[0]
    found = {
        **first,
        "tokens": sum(engine["tokens"] for engine in engines),
        "seconds": _sums([engine["seconds"] for engine in engines]),
        "peak_bytes": max(engine["peak_bytes"] for engine in engines),
    }
    if len(engines) > 1 or "devices" in first:
        names = ("tokens", "seconds", "peak_bytes")
        found["devices"] = [
            {"shard": number, **process}
            for number, engine in enumerate(engines, 1)
            for process in engine.get("devices")
            or [{"name": engine["device"]["name"]} | {name: engine[name] for name in names}]
        ]
    return found


def _sums(seconds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for each in seconds:
        for name, value in each.items():
            total[name] += value  # pyright: ignore[reportArgumentType]
    return {name: round(float(value), 3) for name, value in total.items()}


def _worst(records: Sequence[Mapping[str, Any]], scores: Scores) -> list[dict[str, Any]]:
    """The worst targets of all, each with the text that its shard has of it: one of the ten worst of
    all is one of the ten worst of its shard."""
    assert scores.against is not None
    told = {
        (entry["window"], entry["position"]): entry
        for record in records
        for entry in record.get("worst", ())
    }
    return [
        told.get((entry["window"], entry["position"]), {}) | entry
        for entry in worst_tokens(scores, scores.against)
    ]


def _reference(sections: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = dict(sections[0])
    for name in ("replay", "replay_at_load"):
        if name in found:
            found[name] = _replay([section[name] for section in sections if section.get(name)])
    engines = [section.get("engine") or {} for section in sections]
    # Of one that ran beside the model in each shard.
    if found.get("kind") == "model" and not any(misfit(engine, _WORK) for engine in engines):
        found["engine"] = _engine(engines)
    return found


def _replay(found: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """How far all rows that were replayed are from what is stored; None where none was."""
    if not found:
        return None
    rows = np.array([each["rows"] for each in found], np.float64)
    rms = np.array([each["rms"] for each in found], np.float64)
    squares = float((rows * rms**2).sum())
    return {
        "rows": int(rows.sum()),
        "bitwise": all(each["bitwise"] for each in found),
        "rms": float(np.sqrt(squares / max(1.0, rows.sum()))),
        "worst": max(each["worst"] for each in found),
    }
