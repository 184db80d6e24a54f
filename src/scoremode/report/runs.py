"""Finished runs as a table, a line each, whoever shows it."""

from collections.abc import Iterable, Mapping
from typing import Any

from scoremode.report.forms.document import (
    Column,
    Said,
    Table,
    data,
    interval,
    measured,
    number,
    size,
    words,
)

__all__ = ["runs_table"]


def runs_table(
    rows: Iterable[Mapping[str, Any]],
    further: Mapping[str, Column] | None = None,
) -> Table:
    """Lines of runs (`results.comparison.rows`), in their order; a base's has no KLD.

    `further`: columns behind the others, by their names in the rows.
    """
    rows, further = list(rows), further or {}
    # Of the protocol lm-eval alone.
    words_too = {"word_ppl": measured("word PPL", "word_ppl", ".4f")}
    if any("word_ppl" in row for row in rows):
        further = words_too | dict(further)
    columns = (
        data("rank"),
        words("model", "model"),
        words(None, "folder"),
        data("is_base"),
        data("n"),
        measured("PPL", "ppl", ".4f"),
        interval(".4f"),
        measured("PPL / base", "ppl_ratio", ".5f", "×"),
        interval(".5f"),
        measured("KLD (nats)", "kld_nats", ".4g"),
        interval(".4g"),
        number("KLD p99", "kld_p99_nats", ".4g"),
        measured("same top-1", "top1_share", ".2%"),
        number("bits/weight", "bits_per_weight", ".3f"),
        size(row["gib"] for row in rows),
        *further.values(),
    )
    return Table(columns, tuple((*_cells(row), *(row.get(k) for k in further)) for row in rows))


def _cells(row: Mapping[str, Any]) -> tuple[Any, ...]:
    ratio = Said("base") if row["is_base"] and row["ppl_ratio"] is None else row["ppl_ratio"]
    return (
        *(row.get("rank"), row["model"], row["folder"], row["is_base"], row["ppl"]["n"]),
        *(row["ppl"], _ends(row["ppl"])),
        *(ratio, _ends(row["ppl_ratio"])),
        *(row["kld"], _ends(row["kld"])),
        *(row["kld_p99"], row["top1"], row["bits_per_weight"], row["gib"]),
    )


def _ends(metric: Mapping[str, Any] | None) -> Any:
    return None if metric is None else metric["ci95"]
