"""The scores of a run's finished passes, watched while it goes: the running estimate, and the end by a
rule."""

from collections.abc import Callable, Mapping

from scoremode.results.scores import Scores
from scoremode.results.statistics.stopping import look_at
from scoremode.results.statistics.windows import (
    Estimate,
    WindowSums,
    estimates_of,
    window_sums,
)
from scoremode.text.plan import Plan

__all__ = ["RunWatch", "Watch"]

# Called with the metrics of the windows done, by name: `ppl`, against a base `ppl_ratio` and `kld`.
Watch = Callable[[Mapping[str, Estimate]], None]


class RunWatch:
    """The window sums of a plan's passes, as they come; `watch` is told what they say, if anybody."""

    def __init__(self, plan: Plan, watch: Watch | None = None):
        self._plan, self._watch = plan, watch
        self._weights = plan.weights()
        self._parts: list[WindowSums] = []

    @property
    def looks(self) -> bool:
        """Tells whether anybody looks at the scores meanwhile."""
        return self._watch is not None or self._plan.protocol.stop_when is not None

    def add(self, scores: Scores) -> None:
        """Takes the scores of the next pass."""
        if not self.looks:
            return
        weights = None if self._weights is None else self._weights[scores.window]
        chats = self._plan.conversation
        conversation = None if chats is None else chats[scores.window]
        self._parts.append(window_sums(scores, weights, conversation))
        if self._watch is not None:
            plan, length = self._plan, self._plan.protocol.context_length
            assert length is not None
            drawn_from = None if plan.protocol.seed is None else plan.draws
            self._watch(estimates_of(WindowSums.joined(self._parts), length, drawn_from))

    def ends(self, windows: int) -> bool:
        """Tells whether the plan's rule ends the run at this look; never without a rule."""
        rule = self._plan.protocol.stop_when
        if rule is None:
            return False
        sums = WindowSums.joined(self._parts)
        assert len(sums) >= windows, f"a look at {windows} windows of {len(sums)}"
        return look_at(sums.first(windows), self._plan.draws, rule).met
