"""The numbers of a run's record, each made again from its Scores."""

import math
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET

from scoremode import __version__
from scoremode.errors import InvalidMeasurement, RunFolderError, ScoremodeError, UsageError
from scoremode.results.audit.findings import Findings
from scoremode.results.folders.store import (
    RECORD,
    SCORES,
    Columns,
    read_columns,
    read_record,
    seal_of,
)
from scoremode.results.folders.tables import ANSWERS, REQUESTS, TOKEN_TEXT, bytes_of, read_table
from scoremode.results.gates import Compared, Gates
from scoremode.results.record.checks import (
    check_blocks,
    check_done,
    check_record,
    check_stopped,
    described_facts,
    identity_pairs,
)
from scoremode.results.record.definition import (
    SCHEMA,
    SCHEMA_VERSION,
    SECTIONS,
    Done,
    needed_by,
)
from scoremode.results.record.section import decode, differences, misfit
from scoremode.results.record.sections import remade
from scoremode.results.record.text import RequestsFile
from scoremode.results.scores import DTYPES, Scores, check_values
from scoremode.results.statistics.bootstrap import pages_section
from scoremode.results.statistics.divergence import worst_tokens
from scoremode.results.statistics.pairs import paired_answers

_PART = "record"


def audited_record(folder: Path, findings: Findings) -> Done | None:
    """The record of the finished run in `folder`; None where a section of it is not as it must be, and
    nothing else is audited then.

    Raises RunFolderError where there is no finished run.
    """
    file = folder / RECORD
    if not file.is_file():
        raise RunFolderError(f"{folder}: no readable record: there is no {RECORD}")
    try:
        document = read_record(folder)
    except RunFolderError as error:
        findings.wrong(_PART, "JSON", str(error))
        return None
    said = document.get("sha256")
    findings.same(_PART, "seal", said, seal_of(document), "its contents have")
    try:
        record = check_record(document, file)
    except RunFolderError as error:
        for words in _broken(document) or [str(error)]:
            findings.wrong(_PART, "schema", words)
        return None
    sections = f"{SCHEMA} version {SCHEMA_VERSION}, {len(document)} sections"
    findings.held(_PART, "schema", sections)
    done = check_done(folder, record)
    _audit_identity(document, findings)
    return done


def _broken(document: Mapping[str, Any]) -> list[str]:
    """The misfits of a record of our version, a line for each section."""
    if document.get("schema") != SCHEMA or document.get("schema_version") != SCHEMA_VERSION:
        return []
    found, status = [], document.get("status")
    for name, kind in SECTIONS.items():
        if name in document:
            found.append(misfit(document[name], kind, name))
        elif status in needed_by(name):
            found.append(f"has no {name}")
    return [*filter(None, found)]


def _audit_identity(document: Mapping[str, Any], findings: Findings) -> None:
    for (inside, one), (outside, two) in identity_pairs(document):
        findings.same(_PART, f"identity.{inside}", one, two, f"its {outside} is")
    engine, said = document.get("engine", {}), document.get("identity", {}).get("engine", {})
    twice = {name: value for name, value in said.items() if name in engine}
    if twice:
        found = differences("identity.engine", twice, engine, ("device",), of="its engine's fields")
        findings.judge(_PART, "identity.engine", (d.words for d in found), f"{len(twice)} fields")


# How sure a number is: a matter of the release that resampled, with a seed of its own that is fixed.
_RESAMPLED = ("ci95", "note", "error")
_MADE = ("metrics", "distribution", "breakdown", "survival", "llama_cpp", "stopping")


def audited_scores(folder: Path, record: Done, findings: Findings) -> tuple[Scores, Columns] | None:
    """The Scores beside a record, and their further columns, whatever their hash; None where none can
    be read."""
    path, part = folder / SCORES, SCORES
    said = record.scores
    rows = record.plan.scored
    try:
        found = sha256(bytes_of(path, None, rows)).hexdigest()
    except RunFolderError as error:
        findings.wrong(part, "file", f"{error}; without it nothing is proven")
        return None
    findings.same(part, "sha256", said.sha256, found, "the file has")
    try:
        scores, extras = read_columns(path, rows=rows)
    except RunFolderError as error:
        findings.wrong(part, "columns", str(error))
        return None
    if words := _strange(scores):
        findings.wrong(part, "columns", words)
        return None
    findings.same(part, "name", said.name, SCORES, "the file is called")
    has_text = TOKEN_TEXT in extras
    findings.same(part, "scores.token_text", said.token_text or False, has_text, "its columns say")
    if record.identity:
        told = record.identity.token_text or False
        findings.same(part, "identity.token_text", told, has_text, "its columns say")
        if record.identity.full is not UNSET:
            made = scores.against is not None and scores.against.jsd is not None
            findings.same(part, "identity.full", record.identity.full, made, "its columns say")
        made = scores.against is not None and scores.against.tv_draft is not None
        findings.same(part, "identity.draft", bool(record.identity.draft), made, "its columns say")
    for name, rows in (("scores.rows", said.rows), ("plan.scored", record.plan.scored)):
        findings.same(part, name, rows, len(scores), "the file has rows:")
    try:
        check_values(scores)
        findings.held(part, "values", "each can be a distribution's")
    except InvalidMeasurement as error:
        findings.wrong(part, "values", str(error))
    return scores, extras


def audit_numbers(
    folder: Path, record: Done, scores: Scores, extras: Columns, findings: Findings
) -> None:
    """Makes every number of a record again from the Scores, and the hashes of what they are of."""
    try:
        check_blocks(folder / SCORES, record, extras)
    except RunFolderError as error:
        findings.wrong("intervals", "conversations", str(error))
        return
    for name, (said, made) in described_facts(record, scores, extras).items():
        if said is not None:
            part, _, field = name.partition(".")
            findings.same(part, field, said, made, "what it was made of gives")
    try:
        made = remade(record, scores, extras)
    except InvalidMeasurement as error:
        findings.wrong("metrics", "all", f"{folder / SCORES}: {error}")
        return
    try:
        made |= check_stopped(folder, record, scores, extras)
    except RunFolderError as error:
        findings.wrong("stopping", "after", str(error))
    why = _other_release(record)
    for name in _MADE:
        _audit_section(name, record.document.get(name), made.get(name), why, findings)
    _audit_intervals(record, made, why, findings)
    _audit_gates(record, made, why, findings)
    if scores.against is not None:
        _audit_worst(record, scores, findings)
    elif record.worst:
        findings.wrong("worst", "all", "the record has it, and its scores have no base")
    _audit_noise_floor(record, findings)


def _strange(scores: Scores) -> str | None:
    """What no Scores of ours have, and what would stop any sum of them."""
    for name, column in scores.columns().items():
        if column.dtype != DTYPES[name]:
            return f"its column {name} is of {column.dtype}, not {np.dtype(DTYPES[name])}"
    for name, least in (("window", 0), ("position", 1), ("index", 0), ("target", 0)):
        if (found := int(getattr(scores, name).min(initial=least))) < least:
            return f"its column {name} has {found}, and the least is {least}"
    return None if len(scores) else "it has no rows"


def _other_release(record: Done) -> str | None:
    """Why intervals can't be compared; None where they were made by what is installed here."""
    versions = record.versions or {}
    ours = {"scoremode": __version__, "numpy": metadata.version("numpy")}
    for name, own in ours.items():
        if versions.get(name) != own:
            return f"not compared: made by {name} {versions.get(name)}, and here is {own}"
    if not record.intervals:
        return "not compared: made before records said what blocks they are of"
    return None


def _audit_section(name: str, stored: Any, made: Any, why: str | None, findings: Findings) -> None:
    """Audits a section member by member, the numbers and then how sure they are."""
    if stored is None:
        if made is not None:
            findings.unchecked(name, "all", "the record has none, and its scores give it")
        return
    if made is None:
        findings.wrong(name, "all", f"the record has {name}, which its scores don't give")
        return
    for key, value in stored.items():
        field = f"{name}.{key}"
        if key not in made:
            findings.wrong(name, key, f"has {field}, which its scores don't give")
            continue
        found = [d.words for d in differences(field, value, made[key], _RESAMPLED)]
        findings.judge(name, key, found, _worded(value))
        own, anew = dict(_sure(value)), dict(_sure(made[key]))
        if not own:
            continue
        if why is not None:
            findings.unchecked(name, f"{key} interval", why)
            continue
        found = [d.words for d in differences(field, own, anew)]
        found += [f"has no {field}.{place}" for place in anew if place not in own]
        findings.judge(name, f"{key} interval", found, _interval(value))
    for key in made:
        if key not in stored:
            findings.unchecked(name, key, "the record has none, and its scores give it")


def _sure(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every interval, note and error within `value`, by its place."""
    if not isinstance(value, Mapping | list):
        return
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, inner in items:
        place = f"{at}{key}"
        if key in _RESAMPLED:
            yield place, list(inner) if isinstance(inner, tuple) else inner
        else:
            yield from _sure(inner, f"{place} ")


def _audit_intervals(
    record: Done, made: Mapping[str, Any], why: str | None, findings: Findings
) -> None:
    if not record.intervals:
        return
    if why is not None:
        findings.unchecked("intervals", "blocks", why)
        return
    found = differences("intervals", record.document["intervals"], made["intervals"])
    length = record.intervals.block_length
    held = "conversations, each whole" if length == 1 else f"of {length:,} tokens"
    findings.judge("intervals", "blocks", (d.words for d in found), held)


def _audit_gates(
    record: Done, made: Mapping[str, Any], why: str | None, findings: Findings
) -> None:
    for gate in record.document.get("gates", ()):
        name, on = gate["name"], gate["on"]
        if on == "upper" and why is not None:
            findings.unchecked("gates", name, why)
            continue
        try:
            judged = (
                Gates(**{name: gate["limit"]}, on=on).judge(decode(made, Compared))[0].to_json()
            )
        except (TypeError, KeyError, ValueError, UsageError) as error:
            findings.wrong("gates", name, f"is no gate of this run: {error}")
            continue
        # Words on an interval, which another release may make otherwise.
        skipped = () if why is None else ("chance",)
        found = differences(f"gates.{name}", gate, judged, skipped)
        words = (
            f"{'met' if judged['met'] else 'not met'}: {judged['value']:.6g} of {judged['limit']:g}"
        )
        findings.judge("gates", name, (d.words for d in found), words)


def _audit_worst(record: Done, scores: Scores, findings: Findings) -> None:
    assert scores.against is not None
    if record.worst is UNSET:
        findings.unchecked("worst", "all", "the record has none, and its scores give it")
        return
    facts, theirs = worst_tokens(scores, scores.against), record.document["worst"]
    if len(theirs) != len(facts):
        findings.wrong(
            "worst", "number", f"has {len(theirs)} targets, its scores give {len(facts)}"
        )
    for i, (stored, made) in enumerate(zip(theirs, facts, strict=False)):
        said = {key: stored.get(key) for key in made}
        found = differences(f"worst.{i}", said, made)
        held = f"KLD {made['kld']:.4f} at place {made['index']:,}"
        findings.judge("worst", str(i), (d.words for d in found), held)


def _audit_noise_floor(record: Done, findings: Findings) -> None:
    if (floor := record.noise_floor) is None:
        return
    part, resolves = "noise_floor", floor.kld.value > 0
    findings.same(part, "resolves", floor.resolves, resolves, "its KLD gives")
    findings.unchecked(part, "kld", "the scores of the base's second run are not kept")


def _worded(value: Any) -> str:
    if isinstance(value, Mapping) and misfit(value.get("value"), float) is None:
        return f"{value['value']:.6g}"
    return ""


def _interval(value: Any) -> str:
    if isinstance(value, Mapping) and misfit(value.get("ci95"), tuple[float, float]) is None:
        low, high = value["ci95"]
        return f"[{low:.6g}, {high:.6g}]"
    return ""


def _audit_pages(folder: Path, record: Done, file: RequestsFile, findings: Findings) -> None:
    part = "pages"
    try:
        found = read_table(folder / REQUESTS, file)
        words, byte_counts = (np.array(found[n], np.int64) for n in ("words", "bytes"))
        own, base = np.array(found["logprob"], np.float64), found.get("base_logprob")
        theirs = None if base is None else np.array(base, np.float64)
        made = pages_section(words, byte_counts, own, theirs)
    except (ScoremodeError, KeyError, TypeError, ValueError) as error:
        findings.wrong(part, "metrics", str(error))
        return
    wrong = differences(part, record.document[part], made, of="its pages")
    findings.judge(part, "metrics", (d.words for d in wrong))


def audit_answers(folder: Path, record: Done, findings: Findings) -> None:
    """Holds a record's accuracies, and what it says of pairs, against the questions in its file, and
    its perplexities of pages against these."""
    if record.pages and record.requests:
        _audit_pages(folder, record, record.requests, findings)
    part = "tasks"
    if not (section := record.tasks):
        return
    try:
        rows = read_table(folder / ANSWERS, section.answers)
    except ScoremodeError as error:
        findings.wrong(part, "sha256", str(error))
        return
    task, metric = np.array(rows["task"]), np.array(rows["metric"])
    values = np.array(rows["value"], np.float64)
    parts = {name: [name] for name in section.tasks}
    parts |= {name: group.tasks for name, group in section.groups.items()}
    document = record.document["tasks"]
    stored = document["tasks"] | document["groups"]
    for name, members in parts.items():
        said = section.groups.get(name) or section.tasks[name]
        for key, whole in said.metrics.items():
            here = np.isin(task, members) & (metric == key)
            paired = (said.pairs or {}).get(key)
            # Others are no means of questions, or of groups that weigh all tasks alike.
            if not here.any() or (paired is None and name in section.groups):
                continue
            if key.startswith("acc") or paired is not None:
                mean = float(values[here].mean())
                words = [] if math.isclose(mean, whole, rel_tol=1e-9, abs_tol=1e-12) else [
                    f"the record has {whole}, and its questions give {mean}"
                ]  # fmt: skip
                findings.judge(part, f"{name} {key}", words, "as its questions give")
            if paired is not None:
                base = np.array(rows["base_value"], np.float64)[here]
                made = paired_answers(values[here], base)
                stated = {k: v for k, v in stored[name]["pairs"][key].items() if k in made}
                found = differences(f"{name} {key}", stated, made, of="its questions")
                findings.judge(part, f"{name} {key} pairs", (d.words for d in found))
