"""The decision whether the windows of a task's requests share what they have in common, and what the
record says of it."""

from collections.abc import Callable

from scoremode.engines.base import Schedule
from scoremode.engines.torch.matmul.linears import Windows
from scoremode.engines.torch.memory.budget import is_long
from scoremode.engines.torch.memory.rows import RowMemory, choose_rows
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.passes.layers import Layers
from scoremode.engines.torch.passes.padding import may_pad
from scoremode.engines.torch.passes.sharing import why_apart
from scoremode.engines.torch.passes.ways import LayerByLayer, Way
from scoremode.engines.work import Work
from scoremode.text.plan import Plan

__all__ = ["Rows", "is_of_requests"]


def is_of_requests(plan: Plan) -> bool:
    """Tells whether a plan's windows are a task's requests: those of other texts never share."""
    return plan.protocol.is_of_requests


class Rows:
    """Rows of trees for one model's windows, or the reason why there are none.

    - `way`: gives the way that passes take through the layers.
    - `exact`: computed in float32, with no inputs or caches that are quantized.
    - `batch_windows`: as the user wants it.
    """

    def __init__(
        self,
        skeleton: Skeleton,
        layers: Layers,
        windows: Windows,
        way: Callable[[], Way],
        memory: RowMemory,
        *,
        exact: bool,
        batch_windows: int | None,
    ):
        self._skeleton, self._layers, self._windows, self._way = skeleton, layers, windows, way
        self._memory, self.exact, self._batch_windows = memory, exact, batch_windows
        # Why the model's windows go apart, once it was tried.
        self._tried: tuple[str | None] | None = None
        # The plan that was looked at last, and what came of it.
        self._known: tuple[Plan, Schedule | str] | None = None
        self._described: str | None = None

    def schedule(self, plan: Plan, apart: Schedule) -> Schedule:
        """The schedule of requests in rows of trees, or as they go `apart`."""
        found = self._decided(plan, apart)
        return apart if isinstance(found, str) else found

    def holds(self, work: Work) -> bool:
        """Tells whether the work's windows lie in rows of trees and may, and keeps for the record how
        they go."""
        row = work.schedule.row_tokens
        why = self.why_apart() if row is not None else self._decided(work.plan, work.schedule)
        if row is not None and why is None:
            self._described = f"shared in rows of {row} tokens"
            return True
        # A run that is checked may have been made where windows did not share.
        self._described = f"apart: {why if isinstance(why, str) else 'as they were scored before'}"
        return False

    def describe(self) -> dict[str, str]:
        """Returns what the record says, nothing where no requests were scored."""
        return {} if self._described is None else {"prefixes": self._described}

    def why_apart(self) -> str | None:
        """Returns why no windows of this model may share; None where they may."""
        if self._tried is None:
            self._tried = (self._why(),)
        return self._tried[0]

    def _why(self) -> str | None:
        way = self._way()
        if not isinstance(way, LayerByLayer):
            return way.described
        if self._windows.are_spanned:
            return "a scale, or columns of outliers, span a window"
        if not may_pad(self._skeleton.config, self._windows):
            return "its rotations depend on how long a window is"
        return why_apart(self._skeleton, self._layers, exact=self.exact)

    def _decided(self, plan: Plan, apart: Schedule) -> Schedule | str:
        if self._known is None or self._known[0] is not plan:
            self._known = plan, self._decide(plan, apart)
        return self._known[1]

    def _decide(self, plan: Plan, apart: Schedule) -> Schedule | str:
        longest = int(plan.lengths.max())
        if self._batch_windows == 1:
            return "--batch-size 1"
        if is_long(longest):
            return f"windows of {longest} tokens may go in chunks"
        found = choose_rows(plan, apart, self._memory, self._batch_windows)
        if found is None:
            return "they have too little in common"
        return self.why_apart() or found
