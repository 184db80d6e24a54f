"""A run's record as it begins: all that is known before a pass is scored."""

from typing import Any

from scoremode.engines.base import Schedule
from scoremode.results.record import sections as records
from scoremode.runs.context import RunContext

__all__ = ["new_record"]


def new_record(context: RunContext, identity: dict[str, Any], schedule: Schedule) -> dict[str, Any]:
    """The record of a run that has yet to score its first pass, with status `running`."""
    # Here, since it needs torch, which takes seconds to import, and a plan alone does not.
    from scoremode.schemes.summary import stored_summary

    checkpoint, baseline = context.checkpoint, context.baseline
    source = {
        "source": checkpoint.source,
        "path": str(checkpoint.path.resolve()),
        "fingerprint": checkpoint.fingerprint,
    }
    reference = {} if baseline is None else {"reference": baseline.section()}
    return {
        "schema": records.SCHEMA,
        "schema_version": records.SCHEMA_VERSION,
        "status": "running",
        "created": records.now(),
        "command": list(context.request.command),
        "versions": records.versions(),
        "identity": identity,
        "checkpoint": source | stored_summary(checkpoint),
        **context.planned.to_json(context.request.corpus),
        "schedule": schedule.to_json(),
        **reference,
        "parts": [],
    }
