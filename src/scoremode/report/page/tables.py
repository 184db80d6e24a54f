"""The page's tables as markup: readable without a script, sorted and copied with one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scoremode.report.page.definition import (
    Attribution,
    Chart,
    Difference,
    Matrix,
    Measured,
    Run,
    Section,
    Word,
)
from scoremode.report.page.figures import Row, quants
from scoremode.report.page.style import (
    SAID,
    SHAPES,
    bits_words,
    element,
    interval_words,
    joined,
    kld_words,
    percent,
    size_words,
    text,
)
from scoremode.report.run import tasks_of_runs
from scoremode.results.metrics import METRIC, MetricSpec, Shown, shown

__all__ = [
    "attribution_table",
    "groups_table",
    "key",
    "matrix_table",
    "ranking_table",
    "table",
    "tasks_table",
    "worst_table",
]

# Rows of the worst tokens: more are in the data.
_PLACES = 20
# From how many times a run's mean on a cell has the next deeper colour.
_HEATS = (0.5, 0.8, 1.25, 2.0, 4.0)
_PATHS = {
    "circle": "M-4.4,0a4.4,4.4 0 1,0 8.8,0a4.4,4.4 0 1,0 -8.8,0",
    "square": "M-4,-4h8v8h-8z",
    "triangle-up": "M0,-4.6L5,4h-10z",
    "diamond": "M0,-5.4L4,0L0,5.4L-4,0z",
    "cross": "M-1.7,-5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z",
    "triangle-down": "M0,4.6L5,-4h-10z",
    "triangle-right": "M4.6,0L-4,5v-10z",
}


def key(tint: int) -> str:
    """The mark that a run has in the charts."""
    path = element("path", d=_PATHS[SHAPES[tint]], class_=f"tint{tint}")
    return element("svg", path, class_="key", viewBox="-6 -6 12 12", aria_hidden="true")


def ranking_table(section: Section, who: dict[str, Row], name: str) -> str:
    """All runs in the order of the ranking: sizes, metrics, and their intervals below them."""
    first, others = _ranked_metrics()
    heads = ["", "model", first[1].heading, "size", "bits/weight, file", "bits/weight, layers"]
    heads += [own.heading for _, own in others]
    body = []
    base = section["base"]
    if base is not None and base["run"] is None:
        head = element("th", f"{text(base['name'])} (base)", scope="row", class_="name left",
                       title=base["source"])  # fmt: skip
        cells = [_plain("–", 0), head, *_ranked_cells(base)]
        body.append(element("tr", "".join(cells), class_="base"))
    rank = 0
    for run in section["runs"]:
        rank += not run["is_base"]
        mark = "" if run["is_base"] else key(who[run["id"]]["tint"])
        head = element("th", mark + text(run["name"]), scope="row", class_="name left",
                       title=run["source"])  # fmt: skip
        place = _plain("–", 0) if run["is_base"] else _plain(str(rank), rank)
        kind = "base" if run["is_base"] else None
        cells = [place, head, *_ranked_cells(run)]
        body.append(element("tr", "".join(cells), data_run=run["id"], class_=kind))
    return table(name, heads, body, "sortable", left=1)


def _ranked_metrics() -> tuple[tuple[MetricSpec, Shown], list[tuple[MetricSpec, Shown]]]:
    """KLD, by which runs are ranked, and the metrics behind the sizes, perplexities last."""
    metrics = sorted(shown("page"), key=lambda pair: pair[0].kind in ("perplexity", "ratio"))
    return metrics[0], metrics[1:]


def _ranked_cells(run: Mapping[str, Any]) -> list[str]:
    """Cells of a run, or of a base, which lacks what is against a base."""

    def cell(metric: MetricSpec, own: Shown) -> str:
        return _metric(run.get(metric.key), SAID[metric.kind], below=own.interval)

    first, others = _ranked_metrics()
    return [
        cell(*first),
        _plain(size_words(run["bytes"]), run["bytes"]),
        _plain(bits_words(run["bits_file"]), run["bits_file"]),
        _plain(bits_words(run["bits_body"]), run["bits_body"]),
        *(cell(*pair) for pair in others),
    ]


def table(
    name: str,
    heads: Sequence[str],
    body: Sequence[str],
    kind: str,
    caption: str = "",
    left: int = 0,
) -> str:
    """A table in a box of its own to scroll in. The columns up to `left` are flush left."""
    cells = [
        element("th", text(head), scope="col", class_="left" if i <= left else None)
        for i, head in enumerate(heads)
    ]
    parts = [
        element("caption", caption) if caption else "",
        element("thead", element("tr", "".join(cells))),
        element("tbody", joined(body)),
    ]
    whole = element("table", joined(parts), id=name, class_=kind)
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=name)


def groups_table(chart: Chart, runs: Sequence[Run], who: dict[str, Row], name: str) -> str:
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
        mark = key(who[run["id"]]["tint"])
        cells = [element("th", mark + text(run["name"]), scope="row", class_="name left")]
        cells.append(_metric(run["kld" if is_kld else metric], say, below=False))  # type: ignore[literal-required]
        for y, low, high, n in zip(one["y"], one["lower"], one["upper"], one["n"], strict=True):
            shown = None if y is None else _measured(y, low, high, n)
            kind = _heat(y, run["kld"]["value"]) if is_kld and y is not None else None
            cells.append(_metric(shown, say, below=not is_kld, kind=kind))
        body.append(element("tr", "".join(cells), data_run=run["id"]))
    return table(name, heads, body, "heat sortable stuck")


def _measured(value: float, lower: float | None, upper: float | None, n: int) -> Measured:
    return {"value": value, "lower": lower, "upper": upper, "n": n, "note": None}


def _heat(value: float, mean: float) -> str:
    times = value / mean if mean > 0 else 0.0
    return f"h{sum(times > bound for bound in _HEATS)}"


def matrix_table(matrix: Matrix, who: dict[str, Row], name: str) -> str:
    """A matrix of differences: each cell is the row's run less the column's."""
    tests = {(test["a"], test["b"]): (test, 1) for test in matrix["pairs"]}
    tests |= {(test["b"], test["a"]): (test, -1) for test in matrix["pairs"]}
    body = []
    for place, run in enumerate(matrix["order"], 1):
        one = who[run]
        head = f"{place}&ensp;{key(one['tint'])}{text(one['short'])}"
        cells = [element("th", head, scope="row", class_="name left", title=one["name"])]
        for other in matrix["order"]:
            found = tests.get((run, other))
            cells.append(_difference(*found) if found else element("td", "", class_="same"))
        body.append(element("tr", "".join(cells), data_run=run))
    heads = ["row less column", *(str(i) for i, _ in enumerate(matrix["order"], 1))]
    return table(name, heads, body, "matrix stuck")


def _difference(test: Difference, sign: int) -> str:
    value, ends = sign * test["value"], "no interval"
    if test["lower"] is not None and test["upper"] is not None:
        low, high = sorted((sign * test["lower"], sign * test["upper"]))
        ends = f"95 % [{_signed(low)}, {_signed(high)}]"
    kind, words = "same", "·" if test["verdict"] == "not distinguishable" else "?"
    if test["verdict"] in ("lower", "higher"):
        kind, words = ("better" if value < 0 else "worse"), _signed(value)
    p = test["verdict"] if test["p_holm"] is None else f"p {test['p_holm']:.2g} (Holm)"
    return element("td", text(words), class_=kind, title=f"{_signed(value)}, {ends}, {p}")


def _signed(value: float) -> str:
    return f"{value:+.2g}".replace("-", "−")


def worst_table(section: Section, who: dict[str, Row], name: str) -> str:
    """The places of the text where a run is furthest off, and what every run said there."""
    shown = [run["id"] for run in quants(section)]
    heads = ["the text, and the token that came", "base", *(who[one]["short"] for one in shown)]
    body = []
    for fact in section["worst"][:_PLACES]:
        before = element("span", text((fact["context"] or "…")[-120:]), class_="context")
        target = element("span", _word(fact["target"]), class_="target")
        place = f"window {fact['window']}, position {fact['position']}"
        said = element("span", before + target, class_="token", dir="ltr")
        cells = [element("th", said + element("span", text(place), class_="ends"), scope="row")]
        cells.append(_guess(fact["base_top1"], fact["base_p"], None, same=True))
        there = {run: i for i, run in enumerate(fact["runs"])}
        for one in shown:
            if (i := there.get(one)) is None:
                cells.append(element("td", "–"))
                continue
            same = fact["top1"][i]["id"] == fact["base_top1"]["id"]
            cells.append(_guess(fact["top1"][i], fact["p"][i], fact["kld"][i], same=same))
        body.append(element("tr", "".join(cells)))
    return table(name, heads, body, "words stuck")


def tasks_table(section: Section, name: str) -> str:
    """Each metric of each task, a row a run."""
    runs = [(run["name"], run["id"]) for run in section["runs"]]
    made = tasks_of_runs(
        [(of, section["tasks"][id_]) for of, id_ in runs if id_ in section["tasks"]]
    )
    assert made is not None
    body = []
    for row in made.rows:
        shown = [
            "–" if value is None else column.show(value)
            for column, value in zip(made.columns, row, strict=True)
        ]
        cells = [element("th", text(shown[0]), scope="row")]
        cells += [element("td", text(each)) for each in shown[1:]]
        body.append(element("tr", "".join(cells)))
    return table(name, [column.head or "" for column in made.columns], body, "numbers", left=2)


def attribution_table(of: Attribution, name: str) -> str:
    """A heat map: a row a layer, a column a kind of module; deeper, further above the mean cell."""
    values = [cell["value"] for row in of["rows"] for cell in row["cells"] if cell is not None]
    mean, body = sum(values) / len(values), []
    for row in of["rows"]:
        cells = [element("th", text(row["name"]), scope="row", class_="name left")]
        for cell in row["cells"]:
            kind = None if cell is None else _heat(cell["value"], mean)
            cells.append(_metric(cell, kld_words, below=False, kind=kind))
        body.append(element("tr", "".join(cells)))
    return table(name, ["", *of["heads"]], body, "heat sortable stuck")


def _word(word: Word) -> str:
    return text(f"id {word['id']}") if word["text"] is None else element("bdi", text(word["text"]))


def _guess(top1: Word, p: float, kld: float | None, *, same: bool) -> str:
    """A cell with a model's likeliest token, its KLD there, and the probability of the token that
    came."""
    parts = [element("span", _word(top1), class_="token" if same else "token other")]
    if kld is not None:
        parts.append(element("span", f"KLD {text(kld_words(kld))}", class_="ends"))
    parts.append(element("span", f"p {p:.2g}", class_="ends"))
    return element("td", "".join(parts))


def _plain(words: str, value: float | None) -> str:
    return element("td", text(words), data_value="" if value is None else repr(value), title=value)


def _metric(
    metric: Measured | None,
    words: Callable[[float], str],
    *,
    below: bool = True,
    kind: str | None = None,
) -> str:
    """A number over its interval; the whole of it in the title."""
    if metric is None:
        return element("td", "–", data_value="")
    ends, shown = interval_words(metric, words), words(metric["value"])
    content = text(shown) + (element("span", text(ends), class_="ends") if ends and below else "")
    return element(
        "td",
        content,
        data_value=repr(metric["value"]),
        data_copy=f"{shown} {ends}".strip() if below else None,
        title=f"{metric['value']!r} {ends}".strip() if below else f"{shown} {ends}".strip(),
        class_=kind,
    )
