"""A run, and the base, as the report's data has them."""

from collections.abc import Mapping
from typing import Any

from scoremode.report.page.definition import Base, Measured, Run
from scoremode.report.page.gathered.numbers import measured, measured_at
from scoremode.report.page.gathered.provenance import provenance
from scoremode.report.page.gathered.summary import PERCENTILES, Summary
from scoremode.results.comparison.rows import gib_of
from scoremode.results.record.shape import value_at

__all__ = ["base_of", "run_of", "source_of"]


def run_of(
    summary: Summary, id_: str, model: int, name: str, ends: Mapping[str, Any], *, of_base: bool
) -> Run:
    """A run by its summary; `ends`: how sure its metrics are by its section's blocks; `of_base`: it is
    one of the base's own files."""
    record, compared = summary.run.record, summary.compared
    checkpoint, metrics = record["checkpoint"], _by(ends, record)
    own = {} if compared is None else compared.metrics
    made = {name: measured(own[name]) for name in (*PERCENTILES.values(), "lost", "gained") if own}
    size = checkpoint.get("bytes")
    top1, noise = measured_at(metrics, "top1"), record.get("noise_floor")
    return {
        "id": id_,
        "model": model,
        "name": name,
        "source": checkpoint["source"],
        "folder": str(summary.run.folder),
        "is_base": of_base,
        "format": ", ".join(checkpoint["formats"]),
        "bytes": size,
        "gib": gib_of(checkpoint),
        "mib": None if size is None else size / 2**20,
        "bits_body": value_at(checkpoint, "bits_per_weight.body"),
        "bits_file": value_at(checkpoint, "bits_per_weight.file"),
        "parameters": checkpoint.get("parameters"),
        "ppl": _there(metrics, "ppl"),
        "nll": _there(metrics, "nll"),
        "bits_per_byte": measured_at(metrics, "bits_per_byte"),
        "ppl_ratio": measured_at(metrics, "ppl_ratio"),
        "kld": measured_at(metrics, "kld"),
        "kld_median": made.get("kld_median"),
        "kld_p90": made.get("kld_p90"),
        "kld_p99": made.get("kld_p99"),
        "kld_p999": made.get("kld_p999"),
        "kld_max": value_at(record, "distribution.kld.maximum"),
        "top1": top1,
        "flips": _less_than_one(top1),
        "confident_flips": measured_at(metrics, "confident_flips"),
        "lost": made.get("lost"),
        "gained": made.get("gained"),
        "noise": measured_at(noise, "kld") if noise else None,
        "provenance": provenance(record),
    }


def base_of(
    record: Mapping[str, Any], name: str, run: str | None, ends: Mapping[str, Any]
) -> Base | None:
    """The base that a run was held against, None for one without; `run`: id of a run of its files,
    `ends`: as for `run_of`."""
    if (reference := record.get("reference")) is None:
        return None
    # A file of logits has no checkpoint.
    checkpoint, metrics = reference.get("checkpoint") or {}, _by(ends, record)
    size = checkpoint.get("bytes")
    return {
        "name": name,
        "source": source_of(record),
        "kind": str(reference.get("kind", "")),
        "sha256": str(reference.get("sha256", "")),
        "run": run,
        "bytes": size,
        "gib": gib_of(checkpoint),
        "mib": None if size is None else size / 2**20,
        "bits_body": value_at(checkpoint, "bits_per_weight.body"),
        "bits_file": value_at(checkpoint, "bits_per_weight.file"),
        "dtype": value_at(reference, "engine.dtype"),
        "ppl": _there(metrics, "ppl_base"),
        "nll": _there(metrics, "nll_base"),
    }


def source_of(record: Mapping[str, Any]) -> str:
    """Where the base of a run is from: its checkpoint where it has one."""
    reference = record["reference"]
    return str((reference.get("checkpoint") or {}).get("source") or reference["source"])


def _by(ends: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """The record's metrics, with a section's intervals where it has them."""
    return {name: metric | ends.get(name, {}) for name, metric in record["metrics"].items()}


def _there(metrics: Mapping[str, Any], name: str) -> Measured:
    found = measured_at(metrics, name)
    assert found is not None, name
    return found


def _less_than_one(share: Measured | None) -> Measured | None:
    if share is None:
        return None
    lower, upper = share["upper"], share["lower"]
    return {
        **share,
        "value": 1 - share["value"],
        "lower": None if lower is None else 1 - lower,
        "upper": None if upper is None else 1 - upper,
    }
