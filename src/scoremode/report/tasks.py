"""Tasks of lm-evaluation-harness, as a table: of one run, and of several."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scoremode.report.document import Column, Document, Facts, Table, number, printable, words
from scoremode.report.facts import headline_rows, measured_rows, place_rows, ran_rows

__all__ = ["tasks_document", "tasks_of_runs"]

_COLUMNS = (
    words("task", "task"),
    number("questions", "questions", ",d"),
    words("metric", "metric"),
    number("value", "value", ".4f"),
    number("±", "stderr", ".4f"),
)
_PAIRED = (
    number("base", "base", ".4f"),
    number("change", "change", "+.4f"),
    Column(
        "95 %",
        "change_ci95",
        lambda ends: f"[{ends[0]:+.4f}, {ends[1]:+.4f}]",
        lambda ends: tuple(ends),
        ("_low", "_high"),
    ),
    number("lost", "lost", ",d"),
    number("gained", "gained", ",d"),
    number("p", "mcnemar_p", ".2g"),
    number("KLD", "kld", ".3g"),
)


def tasks_document(record: Mapping[str, Any], folder: Path, *, verbose: bool = False) -> Document:
    """The metrics of a run's tasks and groups; against a base those of both, and what became of their
    answers, question by question."""
    section = record["tasks"]
    rows = _section_rows(section)
    has_base = _has_base(section)
    table = Table(_COLUMNS + (_PAIRED if has_base else ()), tuple(
        row if has_base else row[: len(_COLUMNS)] for row in rows
    ))  # fmt: skip
    asked = section["harness"]
    how = [f"lm-evaluation-harness {asked['lm_eval']}"]
    how += [f"the first {asked['limit']:g} questions"] if asked["limit"] is not None else []
    how += [f"{asked['num_fewshot']} examples"] if asked["num_fewshot"] is not None else []
    how += ["by the model's chat template"] if asked["chat"] else []
    facts = [
        *headline_rows(record),
        ("asked", ", ".join(how)),
        ("requests", f"{record['requests']['rows']:,} in {record['plan']['windows']:,} windows, "
                     f"{record['plan']['scored']:,} targets"),
        *place_rows(folder, verbose=verbose),
    ]  # fmt: skip
    parts: list[Any] = [table.filled(), Facts(tuple(facts))]
    if verbose:
        parts.append(Facts((*measured_rows(record), *ran_rows(record))))
    return Document(tuple(parts), table)


def tasks_of_runs(sections: Sequence[tuple[str, Mapping[str, Any]]]) -> Table | None:
    """Each metric of each task in every run that has it, side by side; None where no run has tasks.

    `sections`: the name of each run, and its record's section `tasks`.
    """
    rows = []
    for model, section in sections:
        for task, questions, metric, *values in _section_rows(section):
            rows.append((task, metric, printable(model), questions, *values))
    if not rows:
        return None
    # Of one metric all runs, in the order in which they came: sorting keeps it.
    order = {key: i for i, key in enumerate(dict.fromkeys((row[0], row[1]) for row in rows))}
    rows.sort(key=lambda row: order[row[:2]])
    columns = (_COLUMNS[0], _COLUMNS[2], words("model", "model"), _COLUMNS[1], *_COLUMNS[3:])
    if any(_has_base(section) for _, section in sections):
        columns += _PAIRED
    return Table(columns, tuple(row[: len(columns)] for row in rows)).filled()


def _section_rows(section: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for name, group in section["groups"].items():
        rows += _rows(name, sum(section["tasks"][t]["questions"] for t in group["tasks"]), group)
    for name, task in section["tasks"].items():
        rows += _rows(name, task["questions"], task)
    return rows


def _has_base(section: Mapping[str, Any]) -> bool:
    return any("base" in task for task in section["tasks"].values())


def _rows(name: str, questions: int, part: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """A row for each metric of a task or group."""
    base, pairs = part.get("base"), part.get("pairs", {})
    kld = (part.get("kld") or {}).get("value")
    for metric, value in part["metrics"].items():
        pair = pairs.get(metric, {})
        difference = pair.get("difference", {})
        ends = difference.get("ci95")
        yield (
            name,
            questions,
            metric.removesuffix(",none"),
            value,
            part["stderr"].get(metric),
            None if base is None else base["metrics"].get(metric),
            difference.get("value"),
            None if ends is None else tuple(ends),
            pair.get("lost"),
            pair.get("gained"),
            pair.get("p"),
            kld,
        )
