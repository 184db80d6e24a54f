"""The whole page: one file of markup, styles, scripts and data, which asks no network for anything.

`assets/page.html.jinja` is its markup; what it shows is worked out here, in `figures.py` and in
`tables.py`. Nothing that a model, a text or a path holds becomes markup or script: Jinja escapes every
value, and `visible` has written out what would act on a page instead of being seen.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import jinja2

from scoremode.report.page.chart_types import Spec, packed, plotting, scripts
from scoremode.report.page.charts import kind_of
from scoremode.report.page.data import report_data
from scoremode.report.page.definition import (
    Attribution,
    Provenance,
    ReportData,
    Run,
    Section,
    WorstTarget,
)
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
    interval_words,
    kld_words,
    page_config,
    percent,
    ppl_words,
    ratio_words,
    script_json,
    size_words,
    visible,
)
from scoremode.report.page.tables import (
    MARKS,
    Table,
    attribution_table,
    groups_table,
    matrix_table,
    ranking_table,
    tasks_table,
)
from scoremode.results.folders.paths import run_folders, write_output

# Names in a list of runs, and rows of the worst tokens: more are in the data.
_MOST, _PLACES = 7, 20
_MATRIX = {
    "kld": (
        "Who differs from whom",
        "The row's mean KLD less the column's (nats), where they differ beyond luck with the text: "
        "paired by token, corrected for the number of pairs (Holm, 5 %). Blue: the row is closer to "
        "the base.",
    ),
    "nll": (
        "Who differs from whom in perplexity",
        "The row's mean nll less the column's (nats), where they differ beyond luck with the text: "
        "paired by token, corrected for the number of pairs (Holm, 5 %). Blue: the row predicts the "
        "text better.",
    ),
}


@dataclass(frozen=True)
class Block:
    """A table under its title and a note."""

    title: str
    table: Table
    note: str = ""


@dataclass(frozen=True)
class Part:
    """A section as the page shows it, with the rows and the specs of its charts, by their ids.

    - `how`, `runs`: names and words on how the section, and each of its runs, was measured.
    - `legend`: the ranked runs as `who` has them. `blocks`: the ranking first.
    """

    title: str
    anchor: str
    finding: str
    facts: str
    how: list[tuple[str, str]]
    runs: list[tuple[str, list[tuple[str, str]]]]
    who: dict[str, Row]
    legend: list[Row]
    rows: dict[str, list[Row]]
    figures: list[Figure]
    blocks: list[Block]
    worst: list[WorstTarget]
    tasks: Table | None
    notes: list[str]

    @property
    def charts(self) -> dict[str, list[Spec]]:
        return {f"{self.anchor}-{one.name}": list(one.choices.values()) for one in self.figures}


def page(report: ReportData) -> str:
    """The page of a report's data. The same data gives the same bytes.

    Raises UsageError where the extra that draws charts is missing.
    """
    shown: ReportData = visible(report)
    parts = [section_part(section) for section in shown["sections"]]
    styles, bundle, script = colour_variables() + _asset("page.css"), scripts(), _asset("page.js")
    data = {
        "config": page_config(),
        "who": {part.anchor: part.who for part in parts},
        "rows": {part.anchor: part.rows for part in parts},
        "charts": {name: chart for part in parts for name, chart in part.charts.items()},
        # With its texts made visible: what a script may show has been made harmless.
        "report": shown,
    }
    return markup(
        shown,
        parts,
        styles=styles,
        style_hashes=_hashes(styles),
        script_hashes=_hashes(bundle, script),
        licenses=_asset("licenses.txt"),
        data=script_json(data),
        vega=packed(bundle),
        script=script,
    )


def markup(report: ReportData, parts: Sequence[Part], **assets: str) -> str:
    """The template with all that is shown; `assets`: what stands in it as it is."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    # Names that its macros have, too.
    environment.globals |= {"alone": len(parts) == 1, "kld_words": kld_words, "marks": MARKS}
    environment.globals["rest"] = len(TINTS) - 1
    return environment.get_template("page.html.jinja").render(report=report, parts=parts, **assets)


def _section_facts(section: Section) -> list[tuple[str, str]]:
    found = [
        (f"{of}: {name}", _said(value))
        for of, values in (
            ("protocol", section["protocol"]),
            ("text", section["text"]),
            ("plan", section["plan"]),
        )
        for name, value in values.items()
    ]
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
        facts.append(f"PPL / base {ratio_words(run['ppl_ratio']['value'])}")
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


def section_part(section: Section) -> Part:
    """The section as the page shows it."""
    name, who = section["id"], identities(section)
    ranked = quants(section)
    rows = own_rows(section, who)
    tasks = tasks_table(section, f"{name}-tasks") if section["tasks"] else None
    return Part(
        title=section["title"],
        anchor=name,
        finding=finding(section),
        facts=_facts(section),
        how=_section_facts(section),
        runs=[
            (f"{run['name']} — {run['format']}", _run_facts(run["source"], run["provenance"]))
            for run in section["runs"]
        ],
        who=who,
        legend=[who[run["id"]] for run in ranked],
        rows=rows,
        figures=figures(section, rows),
        blocks=_blocks(section, who),
        worst=section["worst"][:_PLACES],
        tasks=tasks,
        notes=section["notes"],
    )


def _facts(section: Section) -> str:
    plan, base = section["plan"], section["base"]
    facts = [section["text_words"], section["protocol_words"]]
    if "scored" in plan:
        facts.append(f"{plan['scored']:,} tokens scored")
    if base is not None:
        dtype = f" in {base['dtype']}" if base["dtype"] else ""
        facts.append(f"base {base['name']}{dtype}, PPL {ppl_words(base['ppl']['value'])}")
    return " · ".join([*facts, section["interval_words"]])


def _blocks(section: Section, who: Mapping[str, Row]) -> list[Block]:
    """The ranking, groups, matrices and attributions."""
    name = section["id"]
    found = [Block("Ranking", ranking_table(section, who, f"{name}-ranking"))]
    for chart in section["charts"]:
        if not kind_of(chart).tabled:
            continue
        anchor = f"{name}-{chart['id'].replace(':', '-')}"
        note = chart["words"]
        if chart["y"]["unit"] == "nats":
            note += " The deeper the colour, the further above the run's own mean."
        made = groups_table(chart, quants(section), who, anchor)
        found.append(Block(chart["title"], made, note))
    for matrix in section["matrices"]:
        if matrix["pairs"]:
            title, words = _MATRIX[matrix["of"]]
            note = f"{words} A dot: not told apart on this text. {matrix['note'] or ''}"
            made = matrix_table(matrix, who, f"{name}-matrix-{matrix['of']}")
            found.append(Block(title, made, note))
    for of in section["attributions"]:
        title = f"Which part does the damage: {who[of['run']]['name']}"
        made = attribution_table(of, f"{name}-attribution-{of['run']}")
        found.append(Block(title, made, _attribution_words(of)))
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


def write_report(
    runs: Sequence[Path],
    output: Path,
    plots: Path | None = None,
    *,
    title: str | None = None,
    margin: float | None = None,
    command: Sequence[str] | None = None,
    notify: Callable[[str], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[Path]:
    """Writes the report of `runs`, or of the finished runs that such folders hold, to `output`, and its
    charts as files into `plots`; returns the files written, the page first.

    - `title`: the page's, None for one that names the base and the text
    - `margin`: of the verdicts, None for each metric's own
    - `command`: the command line, which the page names
    - `notify`, `progress`: are told which runs are left out, and how many are newly read of how many

    Raises UsageError where the extra that draws charts is missing, before anything is read;
    RunFolderError for a run that can't be believed, and for a file that can't be written.
    """
    plotting()
    report: ReportData = report_data(run_folders(runs, notify), progress, title, margin)
    if command is not None:
        report["command"] = list(command)
    write_output(output, page(report))
    return [output, *(write_plots(report, plots) if plots is not None else [])]
