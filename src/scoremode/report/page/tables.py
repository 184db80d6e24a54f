"""The page's tables: readable without a script, sorted and copied with one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scoremode.report.document import LAYER_BITS
from scoremode.report.page.definition import (
    Attribution,
    Chart,
    Difference,
    Matrix,
    Measured,
    Run,
    Section,
)
from scoremode.report.page.figures import Row as Who
from scoremode.report.page.style import (
    SAID,
    SHAPES,
    bits_words,
    interval_words,
    kld_words,
    percent,
    size_words,
)
from scoremode.report.run import tasks_of_runs
from scoremode.report.runs import ranks_words
from scoremode.results.metrics import METRIC, MetricSpec, Shown, shown
from scoremode.results.record.section import decode
from scoremode.results.record.text import Tasks
from scoremode.results.statistics.verdict import Verdict

# From how many times a run's mean on a cell has the next deeper colour.
_HEATS = (0.5, 0.8, 1.25, 2.0, 4.0)
# The place of the verdicts in the ranking: behind what they are on.
_JUDGED = 3
_PATHS = {
    "circle": "M-4.4,0a4.4,4.4 0 1,0 8.8,0a4.4,4.4 0 1,0 -8.8,0",
    "square": "M-4,-4h8v8h-8z",
    "triangle-up": "M0,-4.6L5,4h-10z",
    "diamond": "M0,-5.4L4,0L0,5.4L-4,0z",
    "cross": "M-1.7,-5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z",
    "triangle-down": "M0,4.6L5,-4h-10z",
    "triangle-right": "M4.6,0L-4,5v-10z",
}
# A tint's mark in the charts, as an SVG path.
MARKS = [_PATHS[shape] for shape in SHAPES]


@dataclass(frozen=True)
class Cell:
    """`text` behind a run's `place` and the mark of its `tint`, over `below` in small letters."""

    text: str
    below: str = ""
    # None is an attribute that is not there.
    attributes: Mapping[str, object] = field(default_factory=dict)
    tag: str = "td"
    tint: int | None = None
    place: int | None = None


@dataclass(frozen=True)
class Line:
    """A row of a table."""

    cells: Sequence[Cell]
    attributes: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table with the id `name` and the CSS classes `kind`; columns up to `left` are flush left."""

    name: str
    kind: str
    heads: Sequence[str]
    rows: Sequence[Line]
    left: int = 0


def ranking_table(section: Section, who: Mapping[str, Who], name: str) -> Table:
    """All runs in the order of the ranking, tied ones with the ranks that they may have: how they stand
    beside the base, sizes, metrics, and their intervals below them."""
    first, others = _ranked_metrics()
    key = {"kld": "kld", "ppl": "ppl_ratio"}[section["ranked_by"]]
    is_judged = any(run["verdicts"] for run in section["runs"])
    heads = ["", "model", first[1].heading, *(["beside the base"] if is_judged else [])]
    heads += ["size", "bits/weight, file", LAYER_BITS, *(own.heading for _, own in others)]
    body = []
    base = section["base"]
    if base is not None and base["run"] is None:
        head = _head(f"{base['name']} (base)", title=base["source"])
        cells = [_plain("–", 0), head, *_ranked_cells(base)]
        if is_judged:
            cells.insert(_JUDGED, Cell("–"))
        body.append(Line(cells, {"class": "base"}))
    rank = 0
    for run in section["runs"]:
        rank += not run["is_base"]
        tint = None if run["is_base"] else who[run["id"]]["tint"]
        place = _plain("–", 0) if run["is_base"] else _plain(ranks_words(run["ranks"]), rank)
        cells = [place, _head(run["name"], tint, title=run["source"]), *_ranked_cells(run)]
        if is_judged:
            found = [Verdict.of_json(one) for one in run["verdicts"] if one["metric"] == key]
            words = found[0].short if found else "–"
            cells.insert(_JUDGED, Cell(words, attributes={"class": "said"}))
        attributes = {"data-run": run["id"], "class": "base" if run["is_base"] else None}
        body.append(Line(cells, attributes))
    return Table(name, "sortable", heads, body, left=1)


def _head(text: str, tint: int | None = None, place: int | None = None, **more: object) -> Cell:
    attributes = {"scope": "row", "class": "name left", **more}
    return Cell(text, attributes=attributes, tag="th", tint=tint, place=place)


def _ranked_metrics() -> tuple[tuple[MetricSpec, Shown], list[tuple[MetricSpec, Shown]]]:
    """KLD, by which runs are ranked, and the metrics behind the sizes, perplexities last."""
    metrics = sorted(shown("page"), key=lambda pair: pair[0].kind in ("perplexity", "ratio"))
    return metrics[0], metrics[1:]


def _ranked_cells(run: Mapping[str, Any]) -> list[Cell]:
    """Cells of a run, or of a base, which lacks what is against a base."""

    def cell(metric: MetricSpec, own: Shown) -> Cell:
        return _metric(run.get(metric.key), SAID[metric.kind], below=own.interval)

    first, others = _ranked_metrics()
    return [
        cell(*first),
        _plain(size_words(run["bytes"]), run["bytes"]),
        _plain(bits_words(run["bits_file"]), run["bits_file"]),
        _plain(bits_words(run["bits_body"]), run["bits_body"]),
        *(cell(*pair) for pair in others),
    ]


def groups_table(chart: Chart, runs: Sequence[Run], who: Mapping[str, Who], name: str) -> Table:
    """A chart of categories as a table, a column a group; of KLD deeper, further above the run's
    mean."""
    bins, metric = chart["bins"] or [], chart["id"].rpartition(":")[2]
    is_kld = metric not in METRIC or metric == "kld"
    say = kld_words if is_kld else SAID[METRIC[metric].kind]
    heads = ["model", "all"]
    heads += [
        b["name"] + (f" ({percent(b['share'], 1)})" if b["share"] is not None else "") for b in bins
    ]
    series, body = {one["run"]: one for one in chart["series"]}, []
    for run in runs:
        if run["id"] not in series or run["kld"] is None:
            continue
        one = series[run["id"]]
        whole = run["kld" if is_kld else metric]  # type: ignore[literal-required]
        cells = [_head(run["name"], who[run["id"]]["tint"]), _metric(whole, say, below=False)]
        for y, low, high, n in zip(one["y"], one["lower"], one["upper"], one["n"], strict=True):
            if y is None:
                cells.append(_metric(None, say))
                continue
            made: Measured = {"value": y, "lower": low, "upper": high, "n": n, "note": None}
            kind = _heat(y, run["kld"]["value"]) if is_kld else None
            cells.append(_metric(made, say, below=not is_kld, kind=kind))
        body.append(Line(cells, {"data-run": run["id"]}))
    return Table(name, "heat sortable stuck", heads, body)


def _heat(value: float, mean: float) -> str:
    times = value / mean if mean > 0 else 0.0
    return f"h{sum(times > bound for bound in _HEATS)}"


def matrix_table(matrix: Matrix, who: Mapping[str, Who], name: str) -> Table:
    """A matrix of differences: each cell is the row's run less the column's."""
    tests = {(test["a"], test["b"]): (test, 1) for test in matrix["pairs"]}
    tests |= {(test["b"], test["a"]): (test, -1) for test in matrix["pairs"]}
    body = []
    for place, run in enumerate(matrix["order"], 1):
        one = who[run]
        cells = [_head(one["short"], one["tint"], place, title=one["name"])]
        for other in matrix["order"]:
            found = tests.get((run, other))
            cells.append(_difference(*found) if found else Cell("", attributes={"class": "same"}))
        body.append(Line(cells, {"data-run": run}))
    heads = ["row less column", *(str(i) for i, _ in enumerate(matrix["order"], 1))]
    return Table(name, "matrix stuck", heads, body)


def _difference(test: Difference, sign: int) -> Cell:
    value, ends = sign * test["value"], "no interval"
    if test["lower"] is not None and test["upper"] is not None:
        low, high = sorted((sign * test["lower"], sign * test["upper"]))
        ends = f"95 % [{_signed(low)}, {_signed(high)}]"
    kind, words = "same", "·" if test["verdict"] == "not distinguishable" else "?"
    if test["verdict"] in ("lower", "higher"):
        kind, words = ("better" if value < 0 else "worse"), _signed(value)
    p = test["verdict"] if test["p_holm"] is None else f"p {test['p_holm']:.2g} (Holm)"
    return Cell(words, attributes={"class": kind, "title": f"{_signed(value)}, {ends}, {p}"})


def _signed(value: float) -> str:
    return f"{value:+.2g}".replace("-", "−")


def tasks_table(section: Section, name: str) -> Table:
    """Each metric of each task, a row a run."""
    runs = [(run["name"], run["id"]) for run in section["runs"]]
    made = tasks_of_runs(
        [(of, decode(section["tasks"][id_], Tasks)) for of, id_ in runs if id_ in section["tasks"]]
    )
    assert made is not None
    body = []
    for row in made.rows:
        first, *others = (
            "–" if value is None else column.show(value)
            for column, value in zip(made.columns, row, strict=True)
        )
        head = Cell(first, attributes={"scope": "row"}, tag="th")
        body.append(Line([head, *map(Cell, others)]))
    return Table(name, "numbers", [column.head or "" for column in made.columns], body, left=2)


def attribution_table(of: Attribution, name: str) -> Table:
    """A heat map: a row a layer, a column a kind of module; deeper, further above the mean cell."""
    values = [cell["value"] for row in of["rows"] for cell in row["cells"] if cell is not None]
    mean, body = sum(values) / len(values), []
    for row in of["rows"]:
        cells = [_head(row["name"])]
        for cell in row["cells"]:
            kind = None if cell is None else _heat(cell["value"], mean)
            cells.append(_metric(cell, kld_words, below=False, kind=kind))
        body.append(Line(cells))
    return Table(name, "heat sortable stuck", ["", *of["heads"]], body)


def _plain(words: str, value: float | None) -> Cell:
    value_ = "" if value is None else repr(value)
    return Cell(words, attributes={"data-value": value_, "title": value})


def _metric(
    metric: Measured | None,
    words: Callable[[float], str],
    *,
    below: bool = True,
    kind: str | None = None,
) -> Cell:
    """A number over its interval; the whole of it in the title."""
    if metric is None:
        return Cell("–", attributes={"data-value": ""})
    ends, said = interval_words(metric, words), words(metric["value"])
    attributes = {
        "data-value": repr(metric["value"]),
        "data-copy": f"{said} {ends}".strip() if below else None,
        "title": f"{metric['value']!r} {ends}".strip() if below else f"{said} {ends}".strip(),
        "class": kind,
    }
    return Cell(said, ends if below else "", attributes)
