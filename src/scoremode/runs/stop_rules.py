"""Refusals of requests that a rule to stop by can't be kept in."""

from typing import TYPE_CHECKING

from scoremode.errors import UsageError
from scoremode.text.stopping import stop_rule

if TYPE_CHECKING:
    from scoremode.runs.request import Request

__all__ = ["check_stopping"]


def check_stopping(request: "Request") -> None:
    """Raises UsageError where the request has a rule to stop by that it can't keep, or that nothing
    it measures can meet; ProtocolError for what is no rule."""
    if (written := request.protocol.stop_when) is None:
        return
    rule = stop_rule(written)
    if request.keep is not None:
        raise UsageError(
            f"--stop-when {rule}: a reference has all windows, of which any run may take some: keep it "
            "without, and give --stop-when to scoremode kld"
        )
    if rule.metric == "kld" and request.reference is None:
        raise UsageError(f"--stop-when {rule}: there is no KLD without --reference BASE")
    if request.noise_floor is not None:
        raise UsageError(
            f"--stop-when {rule} and --noise-floor {request.noise_floor}: the base would run again "
            "over all windows"
        )
