"""Records with one field edited as somebody might who can make every hash anew."""

import copy
import json
import pathlib
from collections.abc import Iterator
from typing import Any

from scoremode.reference.writer import reference_sha256
from scoremode.results.audit.findings import class_of
from scoremode.results.folders.store import RECORD, seal_of
from scoremode.results.record.checks import protocol_sha256, windows_sha256
from scoremode.results.record.definition import SECTIONS
from scoremode.results.record.section import misfit, value_at
from scoremode.results.scores import Scores
from scoremode.runs.baselines import base_sha256

Path = tuple[str | int, ...]

# What a record says twice: an edit of one is one of the other, too.
_TWICE = {
    "identity.engine": "engine",
    "identity.versions": "versions",
    "identity.checkpoint": "checkpoint.fingerprint",
    "identity.reference.engine": "reference.engine",
    "identity.reference.sha256": "reference.states_sha256",
    "identity.conversations.sha256": "corpus.text.sha256",
    "identity.token_text": "scores.token_text",
}
# Hashes that are made anew, so that an edit of them alone is none.
_MADE_ANEW = ("sha256", "protocol.sha256", "plan.sha256", "identity.plan", "kept.sha256")
# Values that a program would believe, before any others.
_PLAUSIBLE = {
    "dtype": ("bfloat16", "float16", "float32"),
    "arithmetic": ("weights+activations", "weights"),
    "attention": ("eager", "sdpa"),
    "engine": ("vllm",),
    "kv_cache_dtype": ("int8-token",),
    "date": ("2024-07-26",),
}


def name_of(path: Path) -> str:
    """The field's name, places in lists left out."""
    return ".".join(key for key in path if isinstance(key, str))


def fields_of(record: dict[str, Any]) -> dict[str, Path]:
    """Field → where it stands first, but for hashes that are made anew."""
    found: dict[str, Path] = {}
    for path in leaves(record):
        if ".".join(map(str, path)) not in _MADE_ANEW:
            found.setdefault(name_of(path), path)
    return found


def is_open(field: str, record: dict[str, Any]) -> bool:
    """Whether an audit without a second run holds nothing against the field."""
    is_stored = record.get("reference", {}).get("kind") == "stored"
    return class_of(field, is_stored=is_stored) in ("not checked", "second run")


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """The places of all values within `value`, of a list's members the first one's."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1])
    for key, inner in items:
        if isinstance(inner, dict | list) and inner:
            yield from leaves(inner, (*path, key))
        else:
            yield (*path, key)


def edited(record: dict[str, Any], path: Path, scores: Scores) -> dict[str, Any] | None:
    """A copy of the record with another value in one place, and with all hashes that follow from
    it; None for a field that takes no other value, or that is such a hash itself."""
    before = _at(record, path)
    for value in _others(path[-1], before):
        other = copy.deepcopy(record)
        _put(other, path, value)
        _follow(other, path)
        if value == before or any(n in SECTIONS and misfit(other[n], SECTIONS[n]) for n in other):
            continue
        _reseal(other, scores)
        return None if other == record else other
    return None


def _others(key: str | int, value: Any) -> Iterator[Any]:
    yield from _PLAUSIBLE.get(str(key), ())
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value * 1.01 + 0.001, max(value - 1, 0), value / 2)
    elif isinstance(value, str) and len(value) >= 32 and set(value) <= set("0123456789abcdef"):
        yield "ab" * (len(value) // 2)
    elif isinstance(value, str):
        digits = [i for i, c in enumerate(value) if c.isdigit()]
        for i in digits[-1:]:
            yield value[:i] + str((int(value[i]) + 1) % 10) + value[i + 1 :]
        yield from (f"{value}x", "value", "upper", "model", "stored")
    elif value is None:
        yield from ("other", 1, 0.5, {}, ["other"], True)
    elif not value:
        yield from ({"other": 1}, {"other": {}}) if value == {} else (["other"], [1], [{}])


def _follow(record: dict[str, Any], path: Path) -> None:
    name, value = ".".join(map(str, path)), _at(record, path)
    pairs = [*_TWICE.items(), *((b, a) for a, b in _TWICE.items())]
    for one, other in pairs:
        if name == one or name.startswith(f"{one}."):
            twin = (*other.split("."), *path[one.count(".") + 1 :])
            if isinstance(value_at(record, ".".join(map(str, twin[:-1]))), dict):
                _put(record, twin, value)
    for one, other in (("identity.noise_floor", "noise_floor.change"),):
        if name == one and value_at(record, "noise_floor") is not None:
            _put(record, tuple(other.split(".")), value)
    template = value_at(record, "corpus.conversations.template")
    said = value_at(record, "identity.conversations")
    if template and said and name.startswith("corpus."):
        said["template"] = [template[key] for key in ("sha256", "arguments", "date")]


def _reseal(record: dict[str, Any], scores: Scores) -> None:
    record["protocol"]["sha256"] = protocol_sha256(record["protocol"])
    plan, base = record["plan"], record.get("reference") or {}
    plan["sha256"] = record["identity"]["plan"] = windows_sha256(record, scores)
    if (kept := record.get("kept")) is not None:
        kept["sha256"] = reference_sha256(plan["sha256"], kept["states"], kept["head"])
    if base.get("kind") == "model":
        engine = record["identity"]["reference"]["engine"]
        base["sha256"] = base_sha256(base["checkpoint"]["files"], engine)
    place = pathlib.Path(str(base.get("path") or base.get("source"))) / RECORD
    if base.get("kind") == "stored" and place.is_file():
        kept = json.loads(place.read_text())
        here = {name: base["engine"][name] for name in ("device", "torch")}
        engine = kept["identity"]["engine"] | here
        base["sha256"] = base_sha256(kept["checkpoint"]["files"], engine)
    record["sha256"] = seal_of(record)


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _put(record: dict[str, Any], path: Path, value: Any) -> None:
    _at(record, path[:-1])[path[-1]] = copy.deepcopy(value)
