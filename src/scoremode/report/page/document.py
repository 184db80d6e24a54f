"""The whole page: one file of markup, styles, scripts and data, which asks no network for anything."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from scoremode.report.page.chart_types import Spec, packed, plotting, scripts
from scoremode.report.page.data import report_data
from scoremode.report.page.definition import Attribution, Provenance, ReportData, Run, Section
from scoremode.report.page.figures import (
    Figure,
    Row,
    figures,
    identities,
    own_rows,
    preferred,
    quants,
    write_plots,
)
from scoremode.report.page.style import (
    TINTS,
    colour_variables,
    element,
    interval_words,
    joined,
    kld_words,
    page_config,
    percent,
    ppl_words,
    ratio_words,
    script_json,
    size_words,
    text,
    visible,
)
from scoremode.report.page.tables import (
    attribution_table,
    groups_table,
    key,
    matrix_table,
    ranking_table,
    tasks_table,
    worst_table,
)
from scoremode.results.folders.paths import run_folders, write_output

__all__ = ["Part", "finding", "page", "section_part", "write_report"]


_HOW_TO_READ = (
    ("KLD", "How far a model's predictions are from its base's, over the whole vocabulary, in nats, "
            "averaged "
     "over all tokens. 0 is the same model. Errors can't cancel in it, as they do in a perplexity. "
     "If every "
     "token were drawn from the base itself, the perplexity would be exp(KLD) times the base's: for "
     "a KLD of "
     "0.02, 2 % above it."),
    ("99.9 % KLD", "One token in a thousand is further off than this: how bad the bad moments are."),
    ("PPL / base", "How much more surprising the text became. Only this ratio means something, and "
                   "only on "
     "this text; by luck with the text it can fall below 1."),
    ("same top-1", "How often both find the same token the likeliest: greedy decoding goes another way "
     "where they don't."),
    ("[low, high]", "A 95 % interval: how far luck with the text could have moved the number, by a "
                    "block "
     "bootstrap over the text, paired token by token against the base. To tell two runs apart look "
     "at the "
     "matrix: intervals that overlap don't answer it."),
    ("bits per weight", "Of the whole file, embeddings and head included; or of the quantized "
                        "layers alone, "
     "as formats are named. GiB is what has to be stored."),
    ("frontier", "The runs that no other beats: nothing measured here is both smaller and closer to "
                 "the base."),
)  # fmt: skip
_MOST = 7
# Groups that are drawn as lines have no table beside them.
_DRAWN = ("group:confidence", "group:position")
_MATRIX = {
    "kld": "The row's mean KLD less the column's (nats), where they differ beyond luck with the "
    "text: paired "
    "by token, corrected for the number of pairs (Holm, 5 %). Blue: the row is closer to the base.",
    "nll": "The row's mean nll less the column's (nats), where they differ beyond luck with the "
    "text: paired "
    "by token, corrected for the number of pairs (Holm, 5 %). Blue: the row predicts the text better.",
}


@dataclass(frozen=True)
class Part:
    """A section as markup, with the data and the specs of its charts, by their ids in it."""

    title: str
    anchor: str
    html: str
    who: dict[str, Row]
    rows: dict[str, list[Row]]
    charts: dict[str, list[Spec]]


def page(report: ReportData) -> str:
    """The page of a report's data. The same data gives the same bytes.

    Raises UsageError where the extra that draws charts is missing.
    """
    shown: ReportData = visible(report)
    alone = len(shown["sections"]) == 1
    parts = [section_part(section, alone=alone) for section in shown["sections"]]
    styles, bundle, script = colour_variables() + _asset("page.css"), scripts(), _asset("page.js")
    data = {
        "config": page_config(),
        "who": {part.anchor: part.who for part in parts},
        "rows": {part.anchor: part.rows for part in parts},
        "charts": {name: chart for part in parts for name, chart in part.charts.items()},
        # With its texts made visible: what a script may show has been made harmless.
        "report": shown,
    }
    policy = (
        f"default-src 'none'; script-src {_hashes(bundle, script)}; style-src {_hashes(styles)}"
    )
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        element("title", text(f"{shown['title']} · scoremode")),
        f"<style>{styles}</style>",
        f"<!--\n{_asset('licenses.txt')}-->",
    ]
    body = [
        _header(shown, parts, alone=alone),
        element("main", joined(part.html for part in parts)),
        _reading(),
        _measured(shown),
        _footer(shown),
        '<div id="tip" role="tooltip" hidden></div>',
        f'<script type="application/json" id="report-data">{script_json(data)}</script>',
        f'<script type="application/octet-stream" id="vega">{packed(bundle)}</script>',
        f'<script type="module">{script}</script>',
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n{joined(head)}\n</head>\n'
        f"<body>\n{joined(body)}\n</body>\n</html>\n"
    )


def _header(shown: ReportData, parts: Sequence[Part], *, alone: bool) -> str:
    themes = element("button", "theme", type="button", id="theme", class_="script-only")
    title = element(
        "div",
        element("p", "scoremode report", class_="kicker") + element("h1", text(shown["title"])),
    )
    said = element("p", text(finding(shown["sections"][0])), class_="finding") if alone else ""
    links = [(f"#{part.anchor}", part.title) for part in parts] if not alone else []
    links += [("#reading", "How to read this"), ("#measured", "What was measured, and how")]
    items = (element("li", element("a", text(words), href=href)) for href, words in links)
    contents = element("nav", element("ul", joined(items)), aria_label="Contents")
    return element("header", joined([element("div", title + themes, class_="top"), said, contents]))


def _reading() -> str:
    content = element("summary", "How to read this") + _pairs(list(_HOW_TO_READ))
    return element("details", content, id="reading", class_="printed")


def _measured(shown: ReportData) -> str:
    parts = [element("summary", "What was measured, and how")]
    for section in shown["sections"]:
        parts.append(element("h3", text(section["title"])) + _pairs(_section_facts(section)))
        for run in section["runs"]:
            content = element("summary", text(f"{run['name']} — {run['format']}"))
            parts.append(
                element("details", content + _pairs(_run_facts(run["source"], run["provenance"])))
            )
    return element("details", joined(parts), id="measured", class_="printed")


def _section_facts(section: Section) -> list[tuple[str, str]]:
    found = [(f"protocol: {name}", _said(value)) for name, value in section["protocol"].items()]
    found += [(f"text: {name}", _said(value)) for name, value in section["text"].items()]
    found += [(f"plan: {name}", _said(value)) for name, value in section["plan"].items()]
    if (base := section["base"]) is not None:
        found += [("base", base["source"]), ("base's sha256", base["sha256"])]
    for one in section["differing"]:
        values = "; ".join(f"{value}: {_said(names)}" for value, names in one["values"].items())
        found.append((f"runs differ in {one['field']}", values))
    return found


def _run_facts(source: str, of: Provenance) -> list[tuple[str, str]]:
    found = [("model", source), ("command", " ".join(of["command"] or ["–"]))]
    found += [("finished", of["finished"] or "–")]
    found += [(fact["label"], fact["value"]) for fact in of["facts"]]
    found += [("versions", _said(of["versions"]))]
    found += [
        ("seconds", ", ".join(f"{name} {value:.4g}" for name, value in of["seconds"].items()))
    ]
    found += [
        (f"sha256 of {name}", value) for name, value in {**of["hashes"], **of["files"]}.items()
    ]
    if of["more_files"]:
        found.append(("further files", f"{of['more_files']}, in the record"))
    return found


def _said(value: object) -> str:
    """A value of a record in a line."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_said(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_said, value))
    return "–" if value is None else str(value)


def _pairs(rows: list[tuple[str, str]]) -> str:
    content = joined(element("dt", text(a)) + element("dd", text(b)) for a, b in rows)
    return element("dl", content, class_="pairs")


def _footer(shown: ReportData) -> str:
    made = f"scoremode {shown['made_with']}"
    newest = f", of runs up to {shown['finished']}" if shown["finished"] else ""
    command = f" {' '.join(shown['command'])}" if "command" in shown else ""
    note = "Every number is in this file as JSON, in the element report-data."
    by = element("code", text(command.strip())) if command else ""
    return element("footer", f"Made by {text(made + newest)}. {by} {text(note)}")


def _hashes(*contents: str) -> str:
    """The sources for a Content-Security-Policy that allows elements of these very contents."""
    digests = (hashlib.sha256(content.encode()).digest() for content in contents)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def _asset(name: str) -> str:
    return (resources.files("scoremode.report.page") / "assets" / name).read_text(encoding="utf-8")


def finding(section: Section) -> str:
    """A sentence or two: the run closest to the base, and those on the frontier of size and KLD."""
    runs = quants(section)
    if not runs:
        return "Only the base itself was measured."
    if section["ranked_by"] != "kld" or runs[0]["kld"] is None:
        return _lowest_perplexity(runs)
    words = [_closest(runs[0], alone=len(runs) == 1), _beside(section, runs)]
    return " ".join(part for part in [*words, _frontier(section, runs)] if part)


def _closest(run: Run, *, alone: bool) -> str:
    kld = run["kld"]
    assert kld is not None
    if kld["value"] == 0:
        return f"{run['name']} predicts exactly what its base does: the KLD is 0 at every token."
    facts = [f"mean KLD {kld_words(kld['value'])} nats {interval_words(kld, kld_words)}".strip()]
    if run["top1"] is not None:
        facts.append(f"the same likeliest token at {percent(run['top1']['value'])} of the places")
    if run["ppl_ratio"] is not None:
        facts.append(f"perplexity {ratio_words(run['ppl_ratio']['value'])}")
    if run["bytes"] is not None:
        facts.append(size_words(run["bytes"]))
    lead = "against its base" if alone else "is the closest to the base"
    return f"{run['name']} {lead}: {', '.join(facts)}."


def _beside(section: Section, runs: list[Run]) -> str:
    """A sentence on the runs that the first can't be told apart from."""
    matrix = next((one for one in section["matrices"] if one["of"] == "kld"), None)
    if matrix is None:
        return ""
    names = {run["id"]: run["name"] for run in runs}
    first = runs[0]["id"]
    same = [
        names[test["b"] if test["a"] == first else test["a"]]
        for test in matrix["pairs"]
        if first in (test["a"], test["b"]) and test["verdict"] == "not distinguishable"
    ]
    return f"On this text it can't be told apart from {_listed(same)}." if same else ""


def _frontier(section: Section, runs: list[Run]) -> str:
    frontier = preferred(section) if section["frontiers"] else None
    if frontier is None or not frontier["id"].endswith("/kld") or len(frontier["points"]) < 2:
        return ""
    names = {run["id"]: run["name"] for run in runs}
    ahead = [names[one] for one in frontier["line"]]
    if len(ahead) == len(frontier["points"]):
        return "All lie on the frontier of size and KLD: each is the closest of its size."
    lie = "lies" if len(ahead) == 1 else "lie"
    return (
        f"{len(ahead)} of {len(frontier['points'])} {lie} on the frontier of size and KLD: "
        f"{_listed(ahead)}. For each of the others one of these is no larger and no further off."
    )


def _listed(names: list[str]) -> str:
    shown = (
        names if len(names) <= _MOST else [*names[: _MOST - 1], f"{len(names) - _MOST + 1} more"]
    )
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _lowest_perplexity(runs: list[Run]) -> str:
    best = runs[0]
    ppl = f"{ppl_words(best['ppl']['value'])} {interval_words(best['ppl'], ppl_words)}".strip()
    lead = "a perplexity of" if len(runs) == 1 else "the lowest perplexity:"
    return f"{best['name']} has {lead} {ppl}."


def section_part(section: Section, *, alone: bool) -> Part:
    """The section's markup. `alone`: the page has no other; its finding stands in the page's head."""
    name, who = section["id"], identities(section)
    rows = own_rows(section, who)
    drawn = figures(section, rows)
    blocks = [
        "" if alone else element("h2", text(section["title"]), id=name),
        "" if alone else element("p", text(finding(section)), class_="finding"),
        element("p", _facts(section), class_="facts"),
        _block("Ranking", ranking_table(section, who, f"{name}-ranking"), f"{name}-ranking"),
        _legend(section, who) if drawn else "",
        element("div", joined(_figure(one, name) for one in drawn), class_="figures"),
        *_tables(section, who, name),
        *(element("p", text(f"Note: {note}"), class_="note") for note in section["notes"]),
    ]
    html = element("section", joined(blocks), data_of=name)
    charts = {f"{name}-{one.name}": list(one.choices.values()) for one in drawn}
    return Part(section["title"], name, html, who, rows, charts)


def _facts(section: Section) -> str:
    plan, base = section["plan"], section["base"]
    facts = [section["text_words"], section["protocol_words"]]
    if "scored" in plan:
        facts.append(f"{plan['scored']:,} tokens scored")
    if base is not None:
        dtype = f" in {base['dtype']}" if base["dtype"] else ""
        facts.append(f"base {base['name']}{dtype}, PPL {ppl_words(base['ppl']['value'])}")
    return text(" · ".join([*facts, section["interval_words"]]))


def _tables(section: Section, who: dict[str, Row], name: str) -> list[str]:
    found = []
    for chart in section["charts"]:
        if chart["x"]["scale"] != "category" or chart["id"] in _DRAWN:
            continue
        anchor = f"{name}-{chart['id'].replace(':', '-')}"
        made = groups_table(chart, quants(section), who, anchor)
        note = chart["words"]
        if chart["y"]["unit"] == "nats":
            note += " The deeper the colour, the further above the run's own mean."
        found.append(_block(chart["title"], made, anchor, note))
    for matrix in section["matrices"]:
        if not matrix["pairs"]:
            continue
        anchor = f"{name}-matrix-{matrix['of']}"
        made = matrix_table(matrix, who, anchor)
        said = f"{_MATRIX[matrix['of']]} A dot: not told apart on this text. {matrix['note'] or ''}"
        title = "Who differs from whom" + (" in perplexity" if matrix["of"] == "nll" else "")
        found.append(_block(title, made, anchor, said))
    for of in section["attributions"]:
        anchor = f"{name}-attribution-{of['run']}"
        made = attribution_table(of, anchor)
        title = f"Which part does the damage: {who[of['run']]['name']}"
        found.append(_block(title, made, anchor, _attribution_words(of)))
    if section["worst"]:
        anchor = f"{name}-worst"
        note = (
            "Where one of them is furthest from the base. In each cell: the token it thought "
            "likeliest, "
            "underlined where the base thought otherwise; its KLD there; and the probability p of the "
            "token that came."
        )
        made = worst_table(section, who, anchor)
        found.append(_block("The worst tokens, side by side", made, anchor, note))
    if section["tasks"]:
        anchor = f"{name}-tasks"
        note = (
            "The harness's metrics of each task. Against a base, of the same questions: the change "
            "with its 95 % interval, how many were lost and gained, McNemar's exact p, and the mean "
            "KLD over the tokens of the answers."
        )
        found.append(_block("Tasks", tasks_table(section, anchor), anchor, note))
    return found


def _attribution_words(of: Attribution) -> str:
    """The note on a heat map: what its cells are, and whether they may be added."""
    words = (
        "Mean KLD (nats) of the base with this part alone of the model. The deeper the colour, the "
        "further above the mean of all parts."
    )
    if of["sum_share"] is not None:
        words += f" Together {percent(of['sum_share'])} of the model's KLD"
        words += f", {kld_words(of['whole']['value'])}."
    if of["unfit"]:
        words += (
            f" Not to be added: {of['unfit'][0]} is not the base's, so scales or rotations were moved "
            "into other modules."
        )
    return words


def _block(title: str, made: str, table: str, note: str = "") -> str:
    tools = "".join(
        element("button", f"copy as {words}", type="button", data_copy=form, data_table=table)
        for form, words in (("markdown", "Markdown"), ("csv", "CSV"))
    )
    bar = element("h3", text(title)) + element("div", tools, class_="tools script-only")
    said = element("p", text(note), class_="note") if note else ""
    return element("div", joined([element("div", bar, class_="bar"), said, made]), class_="block")


def _legend(section: Section, who: dict[str, Row]) -> str:
    items = []
    for run in quants(section):
        one = who[run["id"]]
        button = element("button", key(one["tint"]) + text(one["short"]), type="button",
                         data_run=run["id"], aria_pressed="false", title=run["name"])  # fmt: skip
        items.append(element("li", button))
    words = "Point at a name, a row or a mark: it stands out everywhere. A click keeps it."
    if any(who[run["id"]]["tint"] == len(TINTS) - 1 for run in quants(section)):
        words += " In colour: the closest on the frontier."
    hint = element("li", text(words), class_="note script-only")
    return element("ul", joined([*items, hint]), class_="legend")


def _figure(one: Figure, section: str) -> str:
    name = f"{section}-{one.name}"
    choice = ""
    if len(one.choices) > 1:
        inputs = "".join(
            f'<input type="radio" name="{name}-x" id="{name}-{i}" value="{i}"{"" if i else " checked"}>'
            f'<label for="{name}-{i}">{text(words)}</label>'
            for i, words in enumerate(one.choices)
        )
        legend = element("legend", "size as", class_="unseen")
        choice = element("fieldset", legend + inputs, class_="choice script-only", data_for=name)
    caption = element("figcaption", element("h3", text(one.title)) + text(one.caption))
    place = element(
        "div",
        "",
        class_="chart",
        id=name,
        data_chart=name,
        data_label=f"{one.title}. {one.caption}",
    )
    return element("figure", joined([caption, choice, place]))


def write_report(
    runs: Sequence[Path],
    output: Path,
    plots: Path | None = None,
    *,
    command: Sequence[str] | None = None,
    notify: Callable[[str], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[Path]:
    """Writes the report of `runs`, or of the finished runs that such folders hold, to `output`, and its
    charts as files into `plots`; returns the files written, the page first.

    - `command`: the command line, which the page names
    - `notify`, `progress`: are told which runs are left out, and how many have been read of how many

    Raises UsageError where the extra that draws charts is missing, before anything is read;
    RunFolderError for a run that can't be believed, and for a file that can't be written.
    """
    plotting()
    report: ReportData = report_data(run_folders(runs, notify), progress)
    if command is not None:
        report["command"] = list(command)
    write_output(output, page(report))
    return [output, *(write_plots(report, plots) if plots is not None else [])]
