"""Finished runs → the report's data."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scoremode import __version__
from scoremode.errors import UsageError
from scoremode.report.page.definition import SCHEMA, SCHEMA_VERSION, Base, ReportData, Run, Section
from scoremode.report.page.gathered.attributed import attributions, recipe_curves
from scoremode.report.page.gathered.frontiers import frontiers
from scoremode.report.page.gathered.matrices import Cut, cut, matrices
from scoremode.report.page.gathered.names import short_names
from scoremode.report.page.gathered.plotted import charts, tails
from scoremode.report.page.gathered.rows import base_of, run_of, source_of
from scoremode.report.page.gathered.sections import grouped
from scoremode.report.page.gathered.side_by_side import side_by_side, worst_places
from scoremode.report.page.gathered.summary import Place, Summary, summarized
from scoremode.report.table import protocol_words, text_words
from scoremode.results.comparison.comparable import differing, require_same
from scoremode.results.comparison.ranking import check_folders
from scoremode.results.comparison.rows import is_base
from scoremode.results.folders.finished import UNHASHED
from scoremode.results.record.checks import checked_record, has_hashes, unlike_dtypes
from scoremode.results.statistics.bootstrap import covered
from scoremode.results.statistics.places import CONVERSATIONS

__all__ = ["report_data"]

_TESTED = "Runs have their intervals, and are tested against each other,"
_RULES = {
    "window": "as long as a window",
    "shortest": "the shortest there are",
    "autocorrelation": "by the autocorrelation of the scores",
    "eighth": "an eighth of the text, and less than its autocorrelation asks for",
}


def report_data(
    folders: Sequence[Path], progress: Callable[[int, int], None] = lambda *_: None
) -> ReportData:
    """The data of the finished runs in `folders`, whatever they measured: those that may be compared
    are a section.

    `progress`: is told how many runs have been read, of how many. One is in memory at a time.

    Raises UsageError where there is no run, or one twice, RunFolderError for one that isn't finished,
    or whose record isn't what its scores give.
    """
    if not folders:
        raise UsageError("a report of no runs")
    check_folders(folders)
    # What belongs together is known before a score is read; `summarized` believes none of it.
    records = [checked_record(folder, sealed=False) for folder in folders]
    groups, read = grouped(records), 0
    sections: list[list[Summary]] = []
    places: list[list[Place]] = []
    for group in groups:
        places.append(worst_places([records[i] for i in group]))
        summaries = []
        for i in group:
            summaries.append(summarized(folders[i], places[-1]))
            require_same(summaries[0].run, summaries[-1].run)
            read += 1
            progress(read, len(folders))
        sections.append(_ranked(summaries))
    names = _names(sections)
    made = [
        _section(number, summaries, names, at)
        for number, (summaries, at) in enumerate(zip(sections, places, strict=True))
    ]
    times = [r["provenance"]["finished"] for section in made for r in section["runs"]]
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "title": _title(made),
        "finished": max((time for time in times if time), default=None),
        "made_with": __version__,
        "sections": made,
    }


def _reference(summaries: Sequence[Summary]) -> Mapping[str, Any] | None:
    """The record of a run against the section's base, None where there is none."""
    return next((s.run.record for s in summaries if s.compared is not None), None)


def _is_base(summary: Summary, compared: Mapping[str, Any] | None) -> bool:
    return compared is not None and is_base(summary.run.record, compared["reference"])


def _ranked(summaries: Sequence[Summary]) -> list[Summary]:
    """Runs of the base first, then by KLD, then those without by PPL."""
    compared = _reference(summaries)

    def key(summary: Summary) -> tuple[bool, bool, float]:
        metrics = summary.run.record["metrics"]
        kld = summary.compared is not None
        value = metrics["kld" if kld else "ppl"]["value"]
        return not _is_base(summary, compared), not kld, value

    return sorted(summaries, key=key)


def _names(sections: Sequence[Sequence[Summary]]) -> dict[str, str]:
    """Source of every model → its name, the same in all sections."""
    sources: dict[str, None] = {}
    for summaries in sections:
        for summary in summaries:
            sources.setdefault(summary.run.record["checkpoint"]["source"])
        if (compared := _reference(summaries)) is not None:
            sources.setdefault(source_of(compared))
    return dict(zip(sources, short_names(list(sources)), strict=True))


def _section(
    number: int, summaries: Sequence[Summary], names: Mapping[str, str], places: Sequence[Place]
) -> Section:
    compared = _reference(summaries)
    models = list(names)
    by_id = {f"s{number}r{i}": summary for i, summary in enumerate(summaries)}
    records = {id_: summary.run.record for id_, summary in by_id.items()}
    bases = [id_ for id_, summary in by_id.items() if _is_base(summary, compared)]
    labels = _labels(summaries, names)
    blocks = cut(summaries)
    ends = {id_: blocks.metrics(s.units) for id_, s in by_id.items()}
    runs = [
        run_of(
            s, id_, models.index(s.run.at("checkpoint.source")), label, ends[id_],
            of_base=id_ in bases,
        )
        for (id_, s), label in zip(by_id.items(), labels, strict=True)
    ]  # fmt: skip
    base = None
    if compared is not None:
        own = ends[next(id_ for id_, record in records.items() if record is compared)]
        base = base_of(compared, names[source_of(compared)], bases[0] if bases else None, own)
    ranked = {id_: summary for id_, summary in by_id.items() if id_ not in bases}
    tests = matrices(ranked, blocks)
    # A base against itself is 0 everywhere.
    against = {id_: s.compared for id_, s in ranked.items() if s.compared is not None}
    texts = {token: text for s in summaries for token, text in s.texts.items()}
    folders = {id_: Path(summary.run.folder) for id_, summary in by_id.items()}
    # All records of a section have these alike.
    one = summaries[0].run.record
    return {
        "id": f"s{number}",
        "title": _section_title(one, base),
        "text": one["corpus"],
        "text_words": text_words(one["corpus"]),
        "protocol": one["protocol"],
        "protocol_words": protocol_words(one["protocol"]),
        "plan": one["plan"],
        "base": base,
        "ranked_by": "ppl" if compared is None else "kld",
        "blocks": len(blocks.weights),
        "block_length": blocks.chosen.tokens,
        "interval_words": _interval_words(blocks),
        "runs": runs,
        "frontiers": frontiers(runs, base, tests),
        "tail": tails(against),
        "charts": [*charts(against, records), *recipe_curves(folders)],
        "matrices": tests,
        "worst": side_by_side(places, against, records, texts),
        "tasks": {id_: record["tasks"] for id_, record in records.items() if "tasks" in record},
        "attributions": attributions(folders),
        "differing": differing([s.run for s in summaries], labels),
        "notes": _notes(summaries, runs),
    }


def _labels(summaries: Sequence[Summary], names: Mapping[str, str]) -> list[str]:
    """The models' names, with the run's folder where a model was measured twice in a section."""
    found = [names[s.run.at("checkpoint.source")] for s in summaries]
    folders = [s.run.folder.resolve().name for s in summaries]
    return [
        f"{name} ({folder if folders.count(folder) == 1 else summary.run.folder})"
        if found.count(name) > 1
        else name
        for name, folder, summary in zip(found, folders, summaries, strict=True)
    ]


def _section_title(record: Mapping[str, Any], base: Base | None) -> str:
    words = f"{record['corpus']['name']}, {record['protocol']['name']}"
    return f"{words}, against {base['name']}" if base else words


def _title(sections: Sequence[Section]) -> str:
    """What the report is of: the base, where there is one for all."""
    names = {section["base"]["name"] for section in sections if section["base"]}
    if len(names) == 1:
        return f"Quants of {names.pop()}"
    runs = sum(len(section["runs"]) for section in sections)
    return f"{runs} run{'s' * (runs != 1)}"


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
        f"{summary.run.folder} {UNHASHED}"
        for summary in summaries
        if not has_hashes(summary.run.record)
    ]
    notes += [
        f"{run['name']}: {unlike}"
        for summary, run in zip(summaries, runs, strict=True)
        if (unlike := unlike_dtypes(summary.run.record))
    ]
    without = {run["kld"]["note"] for run in runs if run["kld"] and run["kld"]["note"]}
    return notes + [f"no interval: {note}" for note in sorted(without)]
