"""The whole page: one file of markup, styles, scripts and data, which asks no network for anything."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from scoremode.report.page.bundle import packed, scripts
from scoremode.report.page.definition import Provenance, ReportData, Section
from scoremode.report.page.finding import finding
from scoremode.report.page.markup import element, joined, script_json, text, visible
from scoremode.report.page.parts import Part, section_part
from scoremode.report.page.theme import colour_variables, page_config

__all__ = ["page"]

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
    """What a Content-Security-Policy allows: elements of these very contents."""
    digests = (hashlib.sha256(content.encode()).digest() for content in contents)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def _asset(name: str) -> str:
    return (resources.files("scoremode.report.page") / "assets" / name).read_text(encoding="utf-8")
