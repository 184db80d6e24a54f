"""A torch engine among several, one a device: each scores its share of a pass's windows.

A share is a run of whole micro-batches, and a micro-batch's scores do not depend on what else is in its
pass: so the scores are the same to the bit for any number of ranks. A pass is as many times longer as
there are ranks, so that each decodes a layer as rarely as one alone would.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scoremode.engines.base import Extras, OutOfMemory, Progress, Schedule
from scoremode.engines.torch.base_model import LiveReference
from scoremode.engines.torch.engine import TorchEngine
from scoremode.engines.torch.pending import Launched, fetched
from scoremode.engines.torch.ranks.messages import Ranks
from scoremode.engines.work import Work
from scoremode.errors import RunFolderError
from scoremode.reference.keeper import HeadTensors, Keeper
from scoremode.reference.states import write_states
from scoremode.results.scores import Scores, concatenate
from scoremode.text.plan import Plan

__all__ = ["RankedEngine", "deal"]

# Fields that each rank says of itself beside its scores.
_OWN = ("tokens", "seconds", "peak_bytes")
# The field that a share which did not fit comes back with: why it did not.
_NO_MEMORY = "out_of_memory"


def deal(work: Work, shares: int) -> list[Work]:
    """A pass in so many runs of whole micro-batches, about alike in tokens.

    Some may have no windows. The first is rather the smaller one: its rank also writes.
    """
    batches = work.batches
    done = np.cumsum([0, *(work.part(batch).tokens for batch in batches)])
    # Cut where it is nearest to even; of two such places at the first.
    cuts = [int(np.abs(done * shares - done[-1] * i).argmin()) for i in range(shares + 1)]
    starts = [batch.start for batch in batches] + [work.windows.stop]
    return [work.part(range(starts[a], starts[b])) for a, b in pairwise(cuts)]


class RankedEngine:
    """`engine`, which is this rank's, as one of `ranks`: on the first rank an Engine."""

    def __init__(self, engine: TorchEngine, ranks: Ranks):
        self._engine, self._ranks = engine, ranks
        self._told: dict[int, dict[str, Any]] = {}
        self._waited = 0.0

    @property
    def vocabulary(self) -> int:
        return self._engine.vocabulary

    def schedule(self, plan: Plan) -> Schedule:
        """The engine's own with a longer pass, where that leaves the micro-batches as they are."""
        own = self._engine.schedule(plan)
        longer = replace(own, pass_windows=own.pass_windows * self._ranks.size)
        return longer if _all_batches(longer, plan) == _all_batches(own, plan) else own

    def score(
        self,
        plan: Plan,
        schedule: Schedule,
        first_pass: int = 0,
        progress: Progress | None = None,
        extras: Extras | None = None,
    ) -> Iterator[Scores]:
        passes = Work.passes(plan, schedule, first_pass, progress, extras)
        keeper = None if extras is None else extras.keeper
        command = {"do": "score", "schedule": schedule.to_json(), "first_pass": first_pass}
        number = self._ranks.tell(command | {"keeps": keeper is not None})
        try:
            # As one GPU does it: the next pass is begun before this one's scores are waited for.
            yield from fetched(self._begun(number, passes, keeper), ahead=True)
        except OutOfMemory:
            # What comes next is another command, and some may be at work on this one.
            self._ranks.abandon(number)
            raise

    def _begun(
        self, command: int, passes: Sequence[Work], keeper: Keeper | None
    ) -> Iterator[Callable[[], Scores]]:
        """Begins each pass of a command, which the other ranks have been told; a call waits for it."""
        for work in passes:
            with (
                self._states_file(work, keeper) as states,
                self._abandoned_first(command, states),
            ):
                begun = self._begin(command, work, states)
                if states is not None:
                    # The file is whole when the scores of all ranks are there.
                    begun.parts = [self._finish(begun)]
            yield partial(self._finish, begun)

    def _begin(self, command: int, work: Work, states: Path | None) -> "_Pass":
        """Begins a pass; `states` is where the rows of its final states go."""
        shares = deal(work, self._ranks.size)
        if states is not None:
            # An empty share may lie at the end of the plan.
            offsets = work.plan.offsets
            at = [int(offsets[s.windows.start] - offsets[work.windows.start]) for s in shares]
            for rank in range(1, len(shares)):
                file = {"path": str(states.resolve()), "at": at[rank]}
                self._ranks.leave(_name("states", command, work, rank), {}, file)
            shares[0] = replace(shares[0], keeper=_Rows(states, at[0]))
        own = self._engine.launch(shares[0]) if shares[0].windows else None
        return _Pass(command, work, shares, own)

    def _finish(self, begun: "_Pass") -> Scores:
        """All ranks' Scores of a pass."""
        if begun.parts:
            return concatenate(begun.parts)
        work = begun.work
        # A base in the same process has gone through the same windows.
        models = 2 if isinstance(work.reference, LiveReference) else 1
        parts = [] if begun.own is None else [begun.own.scores()]
        begin = time.perf_counter()
        for rank, share in enumerate(begun.shares[1:], 1):
            if share.windows:
                columns, told = self._ranks.take(_name("scores", begun.command, work, rank))
                if _NO_MEMORY in told:
                    raise OutOfMemory(f"{self._ranks.title(rank)}: {told[_NO_MEMORY]}")
                self._told[rank] = told
                parts.append(Scores.from_columns(columns))
                work.progress(float(models * share.tokens))
        self._waited += time.perf_counter() - begin
        return concatenate(parts)

    @contextmanager
    def _states_file(self, work: Work, keeper: Keeper | None) -> Iterator[Path | None]:
        """A file for the states of a pass, which is the keeper's when the block ends well."""
        if keeper is None:
            yield None
            return
        offsets, windows = work.plan.offsets, work.windows
        rows = int(offsets[windows.stop] - offsets[windows.start])
        width = self._engine.head.weight.shape[1]
        with keeper.filling(work.number, rows, width, self._engine.dtype) as path:
            yield path

    @contextmanager
    def _abandoned_first(self, command: int, states: Path | None) -> Iterator[None]:
        """Says that a command is abandoned before the file of its states goes: a rank that finds no
        file knows why."""
        try:
            yield
        except OutOfMemory:
            if states is not None:
                self._ranks.abandon(command)
            raise

    def serve(self, plan: Plan, command: dict[str, Any], extras: Extras) -> None:
        """Scores, on another rank than the first, its share of what the first one's `score` was asked
        for, until that is done, abandoned or too large for its device, which the first one is told.

        `command`: as `score` tells it.
        """
        try:
            self._serve(plan, command, extras)
        except RunFolderError:
            # A rank that was late opens the states' file when the first one has taken it away.
            if not self._ranks.is_abandoned(command["number"]):
                raise

    def _serve(self, plan: Plan, command: dict[str, Any], extras: Extras) -> None:
        number, keeps = command["number"], command["keeps"]
        rank = self._ranks.place.rank
        waiting: tuple[str, Launched] | None = None

        def leave() -> None:
            if waiting is not None:
                self._ranks.leave(waiting[0], waiting[1].scores().columns(), self._facts())

        schedule = Schedule(**command["schedule"])
        for work in Work.passes(plan, schedule, command["first_pass"], None, extras):
            share = deal(work, self._ranks.size)[rank]
            if self._ranks.is_abandoned(number):
                return
            if keeps:
                # The first rank waits for the one before.
                leave()
                waiting = None
                name = _name("states", number, work, rank)
                if not self._ranks.comes(name, number):
                    return
                file = self._ranks.take(name)[1]
                share = replace(share, keeper=_Rows(Path(file["path"]), file["at"]))
            if share.windows:
                name = _name("scores", number, work, rank)
                try:
                    begun = self._engine.launch(share)
                except OutOfMemory as error:
                    leave()
                    self._ranks.leave(name, {}, {_NO_MEMORY: str(error)})
                    return
                leave()
                waiting = name, begun
                if keeps:
                    leave()
                    waiting = None
        leave()

    def head_tensors(self) -> HeadTensors:
        return self._engine.head_tensors()

    def identity(self) -> dict[str, Any]:
        """The engine's own: the number of ranks moves no score, and a run may go on with another."""
        return self._engine.identity()

    def describe(self) -> dict[str, Any]:
        """The first rank's with the work of all; `devices` tells of each apart."""
        own = self._engine.describe()
        ranks = [self._facts(), *(self._told.get(r, {}) for r in range(1, self._ranks.size))]
        return own | {
            "tokens": sum(told.get("tokens", 0) for told in ranks),
            "seconds": own["seconds"] | {"wait": round(self._waited, 3)},
            "peak_bytes": max(told.get("peak_bytes", 0) for told in ranks),
            "devices": [{"rank": rank} | told for rank, told in enumerate(ranks)],
        }

    def close(self) -> None:
        self._engine.close()

    def _facts(self) -> dict[str, Any]:
        described = self._engine.describe()
        name = described["device"]["name"]
        return {"device": self._ranks.device, "name": name} | {k: described[k] for k in _OWN}


@dataclass
class _Pass:
    """A pass of a command that has begun: each rank's share, and this one's scores on their way.

    `parts`: all scores, where they had to be waited for.
    """

    command: int
    work: Work
    shares: list[Work]
    own: Launched | None
    parts: list[Scores] = field(default_factory=list)


def _all_batches(schedule: Schedule, plan: Plan) -> list[range]:
    return [batch for windows in schedule.passes(plan) for batch in schedule.batches(plan, windows)]


def _name(kind: str, command: int, work: Work, rank: int) -> str:
    """The name of what a rank gives or gets for one pass of one command."""
    return f"{kind}/{command}/{work.number}/{rank}"


class _Rows:
    """A pass's file of states as one rank sees it: the place of its share's rows."""

    def __init__(self, path: Path, at: int):
        self._path, self._at = path, at

    def put(self, number: int, states: Sequence[torch.Tensor]) -> None:
        """Writes a share's states; all of them are in the file when the rank's scores are there."""
        if states[0].is_cuda:
            # They are read by another stream than the one that is making them.
            torch.cuda.current_stream(states[0].device).synchronize()
        at = self._at
        try:
            for part in states:
                write_states(self._path, at, part)
                at += len(part)
        except OSError as error:
            raise RunFolderError(f"{self._path}: {error.strerror}") from None
