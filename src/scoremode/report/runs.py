"""Tables with a line a run: finished ones, running ones, and those that a sweep would run."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scoremode.report.document import (
    LAYER_BITS,
    Column,
    Document,
    Facts,
    Said,
    Table,
    Verdict,
    cell_of,
    counted,
    data,
    measured,
    metric_columns,
    metric_of,
    number,
    printable,
    size,
    words,
)
from scoremode.results.comparison.ranking import base_row, run_row
from scoremode.results.labels import label_of
from scoremode.results.metrics import MetricSpec, Shown, shown
from scoremode.results.record.definition import Record
from scoremode.results.record.section import Metric
from scoremode.results.scores import Bounds


def runs_table(
    rows: Iterable[Mapping[str, Any]],
    further: Mapping[str, Column] | None = None,
) -> Table:
    """Lines of runs (`results.comparison.ranking`), in their order; a base's has no KLD.

    `further`: columns behind the others, by their names in the rows.
    """
    rows, further = list(rows), further or {}
    # Of the protocol lm-eval alone.
    words_too = {"word_ppl": measured("word PPL", "word_ppl", ".4f")}
    if any("word_ppl" in row for row in rows):
        further = words_too | dict(further)
    # Of a served model alone.
    metrics = [
        (metric, own)
        for metric, own in shown("runs")
        if metric.needs is not Bounds or any(row.get(metric.key) for row in rows)
    ]
    # Tied runs have several.
    several = Column("rank", "rank", ranks_words, lambda both: both, ("_first", "_last"), 9)
    columns = (
        data("rank"),
        words("model", "label"),
        *([several] if any("ranks" in row for row in rows) else []),
        words(None, "model"),
        words(None, "folder"),
        data("is_base"),
        data("n"),
        *(column for metric, own in metrics for column in _columns_of(metric, own)),
        HALF_LIFE,
        number(LAYER_BITS, "bits_per_weight", ".3f", 4),
        size(row["gib"] for row in rows),
        *further.values(),
    )
    ranked = columns[2] is several
    return Table(
        columns,
        tuple(
            (*_cells(row, metrics, has_ranks=ranked), *(cell_of(row.get(k)) for k in further))
            for row in rows
        ),
    )


HALF_LIFE = number("half-life", "half_life_tokens", "d", 3)


def half_life_cell(found: Mapping[str, Any] | None) -> int | Said | None:
    """A half-life in tokens, or how many it is longer than."""
    return None if found is None else found["tokens"] or Said(f">{found['longest']}")


def ranks_words(both: Sequence[int] | None) -> str:
    """`2`, or `2–4` of a run that is tied; nothing of one that is not ranked."""
    if both is None:
        return "–"
    first, last = both
    return f"{first}" if first == last else f"{first}–{last}"


def run_data(record: Record, folder: Path) -> Table:
    """The run as a line of a table, its base as another."""
    base = base_row(record)
    return runs_table([*([base] if base else []), run_row(record, folder, label_of(record))])


def _columns_of(metric: MetricSpec, own: Shown) -> tuple[Column, ...]:
    if metric.percent is None:
        return metric_columns(metric, own)
    # Of `distribution`, which has no interval.
    return (number(own.heading, metric.data_key, own.form),)


def _cells(
    row: Mapping[str, Any], metrics: Sequence[tuple[MetricSpec, Shown]], *, has_ranks: bool
) -> tuple[Any, ...]:
    cells: list[Any] = []
    for metric, own in metrics:
        value = cell_of(row.get(metric.key))
        is_base = metric.key == "ppl_ratio" and row["is_base"] and value is None
        cells.append(Said("base") if is_base else value)
        if own.interval:
            cells.append(value and value.ci95)
    return (
        *(row.get("rank"), row["label"]),
        *([row.get("ranks")] if has_ranks else []),
        *(row["model"], row["folder"]),
        *(row["is_base"], row["ppl"]["n"]),
        *(*cells, half_life_cell(row["half_life"])),
        *(row["bits_per_weight"], row["gib"]),
    )


def status_document(states: Sequence[Mapping[str, Any]]) -> Document:
    """The document of what `results.folders.status` says of each run."""
    table = Table(_columns(states), tuple(_row(state) for state in states))
    said = []
    for state in states:
        if problem := state.get("problem"):
            said.append((_name(state), problem))
        if command := state.get("resume"):
            said.append((_name(state), f"goes on with: {command}"))
    shown = table.filled()
    # Of a sweep that was ended all models that wait have the same to say.
    facts = tuple(dict.fromkeys(said))
    return Document((shown, Facts(facts)) if facts else (shown,), table, _progress(states))


def _progress(states: Sequence[Mapping[str, Any]]) -> Verdict:
    """How many runs are in which state, and how long the running ones take."""
    counts = Counter("done" if state["state"] == "shard" else state["state"] for state in states)
    text = f"{counts.pop('done', 0)} of {counted(len(states), 'run')} done"
    text += "".join(f", {n} {state}" for state, n in counts.items())
    left = [state["seconds_left"] for state in states if state.get("seconds_left") is not None]
    if left:
        text += f"; {_duration(max(left))} left for what is running"
    problems = {"failed", "invalid", "damaged"}
    return Verdict(text, False if problems & counts.keys() else None)


def _name(state: Mapping[str, Any]) -> str:
    """The name of a line below the table: a run's folder, a sweep's, or the model that has no run."""
    return state["label"] if state["state"] == "failed" else _last(state["folder"])


def _last(folder: str) -> str:
    """A folder's name, which tells it from its neighbours."""
    return printable(Path(folder).name or folder)


def _shown(form: str, sign: str) -> Callable[[Metric], str]:
    """A metric with half of its interval's width behind it, the larger half."""

    def show(metric: Metric) -> str:
        value, ends = metric.value, metric.ci95
        text = f"{sign}{value:{form}}"
        if ends is None or not value:
            return text
        half = max(ends[1] - value, value - ends[0]) / abs(value)
        return f"{text} ±{100 * half:.2g} %"

    return show


def _metric(head: str, key: str, form: str, importance: int, sign: str = "") -> Column:
    return replace(measured(head, key, form, importance=importance), show=_shown(form, sign))


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


_COLUMNS = (
    Column("run", "folder", _last),
    words("state", "state", 9),
    words("model", "label"),
    data("model"),
    data("reference"),
    data("protocol"),
    data("text"),
    Column(
        "windows",
        "windows",
        lambda both: f"{both[0]:,} of {both[1]:,}",
        lambda both: both,
        ("", "_planned"),
        importance=7,
    ),
    Column("a second", "windows_per_second", lambda rate: f"{rate:.3g}", importance=3),
    Column("left", "seconds_left", _duration, importance=8),
    _metric("PPL", "ppl", ".4f", 6),
    _metric("PPL / base", "ppl_ratio", ".4f", 5, "×"),
    _metric("KLD", "kld_nats", ".5f", 7),
)


def _columns(states: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """The columns, with a heading for protocol and text where runs of several are shown: without, one
    would take their numbers for comparable."""
    several = {key for key in ("protocol", "text") if len({s[key] for s in states if key in s}) > 1}
    return tuple(words(c.key, c.key, 7) if c.key in several else c for c in _COLUMNS)


def _state(state: Mapping[str, Any]) -> str:
    """The state, such as `running` or `running, shard 2/4`; of a shard that is done `shard 2/4`."""
    if (shard := state.get("shard")) is None:
        return state["state"]
    begin = "" if state["state"] == "shard" else f"{state['state']}, "
    return f"{begin}shard {shard}"


def _row(state: Mapping[str, Any]) -> tuple[Any, ...]:
    found = state.get("estimates") or {}
    return (
        state["folder"],
        _state(state),
        state.get("label"),
        state.get("model"),
        state.get("reference"),
        state.get("protocol"),
        state.get("text"),
        (state["windows"], state["of"]) if "windows" in state else None,
        state.get("windows_per_second"),
        state.get("seconds_left"),
        *(metric_of(found.get(name)) for name in ("ppl", "ppl_ratio", "kld")),
    )


def foreseen_document(value: Mapping[str, Any]) -> Document:
    """The document of `runs.sweep.foreseen.foresee`'s findings."""
    rows = value["rows"]
    columns = (
        words("model", "label"),
        words(None, "model"),
        number("text", "pair", "d", 8),
        words("would", "state", 9),
        words("from", "source"),
        number("GiB to read", "gib", ".3f"),
        number("s", "seconds", ".0f"),
        words("why not", "error", 9),
    )
    if not any(row["error"] for row in rows):
        columns = columns[:-1]
    cells = [
        (
            f"{row['label']} (the base)" if row["is_base"] else row["label"],
            row["model"],
            row["pair"] + 1,
            row["state"],
            row["source"],
            None if row["bytes"] is None or row["state"] == "done" else row["bytes"] / 2**30,
            row["seconds"],
            row["error"],
        )[: len(columns)]
        for row in rows
    ]
    table = Table(columns, tuple(cells))
    seconds = value["seconds"]
    took = (
        "not known: no finished run is there to tell" if seconds is None else _sweep_time(seconds)
    )
    facts = [
        ("to run", f"{value['to_run']} of {len(rows)}"),
        ("to read", f"{value['bytes'] / 2**30:.3f} GiB"),
        ("time", took),
        ("into", value["output"]),
    ]
    if len(value["pairs"]) > 1:
        facts = [(f"text {i}", t) for i, t in enumerate(value["pairs"], 1)] + facts
    if value["download"]:
        facts.insert(-2, ("to fetch", f"{value['download'] / 2**30:.3f} GiB from the hub"))
    return Document((table, Facts(tuple(facts))), table)


def _sweep_time(seconds: float) -> str:
    whole = round(seconds)
    text = f"{whole} s" if whole < 120 else f"{whole // 60} min"
    return f"{text}, by what earlier runs there took"
