"""Finished runs → the report's data: sections of runs that may be compared, their names, and what made
them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import UNSET, structs

from scoremode import __version__
from scoremode.errors import UsageError
from scoremode.report.facts import measured_rows, protocol_words, ran_rows, text_name, text_words
from scoremode.report.page.charts import Runs, charts, measured, tail
from scoremode.report.page.comparison import (
    Cut,
    attributions,
    cut,
    frontiers,
    matrices,
    side_by_side,
    worst_places,
)
from scoremode.report.page.definition import (
    SCHEMA,
    SCHEMA_VERSION,
    Base,
    Matrix,
    Measured,
    Provenance,
    ReportData,
    Run,
    Section,
)
from scoremode.report.page.summary import (
    PERCENTILES,
    Place,
    Summary,
    summarized,
)
from scoremode.results.comparison.comparable import differing, require_same
from scoremode.results.comparison.ranking import check_folders, gib_of, is_base
from scoremode.results.labels import Named, labels_of, labels_of_runs, model_of
from scoremode.results.labels import base_of as named_base
from scoremode.results.record.checks import checked_record, unlike_dtypes
from scoremode.results.record.definition import Done, Record
from scoremode.results.record.section import Metric, value_at
from scoremode.results.statistics.blocks import CONVERSATIONS
from scoremode.results.statistics.bootstrap import WHOLE, covered
from scoremode.results.statistics.pairs import ranks
from scoremode.results.statistics.verdict import verdicts

_TESTED = "Runs have their intervals, and are tested against each other,"
_RULES = {
    "window": "as long as a window",
    "shortest": "the shortest there are",
    "autocorrelation": "by the autocorrelation of the scores",
    "eighth": "an eighth of the text, and less than its autocorrelation asks for",
}
_HASHES = {
    "record": "sha256",
    "scores.parquet": "scores.sha256",
    "checkpoint": "checkpoint.fingerprint",
    "tokenizer": "tokenizer.sha256",
    "text": "corpus.text.sha256",
    "token ids": "plan.tokens_sha256",
    "plan": "plan.sha256",
    "protocol": "protocol.sha256",
    "reference": "reference.sha256",
    "reference's states": "reference.states_sha256",
}
_FILES = 12


def report_data(
    folders: Sequence[Path],
    progress: Callable[[int, int], None] = lambda *_: None,
    title: str | None = None,
    margin: float | None = None,
) -> ReportData:
    """The data of the finished runs in `folders`, whatever they measured: those that may be compared
    are a section.

    `progress` gets the number of runs newly read, and of all. One is in memory at a time. `title`: the
    report's, None for one that names the base and the text; `margin`: of the verdicts, None for each
    metric's own.

    Raises UsageError where there is no run, or one twice, RunFolderError for one that isn't finished,
    or whose record isn't what its scores give.
    """
    if not folders:
        raise UsageError("a report of no runs")
    check_folders(folders)
    # What belongs together is known before a score is read; `summarized` believes none of it.
    records = [checked_record(folder, sealed=False) for folder in folders]
    groups = grouped(records)
    progress(0, len(folders))
    sections: list[list[Summary]] = []
    places: list[list[Place]] = []
    for group in groups:
        places.append(worst_places([records[i] for i in group]))
        summaries = []
        for i in group:
            summaries.append(summarized(folders[i], places[-1]))
            require_same(summaries[0].run, summaries[-1].run)
            progress(1, len(folders))
        sections.append(_ranked(summaries))
    models = _models(sections)
    made = [
        _section(number, summaries, models, at, margin)
        for number, (summaries, at) in enumerate(zip(sections, places, strict=True))
    ]
    times = [r["provenance"]["finished"] for section in made for r in section["runs"]]
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "title": title or title_of(made),
        "finished": max((time for time in times if time), default=None),
        "made_with": __version__,
        "sections": made,
    }


def _reference(summaries: Sequence[Summary]) -> Done | None:
    """The record of a run against the section's base, None where there is none."""
    return next((s.run.record for s in summaries if s.compared is not None), None)


def _is_base(summary: Summary, compared: Done | None) -> bool:
    return compared is not None and is_base(
        summary.run.record.document, compared.document["reference"]
    )


def _ranked(summaries: Sequence[Summary]) -> list[Summary]:
    """Runs of the base first, then by KLD, then those without by PPL."""
    compared = _reference(summaries)

    def key(summary: Summary) -> tuple[bool, bool, float]:
        kld = summary.compared is not None
        value = summary.run.record.metrics["kld" if kld else "ppl"].value
        return not _is_base(summary, compared), not kld, value

    return sorted(summaries, key=key)


def _models(sections: Sequence[Sequence[Summary]]) -> list[Named]:
    """Every model of the report, bases included, once."""
    found: dict[Named, None] = {}
    for summaries in sections:
        compared = _reference(summaries)
        found |= dict.fromkeys(_model(summary, compared) for summary in summaries)
        if compared is not None and compared.reference:
            found.setdefault(named_base(compared.reference))
    return list(found)


def _model(summary: Summary, compared: Done | None) -> Named:
    """The model of a run; of one of the base that has no label of its own the base."""
    record = summary.run.record
    if compared and compared.reference and not record.label and _is_base(summary, compared):
        return named_base(compared.reference)
    return model_of(record)


def _section(
    number: int,
    summaries: Sequence[Summary],
    models: Sequence[Named],
    places: Sequence[Place],
    margin: float | None,
) -> Section:
    compared = _reference(summaries)
    against = named_base(compared.reference) if compared and compared.reference else None
    by_id = {f"s{number}r{i}": summary for i, summary in enumerate(summaries)}
    records = {id_: summary.run.record for id_, summary in by_id.items()}
    are_base = [_is_base(summary, compared) for summary in summaries]
    bases = [id_ for id_, is_base in zip(by_id, are_base, strict=True) if is_base]
    labels = labels_of_runs([s.run for s in summaries], are_base, against, models)
    blocks = cut(summaries)
    ends = {id_: blocks.metrics(s.units) for id_, s in by_id.items()}
    runs = [
        run_of(
            s, id_, models.index(_model(s, compared)), label, ends[id_],
            of_base=id_ in bases,
        )
        for (id_, s), label in zip(by_id.items(), labels, strict=True)
    ]  # fmt: skip
    base = None
    if compared is not None and against is not None:
        own = ends[next(id_ for id_, record in records.items() if record is compared)]
        name = labels_of([against], against, models)[0]
        base = base_of(compared, name, bases[0] if bases else None, own)
    ranked = {id_: summary for id_, summary in by_id.items() if id_ not in bases}
    tests = matrices(ranked, blocks)
    by = "nll" if compared is None else "kld"
    test = next((one for one in tests if one["of"] == by), None)
    _judge([run for run in runs if not run["is_base"]], test, blocks, margin)
    # A base against itself is 0 everywhere.
    against = {id_: s.compared for id_, s in ranked.items() if s.compared is not None}
    texts = {token: text for s in summaries for token, text in s.texts.items()}
    folders = {id_: Path(summary.run.folder) for id_, summary in by_id.items()}
    # All records of a section have these alike.
    one = summaries[0].run.record
    return {
        "id": f"s{number}",
        "title": _section_title(one, base),
        "text": one.document["corpus"],
        "text_name": text_name(one.corpus),
        "text_words": text_words(one.corpus),
        "protocol": one.document["protocol"],
        "protocol_words": protocol_words(one.protocol),
        "plan": one.document["plan"],
        "base": base,
        "ranked_by": "ppl" if compared is None else "kld",
        "blocks": len(blocks.weights),
        "block_length": blocks.chosen.tokens,
        "interval_words": _interval_words(blocks),
        "runs": runs,
        "frontiers": frontiers(runs, base, tests),
        "tail": [tail(id_, of.tail) for id_, of in against.items()],
        "charts": charts(
            Runs(
                {id_: of.charts for id_, of in against.items()},
                {id_: records[id_] for id_ in against},
                folders,
            )
        ),
        "matrices": tests,
        "worst": side_by_side(places, against, records, texts),
        "tasks": {id_: record.document["tasks"] for id_, record in records.items() if record.tasks},
        "attributions": attributions(folders),
        "differing": differing([s.run for s in summaries], labels),
        "notes": _notes(summaries, runs),
    }


def _section_title(record: Done, base: Base | None) -> str:
    words = f"{text_name(record.corpus)}, {record.protocol.name}"
    return f"{words}, against {base['name']}" if base else words


def title_of(sections: Sequence[Section]) -> str:
    """The report's title: it names the base and the text, where there is one for all."""
    bases = {section["base"]["name"] for section in sections if section["base"]}
    runs = [run for section in sections for run in section["runs"]]
    texts = list(dict.fromkeys(section["text_name"] for section in sections))
    if len(bases) == 1:
        what = f"Quants of {bases.pop()}"
    else:
        what = runs[0]["name"] if len(runs) == 1 else f"{len(runs)} runs"
    return f"{what} on {texts[0] if len(texts) == 1 else f'{len(texts)} texts'}"


def _interval_words(blocks: Cut) -> str:
    chosen, count = blocks.chosen, len(blocks.weights)
    if chosen == CONVERSATIONS:
        covers = covered(count)
        few = "" if covers is None else f" So few that 95 % intervals cover {covers:.0%} where"
        few += " a few are far harder." if few else ""
        what = f"{count} conversation{'s' * (count != 1)}"
        return f"{_TESTED} by {what}, each drawn whole, 10,000 times.{few}"
    return (
        f"{_TESTED} by {count} block{'s' * (count != 1)} of "
        f"{chosen.tokens:,} tokens, drawn 10,000 times: {_RULES[chosen.rule]}."
    )


def _notes(summaries: Sequence[Summary], runs: Sequence[Run]) -> list[str]:
    notes = [
        f"{run['name']}: {unlike}"
        for summary, run in zip(summaries, runs, strict=True)
        if (unlike := unlike_dtypes(summary.run.record.document))
    ]
    without = {run["kld"]["note"] for run in runs if run["kld"] and run["kld"]["note"]}
    return notes + [f"no interval: {note}" for note in sorted(without)]


def grouped(records: Sequence[Record]) -> list[list[int]]:
    """Groups of `records` that may be compared, as places in it, in the order of their first.

    Runs without a base join those of their plan that have one, if these have one and the same.
    """
    groups: dict[tuple[str, str | None], list[int]] = {}
    for i, record in enumerate(records):
        groups.setdefault((_plan(record), _base(record)), []).append(i)
    for plan, base in list(groups):
        others = [key for key in groups if key[0] == plan and key[1] is not None]
        if base is None and len(others) == 1:
            groups[others[0]] = sorted(groups[others[0]] + groups.pop((plan, None)))
    return sorted(groups.values())


def _plan(record: Record) -> str:
    width = record.engine.vocabulary if record.engine else None
    return f"{record.plan.sha256} {width} {record.corpus.text.sha256}"


def _base(record: Record) -> str | None:
    return str(record.reference.sha256 or None) if record.reference else None


def _judge(
    runs: Sequence[Run],
    test: Matrix | None,
    blocks: Cut,
    margin: float | None,
) -> None:
    """Gives ranked runs their ranks, by the test of what they are ranked by, and their verdicts."""
    place = {run["id"]: i for i, run in enumerate(runs)}
    # Only runs against a base have one, and these are ranked by KLD.
    floors = {run["id"]: run["noise"]["value"] if run["noise"] else 0.0 for run in runs}
    told: list[tuple[int, int]] = []
    for pair in test["pairs"] if test else ():
        one, other = pair["a"], pair["b"]
        floor = max(floors[one], floors[other])
        if pair["verdict"] in ("lower", "higher") and abs(pair["value"]) > floor:
            both = place[one], place[other]
            told.append(both if pair["verdict"] == "lower" else (both[1], both[0]))
    clusters = len(blocks.weights) if blocks.chosen.tokens == WHOLE else None
    # Those without a KLD stand behind the others.
    tested = ranks(len(test["order"]), told) if test else []
    for i, run in enumerate(runs):
        run["ranks"] = tested[i] if i < len(tested) else (i + 1, i + 1)
        metrics = {
            key: Metric(found["value"], _ends(found), found["n"], found["note"])
            for key in ("kld", "ppl_ratio", "acceptance")
            if (found := run[key]) is not None
        }
        found = verdicts(metrics, margin, floor=floors[run["id"]], clusters=clusters)
        run["verdicts"] = [verdict.to_json() for verdict in found]


def _ends(found: Measured) -> tuple[float, float] | None:
    low, high = found["lower"], found["upper"]
    return None if low is None or high is None else (low, high)


def run_of(
    summary: Summary, id_: str, model: int, name: str, ends: Mapping[str, Metric], *, of_base: bool
) -> Run:
    """A run by its summary; `ends`: how sure its metrics are by its section's blocks; `of_base`: it is
    one of the base's own files."""
    record, compared = summary.run.record, summary.compared
    checkpoint, metrics = record.checkpoint, _by(ends, record)
    own = {} if compared is None else compared.metrics
    made = {name: measured(own[name]) for name in PERCENTILES.values() if own}
    size, both = checkpoint.bytes or None, checkpoint.bits_per_weight
    top1 = metrics.get("top1")
    return {
        "id": id_,
        "model": model,
        "name": name,
        "source": checkpoint.source,
        "folder": str(summary.run.folder),
        "is_base": of_base,
        "format": ", ".join(checkpoint.formats),
        "bytes": size,
        "gib": gib_of(record.document["checkpoint"]),
        "mib": None if size is None else size / 2**20,
        "bits_body": both.body,
        "bits_file": both.file,
        "parameters": checkpoint.parameters,
        "ppl": metrics["ppl"],
        "nll": metrics["nll"],
        "bits_per_byte": metrics.get("bits_per_byte"),
        "ppl_ratio": metrics.get("ppl_ratio"),
        "kld": metrics.get("kld"),
        "kld_median": made.get("kld_median"),
        "kld_p90": made.get("kld_p90"),
        "kld_p99": made.get("kld_p99"),
        "kld_p999": made.get("kld_p999"),
        "kld_max": record.distribution["kld"]["maximum"] if record.distribution else None,
        "top1": top1,
        "flips": _less_than_one(top1),
        "acceptance": metrics.get("acceptance"),
        "confident_flips": metrics.get("confident_flips"),
        "lost": metrics.get("lost"),
        "gained": metrics.get("gained"),
        "noise": measured(record.noise_floor.kld) if record.noise_floor else None,
        "ranks": None,
        "verdicts": [],
        "provenance": provenance(record),
    }


def base_of(record: Done, name: str, run: str | None, ends: Mapping[str, Metric]) -> Base | None:
    """The base that a run was held against, None for one without; `run`: id of a run of its files,
    `ends`: as for `run_of`."""
    if not (reference := record.reference):
        return None
    # A file of logits has no checkpoint.
    checkpoint, metrics = reference.checkpoint, _by(ends, record)
    size = checkpoint.bytes or None if checkpoint else None
    both = checkpoint.bits_per_weight if checkpoint else UNSET
    return {
        "name": name,
        "source": (reference.checkpoint or reference).source,
        "kind": reference.kind or "",
        "sha256": reference.sha256 or "",
        "run": run,
        "bytes": size,
        "gib": gib_of(record.document["reference"].get("checkpoint") or {}),
        "mib": None if size is None else size / 2**20,
        "bits_body": both.body if both else None,
        "bits_file": both.file if both else None,
        "dtype": (reference.engine or {}).get("dtype"),
        "ppl": metrics["ppl_base"],
        "nll": metrics["nll_base"],
    }


def _by(ends: Mapping[str, Metric], record: Done) -> dict[str, Measured]:
    """The record's metrics, with a section's intervals where it has them."""
    found = {}
    for name, metric in record.metrics.items():
        own = ends.get(name, metric)
        found[name] = measured(structs.replace(metric, ci95=own.ci95, note=own.note))
    return found


def _less_than_one(share: Measured | None) -> Measured | None:
    if share is None:
        return None
    lower, upper = share["upper"], share["lower"]
    return {
        **share,
        "value": 1 - share["value"],
        "lower": None if lower is None else 1 - lower,
        "upper": None if upper is None else 1 - upper,
    }


def provenance(record: Done) -> Provenance:
    """The part of a finished run's record that tells how its numbers came about."""
    files = sorted((record.checkpoint.files or {}).items())
    hashes = {name: value_at(record.document, path) for name, path in _HASHES.items()}
    facts = [*measured_rows(record), *ran_rows(record)]
    return {
        "command": record.command or None,
        "created": record.created or None,
        "finished": record.finished or None,
        "versions": dict(record.versions or {}),
        "hashes": {name: value for name, value in hashes.items() if value is not None},
        "files": dict(files[:_FILES]),
        "more_files": len(files[_FILES:]),
        "seconds": dict(record.seconds),
        "facts": [{"label": label, "value": value} for label, value in facts],
    }
