"""The result of a run against a base, as text."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scoremode.report.document import (
    Column,
    Document,
    Facts,
    Prose,
    Table,
    counted,
    escaped,
    interval,
    interval_text,
    measured,
    number,
    printable,
    rate,
)
from scoremode.report.facts import headline_rows, measured_rows, page_rows, place_rows, ran_rows
from scoremode.report.groups import KINDS, group_parts
from scoremode.report.runs import run_data
from scoremode.results.metrics import shown
from scoremode.results.statistics.bootstrap import verdict

Rows = list[tuple[str, str]]
# Characters of the text before a token, and of a token.
_BEFORE, _TOKEN = 44, 20
_VERDICTS = {
    "better": "better than the base on this text",
    "worse": "worse than the base on this text",
    "not distinguishable": "not distinguishable from the base on this text",
}

# Numbers that the table of runs has.
_TABLED = ("KLD", "KLD p99", "same top-1", "PPL", "base PPL", "PPL / base PPL", "model")


def kld_document(record: Mapping[str, Any], folder: Path, *, verbose: bool = False) -> Document:
    """The result; `verbose`: behind it details, breakdowns, and the tokens that differ most."""
    metrics = record["metrics"]
    first = [
        *_divergence(record),
        *page_rows(record),
        *_perplexities(metrics),
        *_checks(record),
        *headline_rows(record),
        *place_rows(folder, verbose=verbose),
    ]
    parts: list[Facts | Table | Prose] = [Facts(tuple(first), frozenset(_TABLED))]
    # They were asked for.
    parts += group_parts(record, "label")
    # Whether it fails late is what a long window is for.
    parts += group_parts(record, "depth")
    if verbose:
        rows = (*_details(record), *measured_rows(record), *ran_rows(record))
        parts += [Facts(rows), *group_parts(record, "turn"), *_breakdowns(record)]
        if record.get("worst"):
            parts.append(worst_facts(record["worst"]))
    return Document(tuple(parts), run_data(record, folder))


def _divergence(record: Mapping[str, Any]) -> Rows:
    """KLD, against what, and how alike the predictions are."""
    metrics, spread = record["metrics"], record["distribution"]["kld"]
    kld, top1 = metrics["kld"], metrics["top1"]
    rows = [
        ("KLD", f"{kld['value']:.6g} nats   {interval_text(kld, '.4g')}"),
        ("against", _reference(record.get("reference") or {})),
        ("KLD p99", f"{spread['99']:.4g}, median {spread['50']:.4g}, max {spread['maximum']:.4g}"),
        ("same top-1", f"{top1['value']:.3%}   {interval_text(top1, '.3%')}"),
        ("confident flips", _flips(record)),
    ]
    if floor := record.get("noise_floor"):
        rows.insert(2, ("noise floor", _floor(kld["value"], floor)))
    return rows


def _flips(record: Mapping[str, Any]) -> str:
    """The rate at which the model finds another token likeliest where the base was sure of one."""
    confident, flips = record["thresholds"]["confident"], record["metrics"].get("confident_flips")
    if flips is None:
        return f"none: the base gives no likeliest token more than {confident:g}"
    ends = "(no interval)"
    if flips["ci95"] is not None:
        ends = "95 % [{}, {}]".format(*map(rate, flips["ci95"]))
    return (
        f"{rate(flips['value'])} in 10,000   {ends}, of {counted(flips['n'], 'target')} where the base "
        f"gave > {confident:g}"
    )


def _perplexities(metrics: Mapping[str, Any]) -> Rows:
    ppl, base, ratio = metrics["ppl"], metrics["ppl_base"], metrics["ppl_ratio"]
    found = f"{ratio['value']:.6f}   {interval_text(ratio, '.6f')}"
    if ratio["ci95"] is not None:
        found += f", paired: {_VERDICTS[verdict(ratio['ci95'], 1.0, None)]}"
    return [
        ("PPL", f"{ppl['value']:.6f}   {interval_text(ppl)}"),
        ("base PPL", f"{base['value']:.6f}   {interval_text(base)}"),
        ("PPL / base PPL", found),
    ]


def _details(record: Mapping[str, Any]) -> Rows:
    """The numbers that the first block leaves out."""
    metrics, spread = record["metrics"], record["distribution"]
    rows = [("KLD percentiles", _percentiles(spread["kld"]))]
    for metric, own in shown("details"):
        if (found := metrics.get(metric.key)) is not None:
            unit = f" {metric.unit}" if metric.unit else ""
            text = f"{found['value']:{own.form}}{unit}   {interval_text(found, own.ends)}"
            rows.append((own.heading, text))
    if "entropy_change" in metrics:
        change, own, base = (metrics[k] for k in ("entropy_change", "entropy", "entropy_base"))
        said = f"{change['value']:+.5g} nats   {interval_text(change, '+.4g')}"
        rows.append(("entropy", f"{own['value']:.5g}, base {base['value']:.5g}: {said}"))
    rows += _agreement(metrics)
    difference = metrics["ppl"]["value"] - metrics["ppl_base"]["value"]
    rows.append(("PPL - base PPL", f"{difference:+.6f}"))
    if "bits_per_byte" in metrics:
        both = metrics["bits_per_byte"], metrics["bits_per_byte_base"]
        rows.append(("bits per byte", "{:.6f}, base {:.6f}".format(*(m["value"] for m in both))))
    return rows


def _percentiles(spread: Mapping[str, float]) -> str:
    named = {"minimum": "min", "50": "median", "maximum": "max"}
    shown = ("minimum", "1", "10", "50", "90", "95", "99", "99.9", "maximum")
    return ", ".join(f"{named.get(p, f'p{p}')} {spread[p]:.3g}" for p in shown)


def _floor(kld: float, floor: Mapping[str, Any]) -> str:
    words, value = str(floor["words"]), floor["kld"]["value"]
    if not floor["resolves"]:
        return f"below resolution: the base {words} gives the same bits"
    words = f"{value:.4g} nats, of the base {words}; the KLD is {kld / value:.3g} times that"
    return words if kld > value else f"{words}, and says nothing"


def _agreement(metrics: Mapping[str, Any]) -> Rows:
    delta, rms = metrics["delta_p"], metrics["rms_delta_p"]
    rows = []
    for end, words in (("sets", "same top-k, any order"), ("order", "same top-k in order")):
        shares = [
            f"{k}: {metrics[f'top{k}_{end}']['value']:.2%}"
            for k in (2, 3, 5, 10)
            if f"top{k}_{end}" in metrics
        ]
        if shares:
            rows.append((words, ", ".join(shares)))
    rows.append(
        ("Δp of the target", f"mean {delta['value']:+.3%}   {interval_text(delta, '+.3%')}")
    )
    rows.append(("", f"RMS {rms['value']:.3%}   {interval_text(rms, '.3%')}"))
    return rows


def _checks(record: Mapping[str, Any]) -> Rows:
    """Gates, those not met in capitals."""
    return [("gate", _gate(gate)) for gate in record.get("gates") or ()]


def _gate(gate: Mapping[str, Any]) -> str:
    flag = gate["name"].replace("_", "-")
    words = f"--{flag} {gate['limit']:g}: {gate['value']:.6g}"
    if gate["on"] == "upper":
        end = "lower" if gate["name"] == "min_top1" else "upper"
        bound = gate["bound"]
        words += f", {end} bound {bound:.6g}" if bound is not None else f" ({gate['note']})"
    return f"{words}: {'met' if gate['met'] else 'NOT MET'}"


def _reference(reference: Mapping[str, Any]) -> str:
    source = printable(str(reference.get("source", "not named")))
    said = [str(reference["kind"])] if "kind" in reference else []
    engine = reference.get("engine") or {}
    if engine.get("arithmetic") == "llama.cpp":
        said.append("in llama.cpp's arithmetic")
    elif cache := engine.get("kv_cache_dtype"):
        said.append(f"its KV cache in {cache}")
    if "checksum" in reference:
        said.append(f"checksum: {reference['checksum']}")
    return f"{source} ({', '.join(said)})" if said else source


def _breakdowns(record: Mapping[str, Any]) -> list[Table | Prose]:
    """A table each; behind them, once, why groups have no interval where the whole text has one."""
    wanted = ("confidence", "position", "token_class")
    found = {k: v for k, v in record.get("breakdown", {}).items() if k in wanted}
    notes = {g["kld"]["note"] for groups in found.values() for g in groups}
    said = sorted(notes - {None}) if record["metrics"]["kld"]["ci95"] is not None else []
    why = [Prose(f"no interval: {'; '.join(said)}")] if said else []
    return [*(_breakdown(of, groups) for of, groups in found.items()), *why]


def _breakdown(of: str, groups: Iterable[Mapping[str, Any]]) -> Table:
    columns = (
        Column(KINDS[of], None, escaped),
        number("share", None, ".2%"),
        measured("KLD", "kld", ".4g"),
        interval(".4g"),
        measured("PPL ratio", "ppl_ratio", ".5f"),
        interval(".5f"),
    )
    rows = (
        (g["group"], g["share"], g["kld"], g["kld"]["ci95"], g["ppl_ratio"], g["ppl_ratio"]["ci95"])
        for g in groups
    )
    return Table(columns, tuple(rows))


def worst_facts(facts: Sequence[Mapping[str, Any]]) -> Table:
    """The targets of largest KLD, with the text before them."""
    header = ("largest KLD", "text before", "target", "p base", "p model", "base's top-1",
              "model's top-1", "window:position")  # fmt: skip
    rows = [
        (
            f"{fact['kld']:.4g}",
            _before(fact.get("context", "")),
            _token(fact, "target"),
            f"{fact['p_base']:.2%}",
            f"{fact['p_model']:.2%}",
            _token(fact, "base_top1"),
            _token(fact, "top1"),
            f"{fact['window']}:{fact['position']}",
        )
        for fact in facts
    ]
    return Table(tuple(Column(head, None) for head in header), tuple(rows))


def _before(text: str) -> str:
    """The end of it, next to the target."""
    line = escaped(text)
    return line if len(line) <= _BEFORE else f"…{line[-_BEFORE:]}"


def _token(fact: Mapping[str, Any], name: str) -> str:
    if f"{name}_text" not in fact:
        return f"id {fact[name]}"
    text = escaped(fact[f"{name}_text"])
    return f'"{text}"' if len(text) <= _TOKEN else f'"{text[:_TOKEN]}…"'
