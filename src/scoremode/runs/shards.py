"""A run of a shard: whole passes of the run that one process would make, scored as it would.

The schedule is the whole run's, and the windows before a shard's are planned as well and never scored.
So a shard's micro-batches, and with them its scores, are those of the whole run to the bit, however
many shards there are. `results.shards` makes one run of them.
"""

from dataclasses import dataclass
from typing import Any

from scoremode.engines.base import Schedule
from scoremode.errors import UsageError
from scoremode.lib.json import json_digest
from scoremode.results.shards import Shard
from scoremode.text.plan import Plan


@dataclass(frozen=True)
class Share:
    """The windows of each of the `passes` that a run scores, and how many passes it leaves to others
    `before` them."""

    passes: list[range]
    before: int = 0

    @property
    def windows(self) -> range:
        """The share's windows, which are neighbours."""
        return range(self.passes[0].start, self.passes[-1].stop)


def share_of(schedule: Schedule, shard: Shard | None, plan: Plan) -> Share:
    """The share of `plan` that a run scores: all of it, or that of its shard."""
    passes = schedule.passes(plan)
    if shard is None:
        return Share(passes)
    own = shard.among(len(passes))
    return Share(passes[own.start : own.stop], own.start)


def shard_section(shard: Shard, schedule: Schedule, plan: Plan) -> dict[str, Any]:
    """The record's section `shard`. Raises UsageError for more shards than there are passes."""
    passes = schedule.passes(plan)
    if shard.of > len(passes):
        words = "pass" if len(passes) == 1 else "passes"
        raise UsageError(
            f"--shard {shard}: the run has {len(passes)} {words} (a pass is {len(passes[0])} of its "
            f"{len(plan)} windows), and each shard takes whole ones: N may be at most {len(passes)}"
        )
    own = shard.among(len(passes))
    begin, end = passes[own.start].start, passes[own.stop - 1].stop
    return {
        **shard.to_json(),
        "passes": [own.start, own.stop],
        "of_passes": len(passes),
        "windows": [begin, end],
        "targets": int(plan.offsets[end] - plan.offsets[begin]),
        "batches_sha256": batches_sha256(schedule, plan),
    }


def batches_sha256(schedule: Schedule, plan: Plan) -> str:
    """The sha256 of all that a score depends on of a schedule: the whole plan's micro-batches, the
    chunks of long windows, and rows that hold windows which begin alike."""
    batches = [
        [batch.start, batch.stop]
        for windows in schedule.passes(plan)
        for batch in schedule.batches(plan, windows)
    ]
    rows = [] if schedule.row_tokens is None else [schedule.row_tokens]
    return json_digest([batches, schedule.chunk_tokens, *rows])
