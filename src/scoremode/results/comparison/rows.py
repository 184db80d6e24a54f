"""A finished run, and the base that it was held against, as a line of a table: plain values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.results.metrics import MetricSpec, shown
from scoremode.results.record.section import value_at


def run_row(record: Mapping[str, Any], folder: Path | None, model: str) -> dict[str, Any]:
    """What a table of runs shows of one; `model` is what the table calls it."""
    metrics = {metric.key: _value(record, metric) for metric, _ in shown("runs")}
    return {
        "model": model,
        "source": record["checkpoint"]["source"],
        "folder": None if folder is None else str(folder),
        "is_base": False,
        "ppl": metrics.pop("ppl"),
        **_of_words(record, "word_perplexity"),
        "ppl_ratio": (ratio := metrics.pop("ppl_ratio")),
        "ratio_to": None if ratio is None else "reference",
        **metrics,
        "bits_per_weight": value_at(record, "checkpoint.bits_per_weight.body"),
        "gib": gib_of(record["checkpoint"]),
    }


def base_row(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same of the base, as far as a run against it knows; None for a run without one."""
    reference, ppl = record.get("reference"), value_at(record, "metrics.ppl_base")
    if reference is None or ppl is None:
        return None
    # A file of logits has no checkpoint.
    checkpoint = reference.get("checkpoint") or {}
    source = str(checkpoint.get("source") or reference.get("source", "base"))
    others = [m.key for m, _ in shown("runs") if m.base and m.key != "ppl_ratio"]
    nothing = dict.fromkeys(("folder", "ppl_ratio", "ratio_to", *others))
    return {
        "model": short_name(source),
        "source": source,
        **nothing,
        "is_base": True,
        "ppl": ppl,
        **_of_words(record, "word_perplexity_base"),
        "bits_per_weight": value_at(checkpoint, "bits_per_weight.body"),
        "gib": gib_of(checkpoint),
    }


def _value(record: Mapping[str, Any], metric: MetricSpec) -> Any:
    """A metric of a record; of a percentile the number alone."""
    if metric.percent is not None:
        return value_at(record, f"distribution.kld.{metric.percent:g}")
    return value_at(record, f"metrics.{metric.key}")


def _of_words(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """`word_ppl` of a run under the protocol lm-eval; nothing of others."""
    metric = value_at(record, f"pages.metrics.{name}")
    return {} if metric is None else {"word_ppl": metric}


def is_base(record: Mapping[str, Any], reference: Mapping[str, Any] | None) -> bool:
    """Tells whether a run is of the very files that a reference (a record's section) was made of, and
    not at a distance from it: the same files by another arithmetic are another model."""
    files = None if reference is None else value_at(reference, "checkpoint.files")
    if not files or files != record["checkpoint"].get("files"):
        return False
    return not value_at(record, "metrics.kld.value")


def short_name(source: str) -> str:
    """A model's last part: `hub:ORG/NAME@COMMIT` is NAME; what a mixture has from others stays."""
    own, plus, taken = source.partition(" + ")
    if own.startswith("hub:"):
        own = own.removeprefix("hub:").partition("@")[0]
    return f"{Path(own).name or own}{plus}{taken}"


def gib_of(checkpoint: Mapping[str, Any]) -> float | None:
    """The size of a checkpoint's weights, to the byte where the record has bytes."""
    if (size := checkpoint.get("bytes")) is not None:
        return size / 2**30
    return checkpoint.get("gib")
