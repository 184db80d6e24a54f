"""A run of requests, made again: texts → token ids → plan, and questions → metrics."""

import math
from pathlib import Path

import numpy as np

from scoremode.checkpoint.model_files import resolve_tokenizer
from scoremode.errors import ScoremodeError
from scoremode.results.audit.findings import Findings
from scoremode.results.folders.tables import ANSWERS, REQUESTS, read_table
from scoremode.results.record.definition import Done
from scoremode.results.record.section import differences
from scoremode.results.record.text import RequestsFile
from scoremode.results.statistics.bootstrap import pages_section
from scoremode.results.statistics.pairs import paired_answers
from scoremode.runs.planning import prefix_of
from scoremode.text.plan import Plan
from scoremode.text.protocol import Protocol
from scoremode.text.task_requests import RequestCorpus, TextRequest, request_corpus
from scoremode.text.tokenizer import Tokenizer


def audited_requests(
    folder: Path | None,
    record: Done,
    tokenizer: Tokenizer | None,
    protocol: Protocol,
    findings: Findings,
) -> Plan | None:
    """The plan of the requests that lie in a run's `folder`; None where that can't be made."""
    if folder is None or not record.requests:
        findings.unchecked("text", "sha256", f"there is no {REQUESTS} beside the record")
        return None
    try:
        found = read_table(folder / REQUESTS, record.requests)
        names = ("task", "question", "place", "context", "continuation")
        rows = zip(*(found[n] for n in names), strict=True)
        corpus = request_corpus([TextRequest(*row) for row in rows])
    except (ScoremodeError, KeyError, TypeError) as error:
        findings.wrong("text", REQUESTS, str(error))
        return None
    said = record.corpus
    findings.same("text", "sha256", said.text.sha256, corpus.source_sha256, f"{REQUESTS} has")
    findings.same("text", "bytes", said.text.bytes, corpus.text_bytes, f"{REQUESTS} has")
    findings.same("text", "name", said.name, corpus.name, f"{REQUESTS} has")
    if tokenizer is None:
        findings.unchecked("plan", "token ids", "needs the tokenizer")
        return None
    return _planned(corpus, found["windows"], tokenizer, protocol, findings)


def audited_pages(
    folder: Path | None,
    record: Done,
    pages: RequestCorpus,
    tokenizer: Tokenizer,
    protocol: Protocol,
    findings: Findings,
) -> Plan | None:
    """The plan of the `pages` of a run's text; what lies of each in the run's `folder` is held against
    them."""
    windows = None
    if folder is not None and record.requests:
        try:
            found = read_table(folder / REQUESTS, record.requests)
            assert pages.sizes is not None
            texts = [request.continuation for request in pages.requests]
            made = {"continuation": texts, "words": pages.sizes[:, 0], "bytes": pages.sizes[:, 1]}
            for name, column in made.items():
                findings.same(REQUESTS, name, found[name], list(column), "the text has")
            windows = found["windows"]
        except (ScoremodeError, KeyError) as error:
            findings.wrong(REQUESTS, "pages", str(error))
    return _planned(pages, windows, tokenizer, protocol, findings)


def _planned(
    corpus: RequestCorpus,
    said: list[list[int]] | None,
    tokenizer: Tokenizer,
    protocol: Protocol,
    findings: Findings,
) -> Plan | None:
    """The plan of requests, and whether their windows are those that a run's file has."""
    try:
        prefix = prefix_of(resolve_tokenizer(tokenizer.source), tokenizer)
        planned = corpus.planned(protocol, tokenizer, prefix)
    except ScoremodeError as error:
        findings.wrong("plan", "token ids", f"no plan of these requests: {error}")
        return None
    windows = [
        planned.window[a:b].tolist()
        for a, b in zip(planned.begin[:-1], planned.begin[1:], strict=True)
    ]
    if said is not None:
        findings.same("plan", "windows of the requests", said, windows, "their texts give")
    return planned.plan


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
