"""A section of the page: what was measured on one text under one protocol against one base."""

from dataclasses import dataclass

from scoremode.report.page.chart_rows import Row, identities, own_rows, quants
from scoremode.report.page.charts import Chart
from scoremode.report.page.definition import Attribution, Section
from scoremode.report.page.figures import Figure, figures
from scoremode.report.page.finding import finding
from scoremode.report.page.markup import element, joined, text
from scoremode.report.page.tables import (
    attribution_table,
    groups_table,
    key,
    matrix_table,
    ranking_table,
    tasks_table,
    worst_table,
)
from scoremode.report.page.theme import TINTS
from scoremode.report.page.wording import kld_words, percent, ppl_words

__all__ = ["Part", "section_part"]

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
    charts: dict[str, list[Chart]]


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
    """What its cells are, and whether they may be added."""
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
