"""Findings of `scoremode compare`: as a table, as Markdown, as CSV."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scoremode.report.layout import (
    columns_table,
    counted,
    ends,
    escaped,
    pairs,
    printable,
    without_interval,
)
from scoremode.report.table import protocol_words, text_words

__all__ = ["compare_csv", "compare_markdown", "compare_table"]

Rows = list[tuple[str, ...]]


def compare_table(value: Mapping[str, Any]) -> str:
    """The comparison as text: the ranking, then each run against the next."""
    return _parts(value, pairs, columns_table)


def compare_markdown(value: Mapping[str, Any]) -> str:
    """The comparison as Markdown: the ranking, then each run against the next."""
    return _parts(value, _list, _markdown)


def _parts(
    value: Mapping[str, Any],
    listed: Callable[[Iterable[tuple[str, str]]], str],
    tabled: Callable[[Sequence[str], Iterable[Sequence[str]]], str],
) -> str:
    parts = [listed(_facts(value)), tabled(*_ranking(value))]
    if value["tests"]:
        parts.append(tabled(*_tests(value)))
    if notes := _notes(value):
        parts.append(listed(notes))
    return "\n\n".join(parts)


def compare_csv(value: Mapping[str, Any]) -> str:
    """A line a run in the order of the ranking, its test against the next run at the end."""
    file = io.StringIO()
    lines = csv.writer(file, lineterminator="\n")
    metrics = ("ppl", "ppl_ratio", "kld", "top1")
    tested = ("ppl_difference", "ppl_ratio", "kld_difference")
    lines.writerow(
        [
            *("rank", "model", "folder", "is_base", "n"),
            *(f"{name}{end}" for name in metrics for end in ("", "_low", "_high")),
            *("kld_p99", "bits_per_weight", "gib", "next"),
            *(f"next_{name}{end}" for name in tested for end in ("", "_low", "_high")),
            *("verdict_ppl", "verdict_kld"),
        ]
    )
    for rank, run in enumerate(value["runs"], 1):
        test = value["tests"][rank - 1] if rank <= len(value["tests"]) else {}
        verdicts = test.get("verdict", {})
        lines.writerow(
            [
                *(rank, escaped(run["model"]), escaped(run["folder"])),
                *(int(run["is_base"]), run["ppl"]["n"]),
                *(number for name in metrics for number in _numbers(run[name])),
                *(run["kld_p99"], run["bits_per_weight"], run["gib"], escaped(test.get("b", ""))),
                *(number for name in tested for number in _numbers(test.get(name))),
                *(verdicts.get("ppl"), verdicts.get("kld")),
            ]
        )
    return file.getvalue()


def _facts(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    by = {"kld": "mean KLD", "ppl": "PPL"}[value["ranked_by"]]
    rows = [("ranked by", f"{by}: {escaped(value['why'])}")]
    if value["reference"]:
        rows.append(("reference", printable(str(value["reference"]["source"]))))
    plan = value["plan"]
    return [
        *rows,
        ("protocol", printable(protocol_words(value["protocol"]))),
        ("text", printable(text_words(value["corpus"]))),
        ("over", f"{counted(plan['scored'], 'token')} in {counted(plan['windows'], 'window')}"),
    ]


def _ranking(value: Mapping[str, Any]) -> tuple[tuple[str, ...], Rows]:
    header = ("model", "PPL", "95 %", "PPL / base", "95 %", "KLD (nats)", "95 %", "KLD p99",
              "same top-1", "bits/weight", "GiB")  # fmt: skip
    rows = []
    for run in value["runs"]:
        ratio = _value(run["ppl_ratio"], "×", ".5f")
        if run["is_base"] and run["ppl_ratio"] is None:
            ratio = "base"
        rows.append(
            (
                printable(run["model"]),
                _value(run["ppl"], "", ".4f"),
                ends(run["ppl"], ".4f"),
                ratio,
                ends(run["ppl_ratio"], ".5f"),
                _value(run["kld"], "", ".4g"),
                ends(run["kld"], ".4g"),
                _number(run["kld_p99"], ".4g"),
                _value(run["top1"], "", ".2%"),
                _number(run["bits_per_weight"], ".3f"),
                _number(run["gib"], ".3f"),
            )
        )
    return header, rows


def _tests(value: Mapping[str, Any]) -> tuple[tuple[str, ...], Rows]:
    header = ("against the next", "of", "difference", "95 %", "ratio", "95 %", "the first is")
    rows = []
    for test in value["tests"]:
        pair = f"{printable(test['a'])} - {printable(test['b'])}"
        ratio, verdicts = test["ppl_ratio"], test["verdict"]
        ratios = {"ppl": (_value(ratio, "×", ".5f"), ends(ratio, ".5f")), "kld": ("", "")}
        for name, form in (("ppl", "+.4f"), ("kld", "+.3g")):
            if name in verdicts:
                difference = test[f"{name}_difference"]
                found = _value(difference, "", form), ends(difference, form), *ratios[name]
                rows.append((pair, name.upper(), *found, _verdict(verdicts[name])))
    return header, rows


def _notes(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [
        (
            "they differ in" if i == 0 else "",
            f"{escaped(found['field'])}: "
            + "; ".join(
                f"{printable(what)} ({', '.join(map(printable, labels))})"
                for what, labels in found["values"].items()
            ),
        )
        for i, found in enumerate(value["differing"])
    ]
    rows += [("note", escaped(note)) for note in value["notes"]]
    ratios = [test["ppl_ratio"] for test in value["tests"]]
    rows += without_interval([*ratios, *(run["ppl"] for run in value["runs"])])
    if any(v == "not distinguishable" for t in value["tests"] for v in t["verdict"].values()):
        rows.append(("not distinguishable", "on this text: no difference lies within the interval"))
    return rows


def _verdict(words: str) -> str:
    return "not known" if words.startswith("no interval") else words


def _value(metric: Mapping[str, Any] | None, sign: str, form: str) -> str:
    return "-" if metric is None else f"{sign}{metric['value']:{form}}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _numbers(metric: Mapping[str, Any] | None) -> tuple[float | None, ...]:
    if metric is None:
        return None, None, None
    return (metric["value"], *(metric["ci95"] or (None, None)))


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    aligned = ["---", *("---:" for _ in header[1:])]
    lines = [header, aligned, *(tuple(_cell(c) for c in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- {f'{name}: ' if name else ''}{_cell(text)}" for name, text in rows)


def _cell(text: str) -> str:
    """Text that Markdown takes as it is."""
    return "".join(f"\\{c}" if c in "\\`*_|<>[]" else c for c in text)
