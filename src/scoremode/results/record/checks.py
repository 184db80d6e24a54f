"""Records as they may be read: of a known schema, of the right types, as they were written, and held
against themselves.

A record's fields are used in many places, so they are checked in one: once, when it is read, against
`results.record.definition`. Its own sha256 and those of the files beside it tell a change. An edit
whose hashes were made anew contradicts the rest: a plan's sha256 is of the protocol, the token ids'
sha256 and every window's place, and the Scores tell each window's place again, since a target at
position `t` of its window lies `t` behind the window's start, and the last one of a window ends it.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET

from scoremode.errors import ProtocolError, RunFolderError
from scoremode.lib.json import json_digest
from scoremode.results.folders.store import RECORD, read_record, seal_of
from scoremode.results.folders.tables import LABEL
from scoremode.results.record.definition import SCHEMA, SCHEMA_VERSION, Done, Record, read_document
from scoremode.results.record.section import value_at
from scoremode.results.scores import Scores
from scoremode.results.statistics.blocks import CONVERSATION
from scoremode.results.statistics.windows import stopping_section, window_sums

# Bits of a weight below which it is quantized.
_UNQUANTIZED = 16


def checked_record(folder: Path, *, sealed: bool = True) -> Record:
    """The record in a run's folder. Raises RunFolderError, which names the file and the field.

    - `sealed`: whether its own sha256 is compared, too; if not, that is left to `check_seal`.
    """
    record = check_record(read_record(folder), folder / RECORD)
    if sealed:
        check_seal(record, folder / RECORD)
    return record


def check_record(document: dict[str, Any], file: Path) -> Record:
    """The typed record of a `document` read from `file`. Raises RunFolderError for another version
    than ours, and for a field of another type than it must have."""
    schema, version = document.get("schema"), document.get("schema_version")
    number = 0 if isinstance(version, bool) or not isinstance(version, int) else version
    if schema != SCHEMA or number != SCHEMA_VERSION:
        newer = " (a newer scoremode's)" if number > SCHEMA_VERSION else ""
        raise RunFolderError(
            f"{file}: its record is {schema!r} version {version!r}{newer}, not {SCHEMA!r} version "
            f"{SCHEMA_VERSION}"
        )
    try:
        return read_document(document)
    except ValueError as error:
        raise RunFolderError(f"{file}: {error}") from None


def check_seal(record: Record, file: Path) -> None:
    """Raises RunFolderError unless a record is as it was written."""
    if (found := seal_of(record.document)) != record.sha256:
        raise RunFolderError(
            f"{file}: was changed after it was written: its contents have the sha256 {found[:12]}…, "
            f"and its sha256 says {record.sha256[:12]}…"
        )


def check_done(folder: Path, record: Record) -> Done:
    """The record in `folder`. Raises RunFolderError unless it is of a whole run that is done."""
    if not isinstance(record, Done):
        raise RunFolderError(f"{folder}: {undone(record.document)}")
    return record


def undone(document: Mapping[str, Any]) -> str | None:
    """Why a record is none of a whole run that is done, in words; None where it is."""
    status, shard = document.get("status"), document.get("shard")
    if status == "done":
        return None
    if status == "shard" and isinstance(shard, Mapping):
        number, of = shard.get("number"), shard.get("of")
        return (
            f"is shard {number}/{of} of a run, and no whole one: scoremode merge makes the run of all "
            f"{of}"
        )
    reason = f" ({document['reason']})" if document.get("reason") else ""
    return f"is not done: its status is {status!r}{reason}"


def stopping(
    scores: Scores,
    rule: str,
    seed: int,
    planned: int,
    conversations: int | None,
    extras: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """The section `stopping` of Scores whose windows were drawn from so many `planned` ones, of so many
    `conversations`. Raises ProtocolError for what is no rule."""
    sums = window_sums(scores, extras.get("weight"), extras.get(CONVERSATION))
    return stopping_section(sums, planned, rule, seed, conversations)


def check_stopped(
    folder: Path, record: Record, scores: Scores, extras: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """The section `stopping` of a finished run by its name, made of its Scores; none without a rule.

    Raises RunFolderError where it ended at another window than its rule ends it at.
    """
    file, windows = folder / RECORD, record.plan.windows
    rule, seed, planned = record.protocol.stop_when, record.protocol.seed, record.plan.planned
    if rule is UNSET and seed is UNSET and planned is UNSET:
        return {}
    if rule is UNSET or seed is UNSET or planned is UNSET:
        raise RunFolderError(
            f"{file}: its protocol's stop_when is {rule or None!r}, its seed "
            f"{None if seed is UNSET else seed}, and its plan {'has' if planned else 'lacks'} the "
            "windows that were planned"
        )
    try:
        found = stopping(scores, rule, seed, planned.windows, planned.conversations or None, extras)
    except ProtocolError as error:
        raise RunFolderError(f"{file}: {error}") from None
    if found["after"] != windows or not found["met"]:
        where = f"after {found['after']}" if found["met"] else "after more"
        raise RunFolderError(
            f"{file}: has {windows} of {planned.windows} windows, and by its scores {rule} ends the "
            f"run {where}"
        )
    return {"stopping": found}


# A value of the identity → where else the record has it.
_TWICE = {
    "plan": "plan.sha256",
    "checkpoint": "checkpoint.fingerprint",
    "versions": "versions",
    "engine.vocabulary": "engine.vocabulary",
    "shard.number": "shard.number",
    "shard.of": "shard.of",
    "reference.sha256": "reference.states_sha256",
    "reference.checkpoint": "reference.checkpoint.fingerprint",
    "reference.fingerprint": "reference.fingerprint",
    "noise_floor": "noise_floor.change",
    "confident": "thresholds.confident",
    "conversations.sha256": "corpus.text.sha256",
}
# Rules of what is no text: a window's target may be any of its tokens, and a window is of a numbered
# conversation, page or question.
_NUMBERED = ("conversations", "pages", "requests")


def check_blocks(path: Path, record: Record, extras: Mapping[str, Any]) -> None:
    """Raises RunFolderError unless the columns beside the Scores in `path` tell conversations where a
    checked record's protocol and plan have them: intervals are made of these."""
    said = record.plan.conversations or None
    numbers = extras.get(CONVERSATION)
    found = None if numbers is None else len(np.unique(numbers))
    has_them = record.protocol.text in _NUMBERED
    if has_them != (found is not None) or said != found:
        raise RunFolderError(
            f"{path}: has {found or 'no'} conversations, and its record's plan {said or 'none'}"
        )


def check_described(
    folder: Path, record: Record, scores: Scores, extras: Mapping[str, np.ndarray]
) -> None:
    """Raises RunFolderError where the `protocol` and `plan` of a finished run's checked record are
    not those of its Scores, or not those of its `identity`."""
    file = folder / RECORD
    check_identity(file, record.document)
    for name, (said, made) in described_facts(record, scores, extras).items():
        # The first records of all had no sha256 of a protocol; their plan's has it within.
        if said is not None and said != made:
            raise RunFolderError(
                f"{file}: its {name} is {said}, and what it was made of gives {made}"
            )


def described_facts(
    record: Record, scores: Scores, extras: Mapping[str, np.ndarray]
) -> dict[str, tuple[Any, Any]]:
    """Field of a checked record's `protocol` or `plan` → what it says, and what all else gives."""
    document, plan, made = record.document, record.plan, None
    if LABEL in extras:
        names, counts = np.unique(extras[LABEL].astype(str), return_counts=True)
        made = dict(zip(names.tolist(), counts.tolist(), strict=True))
    return {
        **_merged_facts(record, scores),
        "plan.labels": (plan.labels or None, made),
        "protocol.sha256": (record.protocol.sha256 or None, protocol_sha256(document["protocol"])),
        "plan.windows": (plan.windows, len(np.unique(scores.window))),
        "plan.unique": (plan.unique, len(np.unique(scores.index))),
        "plan.sha256": (plan.sha256, windows_sha256(document, scores)),
        "reference.arithmetic": (
            record.reference.arithmetic if record.reference else None,
            unlike_dtypes(document),
        ),
    }


def unlike_dtypes(document: Mapping[str, Any]) -> str | None:
    """What of a run's divergence may be arithmetic, since base and model computed in other dtypes; None
    where both have one, and of a run without a base."""
    reference, own = document.get("reference"), value_at(document, "engine.dtype")
    if reference is None or own is None:
        return None
    base = value_at(reference, "engine.dtype")
    if reference.get("kind") == "llama.cpp":
        if value_at(document, "engine.arithmetic") == "llama.cpp":
            return None
        base = "what llama.cpp chose"
    if base is None or base == own:
        return None
    return f"base in {base}, model in {own}: part of the divergence is arithmetic"


def swapped(document: Mapping[str, Any]) -> str | None:
    """The line on a base that is quantized, and to fewer bits than the model: one may be named in
    the other's place. Of two quants it may be meant."""
    body = "checkpoint.bits_per_weight.body"
    base, own = value_at(document, f"reference.{body}"), value_at(document, body)
    if base is None or own is None or not base < min(own, _UNQUANTIZED):
        return None
    names = value_at(document, "reference.source"), value_at(document, "checkpoint.source")
    return (
        f"the base (--reference) {names[0]} has {base:.3f} bits/weight in its layers, and the model "
        f"{names[1]} {own:.3f}: are they swapped?"
    )


def _merged_facts(record: Record, scores: Scores) -> dict[str, tuple[Any, Any]]:
    """The same of the shards that a run was merged of: they share out all its windows."""
    if not record.merged:
        return {}
    windows = [list(shard.windows) for shard in record.merged.shards]
    edges = [0, *(end for _, end in windows[:-1]), record.plan.windows]
    shared = [list(pair) for pair in pairwise(edges)]
    rows = np.searchsorted(scores.window, edges)
    said = [shard.targets for shard in record.merged.shards]
    return {
        "merged.windows": (windows, shared),
        "merged.targets": (said, np.diff(rows).tolist()),
    }


def check_identity(file: Path, document: Mapping[str, Any]) -> None:
    """Raises RunFolderError where a record's identity, by which a run is found again, is another run's
    than its sections."""
    for (inside, one), (outside, two) in identity_pairs(document):
        if one != two:
            raise RunFolderError(f"{file}: its identity.{inside} is {one}, and its {outside} {two}")


def identity_pairs(
    document: Mapping[str, Any],
) -> Iterator[tuple[tuple[str, Any], tuple[str, Any]]]:
    """What a record's identity and its sections both have: (field of the identity, value), (field of
    the record, value)."""
    for inside, outside in _TWICE.items():
        if inside == "plan" and value_at(document, "plan.planned") is not None:
            # The windows that a rule ended a run after weren't known when it began.
            outside = "plan.planned.sha256"
        one, two = value_at(document, f"identity.{inside}"), value_at(document, outside)
        # What changed is known when it has run.
        is_left_open = inside == "noise_floor" and one == "auto"
        if one is not None and two is not None and not is_left_open:
            yield (inside, one), (outside, two)


def protocol_sha256(protocol: Mapping[str, Any]) -> str:
    """The sha256 of a record's protocol as `Protocol.sha256` makes it, whatever fields it has."""
    value = {k: v for k, v in protocol.items() if k not in ("name", "sha256")}
    return json_digest(value)


def windows_sha256(document: Mapping[str, Any], scores: Scores) -> str:
    """The sha256 of a plan as `Plan.sha256` makes it, of a record's protocol and token ids and of the
    windows that the Scores are of."""
    _, begin = np.unique(scores.window, return_index=True)
    end = np.append(begin[1:], len(scores)) - 1
    start = scores.index[begin].astype(np.int64) - scores.position[begin]
    plan = document["plan"]
    facts = protocol_sha256(document["protocol"]), plan["tokens_sha256"], plan["window_bos"]
    digest = sha256(f"{facts[0]} {facts[1]} {facts[2]}".encode())
    columns = start, scores.index[end] + 1, scores.position[begin]
    if document["protocol"].get("text") in _NUMBERED:
        columns = scores.window, scores.position, scores.index
    for column in columns:
        digest.update(column.astype("<i8").tobytes())
    return digest.hexdigest()
