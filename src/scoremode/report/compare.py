"""Findings of `scoremode compare`, as a document: the ranking, then each run against the next."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scoremode.report.document import (
    INTERVAL,
    KEPT,
    Column,
    Document,
    Facts,
    Prose,
    Table,
    Verdict,
    counted,
    data,
    interval,
    measured,
    metric_words,
    number,
    printable,
    without_interval,
    words,
)
from scoremode.report.facts import base_words, blocks_words, over_words, protocol_words, text_words
from scoremode.report.groups import groups_of_runs
from scoremode.report.run import tasks_of_runs
from scoremode.report.runs import runs_table
from scoremode.results.gates import Gate
from scoremode.results.record.model import Reference
from scoremode.results.record.outcome import Intervals
from scoremode.results.record.section import Metric, decode
from scoremode.results.record.text import Corpus, Protocol, Tasks
from scoremode.results.statistics.verdict import Verdict as Judged

_TESTED = ("ppl_difference", "ppl_ratio", "kld_difference")


def compare_document(value: Mapping[str, Any], judged: Sequence[tuple[str, Gate]] = ()) -> Document:
    """The ranking, with each run's test against the next in its line's data; who is on the frontier;
    then these tests.

    `judged`: a run's label and a gate, of all that were asked for; below the ranking.
    """
    ranking = runs_table(ranked_rows(value), _NEXT)
    parts: list[Facts | Table | Prose] = [Facts(_facts(value)), ranking]
    if said := _frontier(value):
        parts.append(Facts((("frontier", said),)))
    if judged:
        parts.append(_gates(judged))
    if value["tests"]:
        parts.append(_tests(value))
    parts += groups_of_runs(value["groups"])
    if (
        tasks := tasks_of_runs([(one["label"], decode(one, Tasks)) for one in value["tasks"]])
    ) is not None:
        parts.append(tasks)
    if notes := _notes(value):
        parts.append(Facts(notes))
    return Document(tuple(parts), ranking, _best(value, [gate for _, gate in judged]))


# Pairs of runs that a line names, and what they are ranked by.
_PAIRS, _NAMES = 3, {"kld": "KLD", "ppl": "PPL"}


def _best(value: Mapping[str, Any], gates: Sequence[Gate]) -> Verdict:
    """The best run beside its base, what is tied with it, which neighbors can't be told apart; without
    intervals the lowest alone."""
    by, runs = value["ranked_by"], value["runs"]
    own = [run for run in runs if not run["is_base"] and run[by]] or runs
    best, text = own[0], f"best: {own[0]['label']}"
    first = best[by] and decode(best[by], Metric)
    if own[1:] and first and first.ci95 is None:
        text = f"lowest: {best['label']}, {metric_words(by, first)}; the order may be chance"
        return _with_gates(f"{text}: {first.note}", gates)
    if tied := [run["label"] for run in own[1:] if run["ranks"][0] == best["ranks"][0]]:
        more = f" and {len(tied) - _PAIRS} more" if len(tied) > _PAIRS else ""
        text += f", tied with {', '.join(tied[:_PAIRS])}{more}"
    if (found := best[by]) is not None:
        numbers = metric_words(by, decode(found, Metric))
        if judged := _beside_base(best, by):
            base = next((run for run in runs if run["is_base"]), value["base"])
            numbers = f"{judged.words(base['label'] if base else 'the base')} ({numbers})"
        text += f", {numbers}"
    verdicts = [(test, test["verdict"].get(by)) for test in value["tests"]]
    alike = [f"{t['a']} and {t['b']}" for t, said in verdicts if said == "not distinguishable"]
    if alike:
        more = f", and {len(alike) - _PAIRS} more" if len(alike) > _PAIRS else ""
        pairs = f"{', '.join(alike[:_PAIRS])}{more}"
        text += f"; by {_NAMES[by]}, not distinguishable on this text: {pairs}"
    elif any(said in ("better", "worse") for _, said in verdicts):
        text += f"; by {_NAMES[by]}, each is distinguishable from the next"
    return _with_gates(text, gates)


def _with_gates(text: str, gates: Sequence[Gate]) -> Verdict:
    """A verdict, and how many gates are missed."""
    if not gates:
        return Verdict(text)
    missed = sum(not gate.met for gate in gates)
    bare = any(gate.ci95 is None for gate in gates)
    met = "all gates met" + ", without an interval" * bare
    said = f"MISSED {missed} of {counted(len(gates), 'gate')}" if missed else met
    return Verdict(f"{text}; {said}", not missed)


def _frontier(value: Mapping[str, Any]) -> str:
    """The runs that no other beats; "" where too few have a size to tell."""
    if (names := value["frontier"]) is None:
        return ""
    ahead = {"kld": "closer to the base (KLD)", "ppl": "of lower PPL"}[value["ranked_by"]]
    return f"{', '.join(map(printable, names))}: no other run is both smaller and {ahead}"


def _beside_base(run: Mapping[str, Any], by: str) -> Judged | None:
    """The verdict on a run beside the base by what runs are ranked by."""
    key = {"kld": "kld", "ppl": "ppl_ratio"}[by]
    found = [one for one in run.get("verdicts", ()) if one["metric"] == key]
    return Judged.of_json(found[0]) if found else None


def ranked_rows(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lines of the ranking: the base where it is no run, then the runs."""
    rows = [] if value["base"] is None else [value["base"]]
    for rank, run in enumerate(value["runs"], 1):
        row = {**run, "rank": rank}
        if beside := _beside_base(run, value["ranked_by"]):
            row["verdict_base"] = beside.short
        if rank <= len(value["tests"]):
            test = value["tests"][rank - 1]
            row |= {f"next_{name}": test.get(name) for name in _TESTED}
            row |= {"next": test["b"]}
            row |= {f"verdict_{name}": words for name, words in test["verdict"].items()}
        rows.append(row)
    return rows


def rankings_table(values: Sequence[Mapping[str, Any]]) -> Table:
    """The rankings of several texts and protocols as data: one table, whose lines say of which."""
    tables = [compare_document(value).data for value in values]
    rows = [
        (
            value["corpus"]["name"],
            value["corpus"]["text"]["sha256"],
            value["protocol"]["name"],
            *row,
        )
        for value, table in zip(values, tables, strict=True)
        for row in table.rows
    ]
    first = (data("text"), data("text_sha256"), data("protocol"))
    return Table((*first, *tables[0].columns), tuple(rows))


def _hidden(name: str, key: str) -> Column:
    return replace(measured(name, key, ""), head=None)


_NEXT = {
    "verdict_base": words("beside the base", "verdict_base", 7),
    "next": words(None, "next"),
    "next_ppl_difference": _hidden("", "next_ppl_difference"),
    "next_ppl_ratio": _hidden("", "next_ppl_ratio"),
    "next_kld_difference": _hidden("", "next_kld_difference_nats"),
    "verdict_ppl": data("verdict_ppl"),
    "verdict_kld": data("verdict_kld"),
}


def _facts(value: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    by = {"kld": "mean KLD", "ppl": "PPL"}[value["ranked_by"]]
    rows = [("ranked by", f"{by}: {value['why']}")]
    if value["reference"]:
        rows.append(("reference", base_words(decode(value["reference"], Reference))))
    plan, protocol = value["plan"], decode(value["protocol"], Protocol)
    blocks = decode(value["intervals"], Intervals)
    made = [*(run["ppl"] for run in value["runs"]), *(test["ppl_ratio"] for test in value["tests"])]
    # Blocks that are too few for any interval are told by the line on why there is none.
    words = f"{blocks_words(blocks, protocol)}; all runs' alike"
    return (
        *rows,
        ("protocol", printable(protocol_words(protocol))),
        ("text", printable(text_words(decode(value["corpus"], Corpus)))),
        ("over", over_words(plan["scored"], plan["windows"])),
        *([("intervals from", words)] if any(each["ci95"] for each in made) else []),
    )


def _gates(judged: Sequence[tuple[str, Gate]]) -> Table:
    rows = []
    for label, gate in judged:
        said, why = "met" if gate.met else "MISSED", gate.note or gate.chance
        if why:
            said += f", {why}" if gate.ci95 is None and gate.chance else f": {why}"
        rows.append((label, gate.flag, gate.on, gate.value, gate.ci95, said))
    return Table(_GATE_COLUMNS, tuple(rows))


_GATE_COLUMNS = (
    words("model", None, KEPT),
    words("gate", None, KEPT),
    words("judged by", None, 1),
    number("value", None, ".6g", 7),
    interval(".6g", importance=6),
    words("result", None, KEPT),
)


def _tests(value: Mapping[str, Any]) -> Table:
    rows = []
    for test in value["tests"]:
        pair = f"{printable(test['a'])} - {printable(test['b'])}"
        ratio, verdicts = decode(test["ppl_ratio"], Metric), test["verdict"]
        for name, form in (("ppl", "+.4f"), ("kld", "+.3g")):
            if name in verdicts:
                found = decode(test[f"{name}_difference"], Metric)
                ratios = (ratio, ratio.ci95) if name == "ppl" else ("", "")
                difference = (form, found.value), found.ci95 and (form, found.ci95)
                said = _verdict(verdicts[name], Judged.of_json(test["verdicts"][name]))
                rows.append((pair, name.upper(), *difference, *ratios, said))
    return Table(_TEST_COLUMNS, tuple(rows))


def _either(column: Column) -> Column:
    """A column where some lines have nothing to say, which is not that nothing is known."""
    return replace(column, key=None, show=lambda value: column.show(value) if value else "")


# A difference is of two units, whose digits differ.
_TEST_COLUMNS = (
    Column("against the next", None),
    Column("of", None, importance=9),
    Column("difference", None, lambda value: f"{value[1]:{value[0]}}", importance=7),
    Column(INTERVAL, None, lambda value: interval(value[0]).show(value[1]), importance=6),
    _either(measured("ratio", "", ".5f", "×")),
    _either(interval(".5f")),
    Column("the first is", None, importance=9),
)


def _notes(value: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    rows = [
        (
            "they differ in" if i == 0 else "",
            f"{found['field']}: "
            + "; ".join(
                f"{_short(printable(what))} ({', '.join(map(printable, labels))})"
                for what, labels in found["values"].items()
            ),
        )
        for i, found in enumerate(value["differing"])
    ]
    rows += [("note", note) for note in value["notes"]]
    found = [test["ppl_ratio"] for test in value["tests"]] + [run["ppl"] for run in value["runs"]]
    rows += without_interval(decode(metric, Metric) for metric in found)
    if any(v == "not distinguishable" for t in value["tests"] for v in t["verdict"].values()):
        rows.append(
            ("not distinguishable", "on this text, corrected for all pairs of runs (Holm, 5 %)")
        )
    return tuple(rows)


def _short(what: str) -> str:
    """A sha256's first digits, which tell it from others; anything else as it is."""
    return what[:12] if re.fullmatch("[0-9a-f]{64}", what) else what


def _verdict(said: str, judged: Judged) -> str:
    """The order of two runs, and by how much at least, or what would tell it."""
    if said.startswith("no interval"):
        return "not known"
    if judged.kind == "undecided":
        return f"{said}: {judged.more()}" if judged.needed is not None else said
    return judged.short if judged.kind == said else f"{said}, {judged.short}"
