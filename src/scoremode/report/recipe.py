"""A recipe as a table: what each part is stored as, and what was predicted and measured of all."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.report.forms.document import Column, Document, Facts, Table, data, number, words
from scoremode.report.layout import interval

__all__ = ["recipe_document"]

_COLUMNS = (
    words("unit", "unit"),
    words("from", "from"),
    words("stored as", "format"),
    number("bits", "bits_per_weight", ".3f"),
    Column("alone", "alone_kld_nats", lambda value: f"{value:.4g}"),
)
_CANDIDATES = (
    words("quant", None),
    number("bits", None, ".3f"),
    Column("predicted", None, lambda value: f"{value:.4g}"),
    Column("KLD", None, lambda metric: f"{metric['value']:.4g}"),
    Column("95 %", None, lambda metric: interval(metric, ".3g").removeprefix("95 % ")),
    data("run"),
)


def recipe_document(value: Mapping[str, Any], folder: Path) -> Document:
    """The recipe that the run in `folder` measured, beside the quants that it was chosen from."""
    rows = [
        (c["name"], c["bits_per_weight"], c["predicted"], c["measured"], c["measured"], c["run"])
        for c in value["candidates"]
    ]
    own = value["bits_per_weight"], value["predicted"], value["measured"], value["measured"]
    rows.append(("the recipe", *own, str(folder)))
    rows.sort(key=lambda row: row[1])
    counts = Counter(choice["from"] for choice in value["choices"])
    facts = [
        ("budget", f"{value['budget']:g} bits per weight, {value['bits_per_weight']:.4f} taken"),
        ("predicted", f"{value['predicted']:.6g} nats: the sum of what its parts do alone"),
        (
            "measured",
            f"{value['measured']['value']:.6g} nats   {interval(value['measured'], '.4g')}",
        ),
        ("parts", ", ".join(f"{n} of {name}" for name, n in counts.most_common())),
        ("record", str(folder / "recipe.json")),
    ]
    table = Table(
        _COLUMNS,
        tuple(
            (c["unit"], c["from"], c["format"], c["bits_per_weight"], c["alone"])
            for c in value["choices"]
        ),
    )
    return Document((table, Table(_CANDIDATES, tuple(rows)), Facts(tuple(facts))), table)
