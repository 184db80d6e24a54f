"""A run's text and token ids, made again: text → token ids → plan → what was scored."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from scoremode.checkpoint.chat_template import chat_template, turn_ends
from scoremode.checkpoint.model_files import ModelFiles, resolve_tokenizer
from scoremode.checkpoint.tokenizer import checkpoint_tokenizer
from scoremode.errors import CorpusError, ScoremodeError, TokenizerError
from scoremode.lib.hub import on_hub
from scoremode.results.audit.findings import Findings
from scoremode.results.folders.tables import LABEL, REQUESTS, TOKEN_TEXT, read_table
from scoremode.results.record.definition import Done
from scoremode.results.record.model import Tokenizer as TokenizerSection
from scoremode.results.record.section import differences
from scoremode.results.record.text import RequestsFile, Template
from scoremode.results.scores import Scores, expected
from scoremode.results.statistics.divergence import worst_tokens
from scoremode.runs.check.inputs import (
    Sources,
    Unreachable,
    calibration_flags,
    protocol_of,
    text_flags,
)
from scoremode.runs.planning import prefix_of
from scoremode.runs.texts import read_calibration, read_text
from scoremode.text.conversations.corpus import Conversations
from scoremode.text.conversations.template import ChatTemplate
from scoremode.text.corpus import Corpus
from scoremode.text.corpus_plan import cut, text_facts
from scoremode.text.plan import Plan
from scoremode.text.protocol import PRESETS, Protocol
from scoremode.text.task_requests import (
    TASKS,
    PlannedCorpus,
    RequestCorpus,
    TextRequest,
    request_corpus,
)
from scoremode.text.token_class import token_table
from scoremode.text.tokenizer import Tokenizer

# The fields of a record's corpus beside its names, places and hashes.
_OF_CORPUS = ("rows", "row_limit", "row_seed", "text_field", "preset", "separator", "group_by",
              "joined")  # fmt: skip
_CHATS, _CALIBRATION = "conversations", "calibration"


def audit_protocol(record: Done, findings: Findings) -> None:
    """Holds a protocol's name, by which people compare, against its rules: those of a preset, but for
    the changes that the name tells. No sha256 is of the name."""
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
    record: Done,
    sources: Sources,
    findings: Findings,
    folder: Path | None = None,
) -> tuple[Plan, Tokenizer] | None:
    """The plan, made anew of a run's text and tokenizer, and held against the record; None where they
    can't be reached. Requests lie in the run's own `folder`."""
    find = partial(sources.tokenizer_of, record.tokenizer, record.checkpoint)
    tokenizer = audited_tokenizer(record.tokenizer, "tokenizer", find, findings)
    protocol, chats = protocol_of(record), record.corpus.conversations
    if chats and (protocol.text != _CHATS or not protocol.long):
        words = f"{protocol.name} is for {protocol.text}, and the record has conversations"
        findings.wrong("plan", "token ids", words)
        return None
    kind, rows = "data set" if chats else "text", None
    if protocol.is_of_requests and folder is not None and record.requests:
        rows = _request_rows(folder, record.requests, findings)
    if protocol.text != "requests":
        corpus = _audited_text(record, protocol, sources, findings)
    elif rows is None:
        # A file that is there and can't be read has its finding.
        if folder is None or not record.requests:
            findings.unchecked("text", "sha256", f"there is no {REQUESTS} beside the record")
        return None
    else:
        corpus, kind = _audited_requests(record, rows, findings), "requests"
    if corpus is None or tokenizer is None:
        missing = kind if corpus is None else "tokenizer"
        findings.unchecked("plan", "token ids", f"needs the {missing}")
        return None
    prefix, template, ends = None, None, frozenset[int]()
    try:
        if protocol.is_of_requests:
            prefix = prefix_of(resolve_tokenizer(tokenizer.source), tokenizer)
        if chats:
            ends = frozenset(chats.ends)
            places = _places(record, sources)
            if chats.template is not None:
                template = _audited_template(chats.template, places, sources, tokenizer, findings)
                if template is None:
                    findings.unchecked("plan", "token ids", "needs the chat template")
                    return None
            _audit_ends(chats.ends, places, tokenizer, findings)
        planned = cut(corpus, protocol, tokenizer, prefix=prefix, template=template, ends=ends)
    except ScoremodeError as error:
        findings.wrong("plan", "token ids", f"no plan of its {kind}: {error}")
        return None
    if planned.chat is not None:
        _audit_chats(record, planned.chat, corpus.name, template, findings)
    if planned.asked is not None and rows is not None:
        _audit_windows(rows, planned.asked, findings)
    plan = _as_stopped(record, planned.plan)
    made = plan.to_json()
    for name, value in record.document["plan"].items():
        if name in made:
            label = "token ids" if name == "tokens_sha256" else name
            findings.same("plan", f"{label} of the text", value, made[name], "its text gives")
    said = record.identity.labels if record.identity else None
    if said and plan.labels is not None:
        labels = plan.labels.sha256(plan.targets()[2])
        findings.same("record", "identity.labels", said, labels, "its text's groups give")
    return plan, tokenizer


def _request_rows(
    folder: Path, file: RequestsFile, findings: Findings
) -> dict[str, list[Any]] | None:
    """The columns of the requests that lie in a run's folder; None where they can't be read."""
    try:
        return read_table(folder / REQUESTS, file)
    except ScoremodeError as error:
        findings.wrong("text", REQUESTS, str(error))
        return None


def _audited_requests(
    record: Done, rows: Mapping[str, list[Any]], findings: Findings
) -> RequestCorpus | None:
    """The requests of a run's folder, held against the record."""
    try:
        names = ("task", "question", "place", "context", "continuation")
        columns = zip(*(rows[name] for name in names), strict=True)
        corpus = request_corpus([TextRequest(*row) for row in columns])
    except (ScoremodeError, KeyError, TypeError) as error:
        findings.wrong("text", REQUESTS, str(error))
        return None
    said, of = record.corpus, f"{REQUESTS} has"
    findings.same("text", "sha256", said.text.sha256, corpus.source_sha256, of)
    findings.same("text", "bytes", said.text.bytes, corpus.text_bytes, of)
    findings.same("text", "name", said.name, corpus.name, of)
    return corpus


def _audit_windows(rows: Mapping[str, list[Any]], asked: PlannedCorpus, findings: Findings) -> None:
    """Holds the file of a run's requests against their plan, and of pages against the text's."""
    try:
        if asked.sizes is not None:
            made = {
                "continuation": [request.continuation for request in asked.requests],
                "words": asked.sizes[:, 0].tolist(),
                "bytes": asked.sizes[:, 1].tolist(),
            }
            for name, column in made.items():
                findings.same(REQUESTS, name, rows[name], column, "the text has")
        bounds = zip(asked.begin[:-1], asked.begin[1:], strict=True)
        windows = [asked.window[a:b].tolist() for a, b in bounds]
        findings.same(
            "plan", "windows of the requests", rows["windows"], windows, "their texts give"
        )
    except KeyError as error:
        findings.wrong(REQUESTS, "columns", str(error))


def _audited_text(
    record: Done, protocol: Protocol, sources: Sources, findings: Findings
) -> Corpus | None:
    """The run's text or conversations, held against the record; None where they can't be read."""
    section = record.corpus
    part = _CHATS if section.conversations else "text"
    try:
        corpus = read_text(text_flags(record, sources))
        if isinstance(corpus, Conversations) != (part == _CHATS):
            raise CorpusError(
                f"{corpus.name} is {'no ' * (part == _CHATS)}data set of conversations"
            )
        seed = None if section.row_seed is UNSET else section.row_seed
        corpus = corpus.limited_to(section.row_limit, seed)
        digest, size = text_facts(corpus, protocol)
    except Unreachable as error:
        findings.unchecked(part, "sha256", str(error))
        return None
    except ScoremodeError as error:
        # The hub may fail, and a file that the user gives may be another one; what lies at the
        # record's own place is what the record says, or wrong.
        may_differ = sources.files or on_hub(str(section.source))
        tell = findings.unchecked if may_differ else findings.wrong
        tell(part, "sha256", f"{section.name}: {error}")
        return None
    findings.same(part, "rule", section.text.rule, protocol.text, "its protocol has")
    held = findings.same(
        part, "sha256", section.text.sha256, digest, f"the text in {corpus.source} has"
    )
    findings.same(part, "bytes", section.text.bytes, size, "the text has")
    if sources.files and section.name != corpus.name:
        words = f"the record calls it {section.name}, and the file given is {corpus.name}"
        findings.unchecked(part, "name", words)
    else:
        findings.same(part, "name", section.name, corpus.name, f"{corpus.source} is called")
    if section.name == corpus.name:
        made, said = corpus.to_json(), record.document["corpus"]
        for name in _OF_CORPUS if part == "text" else ("rows",):
            if name in made or name in said:
                findings.same(part, name, said.get(name), made.get(name), "the text gives")
    if (said := section.source_sha256) is None:
        return corpus
    if held and said != corpus.source_sha256 and sources.files:
        words = f"the same text came from another file: {corpus.source}"
        findings.unchecked(part, "source's sha256", words)
    else:
        findings.same(part, "source's sha256", said, corpus.source_sha256, f"{corpus.source} has")
    return corpus


def _audit_ends(
    said: Sequence[int], places: list[ModelFiles], tokenizer: Tokenizer, findings: Findings
) -> None:
    """Holds the tokens that end a turn against the model's."""
    name = "tokens that end a turn"
    try:
        made = sorted(turn_ends(places, tokenizer))
    except ScoremodeError as error:
        findings.unchecked(_CHATS, name, str(error))
        return
    where = f"{' and '.join(map(str, places))} has"
    findings.same(_CHATS, name, said, made, where)


def _audit_chats(
    record: Done,
    made: Mapping[str, Any],
    name: str,
    template: ChatTemplate | None,
    findings: Findings,
) -> None:
    """Holds the counts of a run's conversations, which the data set `name` gives again, against the
    record's."""
    said, document = record.corpus.conversations, record.document["corpus"][_CHATS]
    assert said
    # Bad rows are told with the names that data set and template had for the run.
    names = {name: record.corpus.name}
    if template is not None and said.template is not None:
        names[template.source] = said.template.source
    bad = made["bad"]
    for ours, theirs in names.items():
        bad = [line.replace(ours, theirs) for line in bad]
    for name, value in {**made, "bad": bad}.items():
        if name in ("template", "ends"):
            continue
        if name in document:
            findings.same(_CHATS, name, document[name], value, "its data set gives")
        else:
            words = "the record is of an earlier release, which didn't say it"
            findings.unchecked(_CHATS, name, words)
    identity = (record.identity and record.identity.conversations) or {}
    if (stated := said.template) is not None and "template" in identity:
        wanted = [stated.sha256, stated.arguments, stated.date]
        theirs = identity["template"]
        findings.same(_CHATS, "identity.template", theirs, wanted, "its template has")


def _audited_template(
    said: Template,
    places: list[ModelFiles],
    sources: Sources,
    tokenizer: Tokenizer,
    findings: Findings,
) -> ChatTemplate | None:
    """The template that has the record's sha256, of all that can be reached."""
    part, name = _CHATS, "chat template"
    own: list[ChatTemplate | None] = []
    try:
        own += [chat_template([place], tokenizer) for place in places]
        if said.given and places:
            own.append(chat_template(places, tokenizer, sources.file(said.source)))
    except Unreachable:
        # It may be the model's own all the same.
        pass
    except ScoremodeError as error:
        findings.unchecked(part, name, str(error))
        return None
    found = [template for template in own if template is not None]
    for each in found:
        if each.sha256 == said.sha256:
            findings.held(part, name, f"{each.source} has {said.sha256[:12]}…")
            return each
    where = ", ".join(each.source for each in found) or "nothing that is here"
    words = f"{said.source} had {said.sha256[:12]}…, which {where} has"
    tell = findings.unchecked if said.given or not found else findings.wrong
    tell(part, name, words)
    return None


def _places(record: Done, sources: Sources) -> list[ModelFiles]:
    """The files of the run's tokenizer, and those of its model where they lie elsewhere."""
    found, checkpoint = dict[Path, ModelFiles](), record.checkpoint
    for find in (
        lambda: sources.tokenizer_of(record.tokenizer, checkpoint),
        lambda: sources.checkpoint(checkpoint, sources.model, "--model"),
    ):
        try:
            place = find()
            found.setdefault(place.path, place)
        except (Unreachable, ScoremodeError):
            # The findings on tokenizer and checkpoint say so.
            continue
    return list(found.values())


def kept_plan(folder: Path, record: Done, sources: Sources, findings: Findings) -> Plan | None:
    """The plan by the token ids that a reference keeps: the run itself, or its base; None where there
    is none, or where they are another plan's."""
    section, place = record.reference, folder if record.kept else None
    if place is None and section and section.kind == "stored":
        place = sources.base(section)
    if place is None or not (place / "record.json").is_file():
        return None
    from scoremode.reference.stored import StoredReference

    try:
        plan = StoredReference(place).plan()
        if not record.kept and record.protocol.seed is not UNSET:
            # The base has all windows in the order of the text.
            plan = _as_stopped(record, plan.drawn(protocol_of(record)))
    except ScoremodeError as error:
        findings.unchecked("plan", "kept token ids", str(error))
        return None
    wanted = record.plan.sha256
    held = findings.same("plan", "kept token ids", wanted, plan.sha256, f"{place} gives")
    return plan if held else None


def _as_stopped(record: Done, plan: Plan) -> Plan:
    """The windows of a plan that a run took until its rule ended it; all of any other run."""
    if not record.plan.planned:
        return plan
    return plan.first_windows(min(record.plan.windows, len(plan)))


def audit_targets(
    record: Done,
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
        if TOKEN_TEXT in extras or record.scores.token_text:
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
    if scores.against is not None and record.worst and table is not None:
        made = worst_tokens(scores, scores.against, plan=plan, table=table)
        for i, (said, anew) in enumerate(zip(record.document["worst"], made, strict=False)):
            texts = {k: v for k, v in said.items() if k == "context" or k.endswith("_text")}
            if texts:
                found = differences(f"worst.{i}", texts, anew, of="its token ids")
                findings.judge("worst", f"{i} text", (d.words for d in found))


def audited_tokenizer(
    section: TokenizerSection, part: str, find: Callable[[], ModelFiles], findings: Findings
) -> Tokenizer | None:
    """The tokenizer in the place that `find` finds, held against a record's section of it."""
    try:
        tokenizer = checkpoint_tokenizer(find())
    except (Unreachable, ScoremodeError) as error:
        findings.unchecked(part, "tokenizer" if part != "tokenizer" else "sha256", str(error))
        return None
    made = tokenizer.to_json()
    for name, value in msgspec.to_builtins(section).items():
        if name in ("sha256", "size", "bos", "adds"):
            label = name if part == "tokenizer" else f"tokenizer {name}"
            findings.same(part, label, value, made[name], f"{tokenizer.source} has")
    return tokenizer


def audit_calibration(
    record: Done,
    made: tuple[Plan, Tokenizer] | None,
    sources: Sources,
    findings: Findings,
) -> None:
    """Holds a record's section `calibration` against its file, where that still lies there, or against
    the hub's, where that may be asked; `made`: the run's plan and tokenizer, where there are any."""
    if not (section := record.calibration):
        return
    if made is None:
        findings.unchecked(_CALIBRATION, "share", "the scored text is not there to look in")
        return
    try:
        found = read_calibration(calibration_flags(section, sources))
    except (Unreachable, ScoremodeError) as error:
        findings.unchecked(_CALIBRATION, "share", str(error))
        return
    assert found is not None
    plan, tokenizer = made
    if not findings.same(
        _CALIBRATION, "source", section.source_sha256, found.source_sha256, f"{found.source} has"
    ):
        return
    again = found.looked_for(plan, tokenizer).section(plan)
    for name in again:
        if name not in ("name", "source", "source_sha256"):
            said = record.document[_CALIBRATION].get(name)
            findings.same(_CALIBRATION, name, said, again[name], "its text gives")
