"""A run's identity: another must share it to go on with the run, every rank to take part in it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scoremode.errors import EngineError
from scoremode.results.record.differences import first_difference
from scoremode.results.record.sections import versions
from scoremode.results.statistics.effects import CONFIDENT
from scoremode.runs.context import RunContext

if TYPE_CHECKING:
    from scoremode.engines.torch.ranks.messages import Ranks

__all__ = ["agree", "identity_of"]


def identity_of(context: RunContext) -> dict[str, Any]:
    """All that two runs must share to be one, checked field by field before one goes on; and all ranks
    of one run."""
    request = context.request
    identity: dict[str, Any] = {
        "checkpoint": context.checkpoint.fingerprint,
        **context.planned.identity(),
        "engine": context.engine.identity(),
        "versions": versions(),
    }
    if context.baseline is not None:
        identity["reference"] = context.baseline.identity()
        identity |= {"full": request.full, "noise_floor": request.noise_floor}
        if request.confident != CONFIDENT:
            identity["confident"] = request.confident
    if request.keep is not None:
        identity["keep"] = request.keep
    if request.calibration is not None:
        identity["calibration"] = request.calibration.identity()
    if request.judge is not None:
        identity["tasks"] = request.judge.identity()
    if request.token_text:
        identity["token_text"] = True
    if request.shard is not None:
        identity["shard"] = request.shard.to_json()
    return identity


def agree(ranks: "Ranks", identity: Mapping[str, Any]) -> None:
    """Makes sure, on the first rank, that the others would score what this one does, as it does.

    `identity`: as a run's. Raises EngineError.
    """
    ours, *others = [_compared(facts) for facts in ranks.agree(identity)]
    for rank, theirs in enumerate(others, 1):
        if found := first_difference("", theirs, ours):
            field, value, own = found
            title = ranks.title(rank) if ranks.place.spans_nodes else f"rank {rank}"
            raise EngineError(
                f"{title} is not like rank 0: its {field} is {value!r}, rank 0's {own!r}"
            )


def _compared(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The identity but for the memory, which only the first rank's schedule is made from."""
    engine = identity["engine"]
    device = {k: v for k, v in engine["device"].items() if k != "memory_bytes"}
    return {**identity, "engine": engine | {"device": device}}
