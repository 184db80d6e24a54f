"""What makes a run that run: another must share it to go on with it, every rank to take part in it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.base import Engine
from scoremode.errors import EngineError
from scoremode.results.record import sections as records
from scoremode.runs.request import Request
from scoremode.runs.resuming import first_difference
from scoremode.text.plan import Plan

if TYPE_CHECKING:
    from scoremode.engines.torch.ranks.messages import Ranks
    from scoremode.runs.baselines import Baseline

__all__ = ["agree", "identity_of"]


def identity_of(
    request: Request,
    checkpoint: Checkpoint,
    plan: Plan,
    engine: Engine,
    baseline: "Baseline | None",
) -> dict[str, Any]:
    """What two runs must share to be one, checked field by field before one goes on; and all ranks of
    one run."""
    identity: dict[str, Any] = {
        "checkpoint": checkpoint.fingerprint,
        "plan": plan.sha256,
        "engine": engine.identity(),
        "versions": records.versions(),
    }
    if baseline is not None:
        identity["reference"] = baseline.identity()
        identity |= {"full": request.full, "noise_floor": request.noise_floor}
    if request.keep is not None:
        identity["keep"] = request.keep
    return identity


def agree(ranks: "Ranks", identity: Mapping[str, Any]) -> None:
    """On the first rank: makes sure that the others would score what this one does, as it does.

    `identity`: as a run's. Raises EngineError.
    """
    ours, *others = [_compared(facts) for facts in ranks.agree(identity)]
    for rank, theirs in enumerate(others, 1):
        if found := first_difference("", theirs, ours):
            field, value, own = found
            raise EngineError(
                f"rank {rank} is not like rank 0: its {field} is {value!r}, rank 0's {own!r}"
            )


def _compared(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What must be alike: not the memory, which only the first rank's schedule is made from."""
    engine = identity["engine"]
    device = {k: v for k, v in engine["device"].items() if k != "memory_bytes"}
    return {**identity, "engine": engine | {"device": device}}
