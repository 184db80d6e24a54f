"""An attribution as a table: each unit's bits, its divergence alone, and what is left without it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.report.forms.document import (
    Column,
    Document,
    Facts,
    Table,
    data,
    interval,
    measured,
    number,
    words,
)
from scoremode.report.layout import ends
from scoremode.report.layout import interval as interval_of
from scoremode.results.comparison.rows import short_name

__all__ = ["attribution_document"]

_COLUMNS = (
    data("rank"),
    words("unit", "unit"),
    words("stored as", "format"),
    number("bits", "bits_per_weight", ".3f"),
    Column("parameters", "parameters", lambda n: f"{n:,}"),
    measured("alone", "alone_kld_nats", ".4g"),
    interval(".3g"),
    measured("falls by", "fall_kld_nats", ".4g"),
    interval(".3g"),
    number("of the whole", "fall_share", ".1%"),
    data("without_kld_nats"),
    number("error", "relative_error", ".4f"),
    number("SQNR dB", "sqnr_db", ".1f"),
    number("accumulated", "accumulated_relative_error", ".4f"),
)
_FALLS = ("falls by", "how far the model's KLD falls with this unit of the base")


def attribution_document(
    value: Mapping[str, Any], record: Mapping[str, Any], folder: Path
) -> Document:
    """The attribution of the run in `folder`: units by what they do alone, the worst first."""
    units = sorted(value["units"], key=lambda unit: -unit["alone"]["value"])
    rows = tuple(_row(rank, unit) for rank, unit in enumerate(units, 1))
    whole, sums = value["kld"], value["additivity"]
    facts = [
        ("model", short_name(str(record["checkpoint"]["source"]))),
        ("against", str(record["reference"]["source"])),
        ("KLD", f"{whole['value']:.6g} nats   {interval_of(whole, '.4g')}"),
        ("sum of alone", _sum(sums["alone"])),
        *([("sum of falls", _sum(sums["fall"]))] if "fall" in sums else []),
        ("over", f"{whole['n']:,} tokens in {record['plan']['windows']:,} windows"),
    ]
    if value["unfit"]:
        more = f" and {len(value['unfit']) - 1} more" if len(value["unfit"]) > 1 else ""
        facts.append(
            (
                "not to be added",
                f"{value['unfit'][0]}{more} are not the base's: scales or rotations were "
                f"moved into other modules, and one {value['by']} does not fit the rest",
            )
        )
    table = Table(_COLUMNS, rows)
    return Document(
        (
            table.filled(),
            Facts(tuple(facts)),
            Facts(
                (
                    ("alone", "KLD of the base with this unit of the model"),
                    *([_FALLS] if "fall" in sums else []),
                    ("error", "‖y' - y‖ / ‖y‖ of its output y on the base's inputs; "
                     "accumulated: on the model's own"),
                    ("record", str(folder / f"attribution-{value['by']}.json")),
                )
            ),
        ),
        table,
    )  # fmt: skip


def _sum(metric: Mapping[str, Any]) -> str:
    share = "" if metric["share"] is None else f" = {metric['share']:.1%} of the whole"
    return f"{metric['value']:.6g} nats{share}   95 % {ends(metric, '.4g')}"


def _row(rank: int, unit: Mapping[str, Any]) -> tuple[Any, ...]:
    alone, fall = unit["alone"], unit.get("fall")
    return (
        rank,
        unit["name"],
        ", ".join(unit["formats"]["model"]),
        unit["bits_per_weight"],
        unit["parameters"],
        alone,
        alone["ci95"],
        fall,
        fall and fall["ci95"],
        fall and fall["share"],
        fall and unit["without"]["value"],
        unit["local"]["relative_error"],
        unit["local"]["sqnr_db"],
        unit["accumulated"] and unit["accumulated"]["relative_error"],
    )
