"""Findings of `scoremode verify`, as text."""

from collections.abc import Mapping
from typing import Any

from scoremode.report.forms.document import Column, Document, Facts, Table, data, measured, number
from scoremode.report.forms.text import document_text
from scoremode.report.layout import ends, without_interval
from scoremode.report.table import protocol_words, text_words

__all__ = ["verify_document", "verify_table"]


def verify_table(value: Mapping[str, Any]) -> str:
    """Findings of `scoremode verify` as text."""
    return document_text(verify_document(value))


def verify_document(value: Mapping[str, Any]) -> Document:
    """Findings of `scoremode verify`: differences in nats a target, and a verdict an engine."""
    engines, reference, sample = value["engines"], value["reference"], value["sample"]
    ppl = reference["metrics"]["ppl"]["value"]
    facts = [
        ("model", value["checkpoint"]["source"]),
        ("protocol", protocol_words(value["protocol"])),
        ("text", text_words(value["corpus"])),
        ("windows", f"{len(sample['windows'])} of {value['plan']['windows']:,} (seed "
                    f"{sample['seed']}), {sample['scored']:,} targets"),
        ("reference", f"torch in {reference['compute']}, arithmetic "
                      f"{reference['engine']['arithmetic']}, row sums in {reference['sums']}: "
                      f"PPL {ppl:.6f}"),
    ]  # fmt: skip
    rows = []
    for name, e in engines.items():
        verdict = e["verdict"]["words"]
        own = e["metrics"]["ppl"]["value"]
        rows.append((f"{name} - reference", own, *_difference(e["difference"]), verdict))
    for b in value["between"]:
        between = f"{b['engine']} - {b['other']}"
        rows.append((between, "", *_difference(b["difference"]), None))
    table = Table(_COLUMNS, tuple(rows))
    own = "; the reference's own arithmetic: proves that it repeats, no more"
    verdicts = [
        (name, e["verdict"]["words"] + (own if e["is_reference"] else ""))
        for name, e in engines.items()
    ]
    verdicts += without_interval(e["difference"]["bias"] for e in engines.values())
    return Document((Facts(tuple(facts)), table, Facts(tuple(verdicts))), table)


_COLUMNS = (
    Column("nats a target", "difference"),
    # Two engines have none together.
    Column("PPL", "ppl", lambda ppl: f"{ppl:.6f}" if ppl else ""),
    measured("PPL ratio", "ppl_ratio", ".7f"),
    measured("bias", "bias_nats", "+.1e"),
    Column("95 % of bias", None, lambda m: "none" if m["ci95"] is None else ends(m, "+.1e")),
    number("rms", "rms_nats", ".1e"),
    number("worst", "worst_nats", "+.1e"),
    number("same top-1", "top1_share", ".2%"),
    data("verdict"),
)


def _difference(d: Mapping[str, Any]) -> tuple[Any, ...]:
    return d["ppl_ratio"], d["bias"], d["bias"], d["rms"], d["worst"], d["top1"]
