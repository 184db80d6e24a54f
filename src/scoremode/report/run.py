"""The document of a finished run: of a perplexity, a comparison, tasks, a reference or a shard."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scoremode.report.divergence import kld_document, worst_facts
from scoremode.report.document import (
    Column,
    Document,
    Facts,
    Table,
    counted,
    data,
    interval_text,
    number,
    printable,
    words,
)
from scoremode.report.facts import (
    caveats,
    headline_rows,
    measured_rows,
    page_rows,
    place_rows,
    protocol_words,
    ran_rows,
    text_words,
)
from scoremode.report.groups import group_parts
from scoremode.report.runs import run_data

_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_TASK_COLUMNS = (
    words("task", "task"),
    number("questions", "questions", ",d"),
    words("metric", "metric"),
    number("value", "value", ".4f"),
    number("±", "stderr", ".4f"),
)
_PAIRED_COLUMNS = (
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


def finished_document(
    record: Mapping[str, Any], folder: Path, *, verbose: bool = False, worst: bool = False
) -> Document:
    """The table of the run or shard in `folder`; with `worst` its worst targets also without
    `verbose`."""
    if record["status"] == "shard":
        return shard_document(record, folder, verbose=verbose)
    if "tasks" in record:
        return tasks_document(record, folder, verbose=verbose)
    if "kld" in record["metrics"]:
        found = kld_document(record, folder, verbose=verbose)
        if worst and not verbose:
            return Document((*found.parts, worst_facts(record["worst"])), found.data)
        return found
    if "kept" in record:
        return reference_document(record, folder, verbose=verbose)
    return run_document(record, folder, verbose=verbose)


def shard_document(record: Mapping[str, Any], folder: Path, *, verbose: bool = False) -> Document:
    """The shard in `folder`; `verbose`: with where it ran, and how long."""
    shard = record["shard"]
    (first, behind), (begin, end) = shard["passes"], shard["windows"]
    number, of = shard["number"], shard["of"]
    whole = "it is all of the run" if of == 1 else "a part of the text"
    rows = [
        ("shard", f"{number} of {of}, done"),
        ("no metrics", f"{whole}: scoremode merge makes the run of {counted(of, 'shard')}"),
        ("model", record["checkpoint"]["source"]),
        *_shard_base(record),
        ("passes", f"{first + 1} to {behind} of {shard['of_passes']:,}"),
        ("windows", f"{begin + 1:,} to {end:,} of {record['plan']['windows']:,}"),
        ("targets", f"{shard['targets']:,} of {record['plan']['scored']:,}"),
        ("text", text_words(record["corpus"])),
        ("protocol", protocol_words(record["protocol"])),
        *caveats(record),
        *(ran_rows(record) if verbose else ()),
        ("record", str(folder / "record.json")),
    ]
    plain = {
        "folder": str(folder),
        "model": record["checkpoint"]["source"],
        "reference": (record.get("reference") or {}).get("source"),
        "shard": number,
        "of": of,
        "first_pass": first,
        "passes": behind - first,
        "of_passes": shard["of_passes"],
        "first_window": begin,
        "windows": end - begin,
        "targets": shard["targets"],
    }
    table = Table(tuple(map(data, plain)), (tuple(plain.values()),))
    return Document((Facts(tuple(rows), frozenset(("shard", "model"))),), table)


def _shard_base(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = record.get("reference")
    return [] if found is None else [("base", str(found["source"]))]


def run_document(record: Mapping[str, Any], folder: Path, *, verbose: bool = False) -> Document:
    """The result of one run; `verbose`: with all that made it, behind."""
    ppl = record["metrics"]["ppl"]
    first = [
        *page_rows(record),
        ("PPL", f"{ppl['value']:.6f}   {interval_text(ppl)}"),
        *headline_rows(record),
        *place_rows(folder, verbose=verbose),
    ]
    groups = [*group_parts(record, "label"), *group_parts(record, "depth")]
    shown = Facts(tuple(first), frozenset(("PPL", "model")))
    if not verbose:
        return Document((shown, *groups), run_data(record, folder))
    details = [*measured_rows(record), *ran_rows(record)]
    # Where the tokenizer tells how many bytes its tokens are.
    if found := record["metrics"].get("bits_per_byte"):
        # Of pages, whose own bytes are others, the protocol has one as well.
        name = "bits per detokenized byte" if "pages" in record else "bits per byte"
        details.insert(0, (name, f"{found['value']:.6f}   {interval_text(found)}"))
    groups += group_parts(record, "turn")
    return Document((shown, *groups, Facts(tuple(details))), run_data(record, folder))


def reference_document(
    record: Mapping[str, Any], folder: Path, *, verbose: bool = False
) -> Document:
    """The result of a run that was kept as a reference."""
    states, head = record["kept"]["states"], record["kept"]["head"]
    size = states["rows"] * states["width"] * _BYTES[states["dtype"]]
    where = "with them" if head["file"] else f"left in {head['checkpoint']['path']}"
    kept = (
        ("states", f"{states['rows']:,} of {states['width']:,} {states['dtype']}, "
                   f"{size / 1e9:.3f} GB"),
        ("head", f"{head['vocabulary']:,} × {head['width']:,} {head['dtype']}, {where}"),
        ("reference", str(folder)),
    )  # fmt: skip
    document = run_document(record, folder, verbose=verbose)
    return Document((*document.parts, Facts(kept)), document.data)


def tasks_document(record: Mapping[str, Any], folder: Path, *, verbose: bool = False) -> Document:
    """The metrics of a run's tasks and groups; against a base those of both, and what became of their
    answers, question by question."""
    section = record["tasks"]
    rows = _section_rows(section)
    has_base = _has_base(section)
    table = Table(_TASK_COLUMNS + (_PAIRED_COLUMNS if has_base else ()), tuple(
        row if has_base else row[: len(_TASK_COLUMNS)] for row in rows
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
    columns = (
        _TASK_COLUMNS[0],
        _TASK_COLUMNS[2],
        words("model", "model"),
        _TASK_COLUMNS[1],
        *_TASK_COLUMNS[3:],
    )
    if any(_has_base(section) for _, section in sections):
        columns += _PAIRED_COLUMNS
    return Table(columns, tuple(row[: len(columns)] for row in rows)).filled()


def _section_rows(section: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for name, group in section["groups"].items():
        rows += _metric_rows(
            name, sum(section["tasks"][t]["questions"] for t in group["tasks"]), group
        )
    for name, task in section["tasks"].items():
        rows += _metric_rows(name, task["questions"], task)
    return rows


def _has_base(section: Mapping[str, Any]) -> bool:
    return any("base" in task for task in section["tasks"].values())


def _metric_rows(name: str, questions: int, part: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
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
