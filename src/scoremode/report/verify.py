"""Findings of `scoremode verify`, as text."""

from collections.abc import Mapping
from typing import Any

from scoremode.report.layout import columns_table, ends, pairs, without_interval
from scoremode.report.table import protocol_words, text_words

__all__ = ["verify_table"]


def verify_table(value: Mapping[str, Any]) -> str:
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
        own = f"{e['metrics']['ppl']['value']:.6f}"
        rows.append((f"{name} - reference", own, *_difference(e["difference"])))
    for b in value["between"]:
        rows.append((f"{b['engine']} - {b['other']}", "", *_difference(b["difference"])))
    header = ("nats a target", "PPL", "PPL ratio", "bias", "95 % of bias", "rms", "worst",
              "same top-1")  # fmt: skip
    own = "; the reference's own arithmetic: proves that it repeats, no more"
    verdicts = [
        (name, e["verdict"]["words"] + (own if e["is_reference"] else ""))
        for name, e in engines.items()
    ]
    verdicts += without_interval(e["difference"]["bias"] for e in engines.values())
    return "\n\n".join((pairs(facts), columns_table(header, rows), pairs(verdicts)))


def _difference(d: Mapping[str, Any]) -> tuple[str, ...]:
    bias = d["bias"]
    return (
        f"{d['ppl_ratio']['value']:.7f}",
        f"{bias['value']:+.1e}",
        "none" if bias["ci95"] is None else ends(bias, "+.1e"),
        f"{d['rms']:.1e}",
        f"{d['worst']:+.1e}",
        f"{d['top1']:.2%}",
    )
