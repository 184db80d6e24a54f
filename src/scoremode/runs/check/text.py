"""A run's text and token ids, made again: text file → text → token ids → plan → what was scored."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scoremode.checkpoint.model_files import ModelFiles
from scoremode.checkpoint.tokenizer import checkpoint_tokenizer
from scoremode.errors import CorpusError, ScoremodeError, TokenizerError
from scoremode.results.audit.findings import Findings
from scoremode.results.folders.tables import LABEL, TOKEN_TEXT
from scoremode.results.record.differences import differences
from scoremode.results.record.sections import command_of
from scoremode.results.scores import Scores, expected
from scoremode.results.statistics.divergence import worst_tokens
from scoremode.runs.check.conversations import audited_chats
from scoremode.runs.check.requests import audited_pages, audited_requests
from scoremode.runs.check.sources import Sources, Unreachable, named_corpus
from scoremode.text import hub
from scoremode.text.calibration import Calibration, calibration_of_file, calibration_of_hub
from scoremode.text.corpus import Corpus, from_dataset_file, from_files, from_string
from scoremode.text.corpus_plan import plan_of, texts_sha256
from scoremode.text.plan import Plan
from scoremode.text.protocol import PRESETS, Protocol
from scoremode.text.task_requests import TASKS, page_corpus
from scoremode.text.token_class import token_table
from scoremode.text.tokenizer import Tokenizer

# What a record has of a corpus beside its names, places and hashes.
_OF_CORPUS = ("rows", "row_limit", "row_seed", "text_field", "preset", "separator", "group_by",
              "joined")  # fmt: skip
# What stands in a command for a long text that was given in Python.
_LENGTH_ALONE = re.compile(r"<\d+ characters>")


def audit_protocol(record: Mapping[str, Any], findings: Findings) -> None:
    """Holds a protocol's name, by which people compare, against its rules: those of a preset, but for
    the changes that the name tells. No sha256 is of the name."""
    if "protocol" not in record:
        return
    part = "protocol"
    try:
        said = protocol_of(record)
    except ScoremodeError as error:
        findings.unchecked(part, "name", str(error))
        return
    name, *changes = said.name.split("+")
    if (wanted := {**PRESETS, TASKS.name: TASKS}.get(name)) is None:
        findings.unchecked(part, "name", f"{name} is no protocol of this release")
        return
    changed = {field: value for field, _, value in (change.partition("=") for change in changes)}
    words = []
    for each in fields(Protocol)[1:]:
        own, usual = getattr(said, each.name), getattr(wanted, each.name)
        if each.name == "context_length" and wanted.text == "conversations":
            usual = wanted.resolve(None).context_length
        if each.name == "stride" and usual is None:
            usual = said.context_length
        if (told := changed.pop(each.name.replace("_", "-"), None)) is None:
            told = str(usual)
            # The model's own length, which no name tells.
            if each.name == "context_length" and usual is None:
                continue
        if str(own) != told:
            words.append(f"{said.name} has {each.name} {told}, and the record {own}")
    words += [f"{said.name} changes {strange}, which no protocol has" for strange in changed]
    findings.judge(part, "name", words, said.name)


def audited_plan(
    record: Mapping[str, Any],
    sources: Sources,
    findings: Findings,
    folder: Path | None = None,
) -> tuple[Plan, Tokenizer] | None:
    """The plan, made anew of a run's text and tokenizer, and held against the record; None where they
    can't be reached. Requests lie in the run's own `folder`."""
    missing = [s for s in ("corpus", "tokenizer", "protocol", "plan") if s not in record]
    if missing:
        findings.unchecked("plan", "token ids", f"the record has no sound {missing[0]}")
        return None
    find = partial(sources.tokenizer_of, record["tokenizer"], record.get("checkpoint", {}))
    tokenizer = audited_tokenizer(record["tokenizer"], "tokenizer", find, findings)
    if "conversations" in record["corpus"]:
        plan = audited_chats(record, sources, tokenizer, protocol_of(record), findings)
    elif record["protocol"].get("text") == "requests":
        plan = audited_requests(folder, record, tokenizer, protocol_of(record), findings)
    else:
        plan = _text_plan(record, sources, tokenizer, findings, folder)
    if plan is None or tokenizer is None:
        return None
    plan = _as_stopped(record, plan)
    made = plan.to_json()
    for name, value in record["plan"].items():
        if name in made:
            label = "token ids" if name == "tokens_sha256" else name
            findings.same("plan", f"{label} of the text", value, made[name], "its text gives")
    if (said := record.get("identity", {}).get("labels")) is not None and plan.labels is not None:
        labels = plan.labels.sha256(plan.targets()[2])
        findings.same("record", "identity.labels", said, labels, "its text's groups give")
    return plan, tokenizer


def _text_plan(
    record: Mapping[str, Any],
    sources: Sources,
    tokenizer: Tokenizer | None,
    findings: Findings,
    folder: Path | None,
) -> Plan | None:
    """The plan of a run's text, None where that can't be reached; of pages what `folder` says of each
    is held against them."""
    corpus = _audited_text(record, sources, findings)
    if corpus is None or tokenizer is None:
        what = "text" if corpus is None else "tokenizer"
        findings.unchecked("plan", "token ids", f"needs the {what}")
        return None
    try:
        if record["protocol"].get("text") == "pages":
            pages = page_corpus(corpus.texts("pages"))
            return audited_pages(folder, record, pages, tokenizer, protocol_of(record), findings)
        return plan_of(corpus, tokenizer, protocol_of(record))
    except ScoremodeError as error:
        findings.wrong("plan", "token ids", f"no plan of this text: {error}")
        return None


def kept_plan(
    folder: Path, record: Mapping[str, Any], sources: Sources, findings: Findings
) -> Plan | None:
    """The plan by the token ids that a reference keeps: the run itself, or its base; None where there
    is none, or where they are another plan's."""
    section = record.get("reference") or {}
    place = folder if "kept" in record else None
    if place is None and section.get("kind") == "stored":
        place = sources.base(section)
    if place is None or "plan" not in record or not (place / "record.json").is_file():
        return None
    from scoremode.reference.stored import StoredReference

    try:
        plan = StoredReference(place).plan()
        if "kept" not in record and record["protocol"].get("seed") is not None:
            # The base has all windows in the order of the text.
            plan = _as_stopped(record, plan.drawn(protocol_of(record)))
    except ScoremodeError as error:
        findings.unchecked("plan", "kept token ids", str(error))
        return None
    wanted = record["plan"]["sha256"]
    held = findings.same("plan", "kept token ids", wanted, plan.sha256, f"{place} gives")
    return plan if held else None


def _as_stopped(record: Mapping[str, Any], plan: Plan) -> Plan:
    """The windows of a plan that a run took until its rule ended it; all of any other run."""
    if "planned" not in record["plan"]:
        return plan
    return plan.first_windows(min(record["plan"]["windows"], len(plan)))


def audit_targets(
    record: Mapping[str, Any],
    plan: Plan,
    tokenizer: Tokenizer,
    scores: Scores,
    extras: Mapping[str, np.ndarray],
    findings: Findings,
) -> None:
    """Holds the columns of Scores that a plan and a tokenizer decide against those of `plan`."""
    part = "scores.parquet"
    wanted = expected(plan, range(len(plan)))
    if len(wanted["window"]) != len(scores):
        words = f"has {len(scores)} rows, and the plan {len(wanted['window'])} targets"
        findings.wrong(part, "targets", words)
        return
    columns: dict[str, np.ndarray] = dict(wanted)
    if (weights := plan.weights()) is not None:
        columns["weight"] = weights[wanted["window"]]
    if plan.conversation is not None:
        columns["conversation"] = plan.conversation[wanted["window"]]
    if plan.labels is not None:
        columns[LABEL] = plan.labels.at(wanted["index"])
    if plan.turn_place is not None:
        columns["turn_place"] = plan.turn_place[wanted["index"]]
    try:
        table = token_table(tokenizer)
        columns["token_class"] = table.classes[scores.target]
        columns["token_bytes"] = table.byte_counts[scores.target]
        if TOKEN_TEXT in extras or record.get("scores", {}).get("token_text"):
            columns[TOKEN_TEXT] = table.texts(scores.target)
    except (TokenizerError, IndexError) as error:
        table = None
        findings.unchecked(part, "kinds and bytes of tokens", str(error))
    own = scores.columns() | dict(extras)
    for name, column in columns.items():
        if name not in own:
            findings.unchecked(part, name, "the file has no such column")
            continue
        differ = np.flatnonzero(own[name] != column)
        words = []
        if len(differ):
            i = int(differ[0])
            words = [
                f"row {i} has {own[name][i]}, and the text gives {column[i]} ({len(differ)} of "
                f"{len(column)} rows differ)"
            ]
        findings.judge(part, name, words, "as the text has it")
    if scores.against is not None and "worst" in record and table is not None:
        made = worst_tokens(scores, scores.against, plan=plan, table=table)
        for i, (said, anew) in enumerate(zip(record["worst"], made, strict=False)):
            texts = {k: v for k, v in said.items() if k == "context" or k.endswith("_text")}
            if texts:
                found = differences(f"worst.{i}", texts, anew, of="its token ids")
                findings.judge("worst", f"{i} text", (d.words for d in found))


def protocol_of(record: Mapping[str, Any]) -> Protocol:
    """The protocol that a record describes. Raises CorpusError for one of another release's."""
    known = {field.name for field in fields(Protocol)}
    rules = {name: value for name, value in record["protocol"].items() if name != "sha256"}
    if strange := sorted(rules.keys() - known):
        raise CorpusError(f"its protocol has {strange[0]}, which this release doesn't know")
    return Protocol(**rules)


def _audited_text(record: Mapping[str, Any], sources: Sources, findings: Findings) -> Corpus | None:
    """The run's corpus, if the protocol's rule makes a text of it."""
    section, part = record["corpus"], "text"
    try:
        corpus = _corpus(record, sources).limited_to(section["row_limit"], section.get("row_seed"))
        rule = record["protocol"].get("text", section["text"]["rule"])
        texts = corpus.texts(rule)
    except Unreachable as error:
        findings.unchecked(part, "sha256", str(error))
        return None
    except ScoremodeError as error:
        _unreadable(part, section, sources, error, findings)
        return None
    findings.same(part, "rule", section["text"]["rule"], rule, "its protocol has")
    held = findings.same(
        part, "sha256", section["text"]["sha256"], texts_sha256(texts),
        f"the text in {corpus.source} has",
    )  # fmt: skip
    size = sum(len(text.encode()) for text in texts)
    findings.same(part, "bytes", section["text"]["bytes"], size, "the text has")
    if sources.files and section["name"] != corpus.name:
        words = f"the record calls it {section['name']}, and the file given is {corpus.name}"
        findings.unchecked(part, "name", words)
    else:
        findings.same(part, "name", section["name"], corpus.name, f"{corpus.source} is called")
    if section["name"] == corpus.name:
        made = corpus.to_json()
        for name in _OF_CORPUS:
            if name in made or name in section:
                findings.same(part, name, section.get(name), made.get(name), "the text gives")
    if (said := section.get("source_sha256")) is None:
        return corpus
    if held and said != corpus.source_sha256 and sources.files:
        words = f"the same text came from another file: {corpus.source}"
        findings.unchecked(part, "source's sha256", words)
    else:
        findings.same(part, "source's sha256", said, corpus.source_sha256, f"{corpus.source} has")
    return corpus


def _unreadable(
    part: str,
    section: Mapping[str, Any],
    sources: Sources,
    error: ScoremodeError,
    findings: Findings,
) -> None:
    """A text that isn't what the record says: wrong where it lies at the record's own place, while the
    hub may fail, and a file that the user gives may be another one."""
    words = f"{section['name']}: {error}"
    if sources.files or str(section.get("source")).startswith("hub:"):
        findings.unchecked(part, "sha256", words)
    else:
        findings.wrong(part, "sha256", words)


def _corpus(record: Mapping[str, Any], sources: Sources) -> Corpus:
    """The corpus of a run. Raises Unreachable, CorpusError."""
    section = record["corpus"]
    source, is_text = section.get("source") or section["name"], section["rows"] is None
    group_by = section.get("group_by")
    field = section.get("text_field") or "text"
    if "preset" in section:
        return named_corpus(section, sources)
    if sources.files and is_text:
        return from_files(sources.files, group_by)
    if sources.files:
        return from_dataset_file(sources.files[0], field, group_by)
    if source.startswith("hub:"):
        if not sources.fetch:
            raise Unreachable(f"{source}: --fetch gets it from the hub, or --file PATH says where a "
                              "copy lies")  # fmt: skip
        repo, _, commit = source.removeprefix("hub:").partition("@")
        # As `hub.from_hub` names it: the data set, its configuration if it has one, its split.
        _, *config, split = section["name"].split(" ")
        return hub.from_hub(
            repo,
            config[0] if config else None,
            split=split,
            text_field=field,
            revision=commit,
            group_by=group_by,
        )
    if source == "argument":
        if (text := _flag(record, "--text")) is None:
            raise Unreachable("it was given on the command line: --file PATH says where it lies")
        if _LENGTH_ALONE.fullmatch(text):
            # A text that was given in Python and is long (`api.measure`).
            raise Unreachable("the command has its length alone: --file PATH says where it lies")
        return from_string(text)
    source = sources.at(source)
    files = section.get("files", ())
    paths = [Path(sources.at(file["source"])) for file in files] or [Path(source)]
    for path in paths:
        if not os.path.isfile(path):  # noqa: PTH113  Path.is_file raises for a name too long
            raise Unreachable(f"there is no {path} here: --file PATH says where it lies")
    if is_text:
        # A folder is called by its own name.
        of_folder = os.path.isdir(source)  # noqa: PTH112  Path.is_dir raises for a name too long
        return from_files([Path(source)] if of_folder else paths, group_by)
    return from_dataset_file(paths[0], field, group_by)


def _flag(record: Mapping[str, Any], name: str) -> str | None:
    """The value that the record's command line has for a flag."""
    command = command_of(record)
    for word, after in zip(command, [*command[1:], None], strict=False):
        flag, equals, value = word.partition("=")
        if flag == name:
            return value if equals else after
    return None


def audited_tokenizer(
    section: Mapping[str, Any], part: str, find: Callable[[], ModelFiles], findings: Findings
) -> Tokenizer | None:
    """The tokenizer in the place that `find` finds, held against a record's section of it."""
    try:
        tokenizer = checkpoint_tokenizer(find())
    except (Unreachable, ScoremodeError) as error:
        findings.unchecked(part, "tokenizer" if part != "tokenizer" else "sha256", str(error))
        return None
    made = tokenizer.to_json()
    for name in ("sha256", "size", "bos", "adds"):
        if name in section:
            label = name if part == "tokenizer" else f"tokenizer {name}"
            findings.same(part, label, section[name], made[name], f"{tokenizer.source} has")
    return tokenizer


_CALIBRATION = "calibration"


def audit_calibration(
    record: Mapping[str, Any],
    made: tuple[Plan, Tokenizer] | None,
    sources: Sources,
    findings: Findings,
) -> None:
    """Holds a record's section `calibration` against its file, where that still lies there, or against
    the hub's, where that may be asked; `made`: the run's plan and tokenizer, where there are any."""
    if (section := record.get(_CALIBRATION)) is None:
        return
    if made is None:
        findings.unchecked(_CALIBRATION, "share", "the scored text is not there to look in")
        return
    try:
        found = _read(section, sources)
    except ScoremodeError as error:
        findings.unchecked(_CALIBRATION, "share", str(error))
        return
    if found is None:
        words = f"{section['source']} is not here"
        if section["source"].startswith("hub:"):
            words = f"{section['source']}: --fetch gets it from the hub"
        findings.unchecked(_CALIBRATION, "share", words)
        return
    plan, tokenizer = made
    if not findings.same(
        _CALIBRATION, "source", section["source_sha256"], found.source_sha256, f"{found.source} has"
    ):
        return
    again = found.looked_for(plan, tokenizer).section(plan)
    for name in again:
        if name not in ("name", "source", "source_sha256"):
            findings.same(_CALIBRATION, name, section.get(name), again[name], "its text gives")


def _read(section: Mapping[str, Any], sources: Sources) -> Calibration | None:
    source, field = str(section["source"]), str(section["text_field"])
    if source.startswith("hub:"):
        if not sources.fetch:
            return None
        repo, _, commit = source.removeprefix("hub:").partition("@")
        # As `calibration_of_hub` names it: the data set, its configuration if it has one, its split.
        _, *parts = str(section["name"]).split(" ")
        config, split = (parts[0] if len(parts) > 1 else None), (parts[-1] if parts else "train")
        return calibration_of_hub(repo, config, split=split, revision=commit, text_field=field)
    place = Path(sources.at(source))
    return calibration_of_file(place, field) if place.is_file() else None
