"""A run's conversations, made again: data set → chat template → token ids and targets → plan."""

import datetime
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scoremode.checkpoint.chat_template import chat_template, turn_ends
from scoremode.checkpoint.model_files import ModelFiles
from scoremode.errors import CorpusError, ScoremodeError
from scoremode.results.audit.findings import Findings
from scoremode.runs.check.sources import Sources, Unreachable, named_corpus
from scoremode.text.conversations.corpus import (
    Conversations,
    from_conversations_file,
    from_conversations_hub,
)
from scoremode.text.conversations.template import DATE, ChatTemplate
from scoremode.text.plan import Plan
from scoremode.text.protocol import Protocol
from scoremode.text.tokenizer import Tokenizer

_PART = "conversations"


def audited_chats(
    record: Mapping[str, Any],
    sources: Sources,
    tokenizer: Tokenizer | None,
    protocol: Protocol,
    findings: Findings,
) -> Plan | None:
    """The plan of a run's conversations, its data set and its template held against the record; None
    where one of them or the tokenizer can't be reached."""
    said = record["corpus"]["conversations"]
    if protocol.text != "conversations" or not protocol.long:
        words = f"{protocol.name} is for {protocol.text}, and the record has conversations"
        findings.wrong("plan", "token ids", words)
        return None
    chats = _audited_data_set(record, sources, findings)
    if chats is None or tokenizer is None:
        what = "data set" if chats is None else "tokenizer"
        findings.unchecked("plan", "token ids", f"needs the {what}")
        return None
    template = None
    if said["template"] is not None:
        template = _audited_template(said["template"], record, sources, tokenizer, findings)
        if template is None:
            findings.unchecked("plan", "token ids", "needs the chat template")
            return None
    _audit_ends(record, sources, tokenizer, findings)
    try:
        talk = chats.planned(protocol, tokenizer, template, frozenset(said["ends"]))
    except ScoremodeError as error:
        findings.wrong("plan", "token ids", f"no plan of these conversations: {error}")
        return None
    made = talk.facts | {"bad": _as_named(talk.facts["bad"], chats, template, record["corpus"])}
    for name, value in made.items():
        if name in ("template", "ends"):
            continue
        if name in said:
            findings.same(_PART, name, said[name], value, "its data set gives")
        else:
            findings.unchecked(
                _PART, name, "the record is of an earlier release, which didn't say it"
            )
    findings.same(
        _PART, "rule", record["corpus"]["text"]["rule"], protocol.text, "its protocol has"
    )
    if "rows" in record["corpus"] and not sources.files:
        rows = chats.to_json()["rows"]
        findings.same(_PART, "rows", record["corpus"]["rows"], rows, "its data set has")
    identity = record.get("identity", {}).get("conversations", {})
    if said["template"] is not None and "template" in identity:
        wanted = [said["template"][name] for name in ("sha256", "arguments", "date")]
        findings.same(_PART, "identity.template", identity["template"], wanted, "its template has")
    return talk.plan.arranged()


def _as_named(
    lines: list[str],
    chats: Conversations,
    template: ChatTemplate | None,
    section: Mapping[str, Any],
) -> list[str]:
    """Lines on bad rows with the names that data set and template had for the run."""
    names = {chats.name: section["name"]}
    if template is not None:
        names[template.source] = section["conversations"]["template"]["source"]
    for ours, theirs in names.items():
        lines = [line.replace(ours, theirs) for line in lines]
    return lines


def _audited_data_set(
    record: Mapping[str, Any], sources: Sources, findings: Findings
) -> Conversations | None:
    """The conversations by the record's own settings, held against their hash."""
    section = record["corpus"]
    try:
        found = _data_set(section, sources)
    except Unreachable as error:
        findings.unchecked(_PART, "sha256", str(error))
        return None
    except (ScoremodeError, ValueError) as error:
        at_hub = str(section.get("source")).startswith("hub:")
        tell = findings.unchecked if sources.files or at_hub else findings.wrong
        tell(_PART, "sha256", f"{section['name']}: {error}")
        return None
    for name, value, made in (
        ("sha256", section["text"]["sha256"], found.source_sha256),
        # The same, said again.
        ("source's sha256", section.get("source_sha256"), found.source_sha256),
        ("bytes", section["text"]["bytes"], found.size),
    ):
        if value is not None:
            findings.same(_PART, name, value, made, f"{found.source} has")
    if sources.files and section["name"] != found.name:
        words = f"the record calls it {section['name']}, and the file given is {found.name}"
        findings.unchecked(_PART, "name", words)
    else:
        findings.same(_PART, "name", section["name"], found.name, f"{found.source} is called")
    return found.limited_to(section["row_limit"], section.get("row_seed"))


def _data_set(section: Mapping[str, Any], sources: Sources) -> Conversations:
    """Raises Unreachable, CorpusError, ValueError for a day that is none."""
    said, source = section["conversations"], str(section.get("source") or section["name"])
    template = said["template"] or {}
    day = template.get("date")
    how: dict[str, Any] = {
        "arguments": template.get("arguments") or {},
        "date": DATE if day is None else datetime.date.fromisoformat(day),
        "group_by": section.get("group_by"),
        "skip_bad_rows": said["bad_rows"],
    }
    if template.get("given"):
        how["template"] = Path(sources.at(template["source"]))
    if "preset" in section:
        found = named_corpus(section, sources, how)
        if not isinstance(found, Conversations):
            raise CorpusError(f"{section['preset']}: is a text of no conversations")
        return found
    if sources.files:
        return from_conversations_file(sources.files[0], **how)
    if source.startswith("hub:"):
        if not sources.fetch:
            raise Unreachable(
                f"{source}: --fetch gets it from the hub, or --file PATH says where a copy lies"
            )
        repo, _, commit = source.removeprefix("hub:").partition("@")
        _, *config, split = section["name"].split(" ")
        return from_conversations_hub(
            repo, config[0] if config else None, split=split, revision=commit, **how
        )
    source = sources.at(source)
    if not os.path.isfile(source):  # noqa: PTH113  Path.is_file raises for a name too long
        raise Unreachable(f"there is no {source} here: --file PATH says where it lies")
    return from_conversations_file(Path(source), **how)


def _audited_template(
    said: Mapping[str, Any],
    record: Mapping[str, Any],
    sources: Sources,
    tokenizer: Tokenizer,
    findings: Findings,
) -> ChatTemplate | None:
    """The template that has the record's sha256, of all that can be reached."""
    found: list[ChatTemplate] = []
    places = list(_places(record, sources))
    try:
        own = [chat_template([place], tokenizer) for place in places]
        file = sources.at(said["source"])
        if said["given"] and places and os.path.isfile(file):  # noqa: PTH113
            own.append(chat_template(places, tokenizer, Path(file)))
        found += [template for template in own if template is not None]
    except ScoremodeError as error:
        findings.unchecked(_PART, "chat template", str(error))
        return None
    for each in found:
        if each.sha256 == said["sha256"]:
            findings.held(_PART, "chat template", f"{each.source} has {said['sha256'][:12]}…")
            return each
    where = ", ".join(each.source for each in found) or "nothing that is here"
    words = f"{said['source']} had {said['sha256'][:12]}…, which {where} has"
    if said["given"] or not found:
        findings.unchecked(_PART, "chat template", words)
    else:
        findings.wrong(_PART, "chat template", words)
    return None


def _audit_ends(
    record: Mapping[str, Any], sources: Sources, tokenizer: Tokenizer, findings: Findings
) -> None:
    said, places = record["corpus"]["conversations"]["ends"], list(_places(record, sources))
    try:
        made = turn_ends(places, tokenizer)
    except ScoremodeError as error:
        findings.unchecked(_PART, "tokens that end a turn", str(error))
        return
    where = f"{' and '.join(map(str, places))} has"
    findings.same(_PART, "tokens that end a turn", said, sorted(made), where)


def _places(record: Mapping[str, Any], sources: Sources) -> Iterator[ModelFiles]:
    """The files of the run's tokenizer, and those of its model where they lie elsewhere."""
    seen = set[Path]()
    checkpoint = record.get("checkpoint")
    for find in (
        lambda: sources.tokenizer_of(record["tokenizer"], checkpoint or {}),
        lambda: checkpoint and sources.checkpoint(checkpoint, sources.model, "--model"),
    ):
        try:
            place = find()
        except (Unreachable, ScoremodeError):
            # The findings on tokenizer and checkpoint say so.
            continue
        if place and place.path not in seen:
            seen.add(place.path)
            yield place
