"""Documents of an attribution and of a recipe: what each part of a model does to its KLD."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.report.document import (
    Column,
    Document,
    Facts,
    Table,
    Verdict,
    counted,
    data,
    ends,
    interval,
    interval_text,
    measured,
    metric_of,
    metric_words,
    number,
    words,
)
from scoremode.report.facts import base_words, over_words
from scoremode.results.labels import label_of
from scoremode.results.record.definition import Done
from scoremode.results.record.section import Metric, decode

_COLUMNS = (
    data("rank"),
    words("unit", "unit"),
    words("stored as", "format"),
    number("bits", "bits_per_weight", ".3f", 6),
    Column("parameters", "parameters", lambda n: f"{n:,}", importance=4),
    measured("alone", "alone_kld_nats", ".4g", importance=9),
    interval(".3g", importance=6),
    measured("acceptance", "alone_acceptance_share", ".2%", importance=5),
    measured("falls by", "fall_kld_nats", ".4g", importance=8),
    interval(".3g"),
    number("of the whole", "fall_share", ".1%", 7),
    data("without_kld_nats"),
    number("error", "relative_error", ".4f"),
    number("SQNR dB", "sqnr_db", ".1f", 3),
    number("accumulated", "accumulated_relative_error", ".4f", 3),
)
# Units that the first line names.
_NAMED = 3
_FALLS = ("falls by", "how far the model's KLD falls with this unit of the base")
_CHOICE_COLUMNS = (
    words("unit", "unit"),
    words("from", "from", 9),
    words("stored as", "format"),
    number("bits", "bits_per_weight", ".3f", 7),
    Column("alone", "alone_kld_nats", lambda value: f"{value:.4g}", importance=8),
)
_CANDIDATE_COLUMNS = (
    words("quant", None),
    number("bits", None, ".3f", 8),
    Column("predicted", None, lambda value: f"{value:.4g}"),
    Column("KLD", None, lambda metric: f"{metric.value:.4g}", importance=9),
    Column("95 %", None, lambda metric: interval_text(metric, ".3g").removeprefix("95 % ")),
    data("run"),
)


def attribution_document(value: Mapping[str, Any], record: Done, folder: Path) -> Document:
    """The attribution of the run in `folder`: units by what they do alone, the worst first."""
    units = sorted(value["units"], key=lambda unit: -unit["alone"]["value"])
    rows = tuple(_row(rank, unit) for rank, unit in enumerate(units, 1))
    whole, sums = decode(value["kld"], Metric), value["additivity"]
    assert record.reference
    facts = [
        ("model", label_of(record)),
        ("against", base_words(record.reference)),
        ("KLD", f"{whole.value:.6g} nats   {interval_text(whole, '.4g')}"),
        ("sum of alone", _sum(sums["alone"])),
        *([("sum of falls", _sum(sums["fall"]))] if "fall" in sums else []),
        ("over", over_words(whole.n, record.plan.windows)),
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
    first, *others = [f"{u['name']} ({u['alone']['value']:.4g} nats)" for u in units[:_NAMED]]
    then = f", then {' and '.join(others)}" if others else ""
    verdict = Verdict(
        f"{label_of(record)}: {metric_words('kld', whole)}; of {counted(len(units), 'part')}, {first} "
        f"does most alone{then}"
    )
    return Document(
        (
            table.filled(),
            Facts(tuple(facts)),
            Facts(
                (
                    ("alone", "KLD of the base with this unit of the model, and its acceptance"),
                    *([_FALLS] if "fall" in sums else []),
                    ("error", "‖y' - y‖ / ‖y‖ of its output y on the base's inputs; "
                     "accumulated: on the model's own"),
                    ("record", str(folder / f"attribution-{value['by']}.json")),
                )
            ),
        ),
        table,
        verdict,
    )  # fmt: skip


def _sum(metric: Mapping[str, Any]) -> str:
    share = "" if metric["share"] is None else f" = {metric['share']:.1%} of the whole"
    return f"{metric['value']:.6g} nats{share}   95 % {ends(metric_of(metric), '.4g')}"


def _row(rank: int, unit: Mapping[str, Any]) -> tuple[Any, ...]:
    alone, fall = decode(unit["alone"], Metric), metric_of(unit.get("fall"))
    return (
        rank,
        unit["name"],
        ", ".join(unit["formats"]["model"]),
        unit["bits_per_weight"],
        unit["parameters"],
        alone,
        alone.ci95,
        decode(unit["acceptance"], Metric),
        fall,
        fall and fall.ci95,
        fall and unit["fall"]["share"],
        fall and unit["without"]["value"],
        unit["local"]["relative_error"],
        unit["local"]["sqnr_db"],
        unit["accumulated"] and unit["accumulated"]["relative_error"],
    )


def recipe_document(value: Mapping[str, Any], folder: Path) -> Document:
    """The recipe that the run in `folder` measured, beside the quants that it was chosen from."""
    rows = [
        (name, c["bits_per_weight"], c["predicted"], *2 * (metric_of(c["measured"]),), run)
        for name, run, c in (
            *((c["name"], c["run"], c) for c in value["candidates"]),
            ("the recipe", str(folder), value),
        )
    ]
    rows.sort(key=lambda row: row[1])
    own = decode(value["measured"], Metric)
    counts = Counter(choice["from"] for choice in value["choices"])
    facts = [
        ("budget", f"{value['budget']:g} bits per weight, {value['bits_per_weight']:.4f} taken"),
        ("predicted", f"{value['predicted']:.6g} nats: the sum of what its parts do alone"),
        (
            "measured",
            f"{own.value:.6g} nats   {interval_text(own, '.4g')}",
        ),
        ("parts", ", ".join(f"{n} of {name}" for name, n in counts.most_common())),
        ("record", str(folder / "recipe.json")),
    ]
    table = Table(
        _CHOICE_COLUMNS,
        tuple(
            (c["unit"], c["from"], c["format"], c["bits_per_weight"], c["alone"])
            for c in value["choices"]
        ),
    )
    text = (
        f"the recipe takes {value['bits_per_weight']:.4f} of {value['budget']:g} bits per weight: "
        f"{metric_words('kld', own)}"
    )
    fitting = [c for c in value["candidates"] if c["bits_per_weight"] <= value["budget"]]
    if fitting:
        best = min(fitting, key=lambda c: c["measured"]["value"])
        text += f"; the best quant within them, {best['name']}: "
        text += metric_words("kld", decode(best["measured"], Metric))
    candidates = Table(_CANDIDATE_COLUMNS, tuple(rows))
    return Document((table, candidates, Facts(tuple(facts))), table, Verdict(text))
