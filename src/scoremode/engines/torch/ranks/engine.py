"""A torch engine among several, one a device: each scores its share of a pass's windows.

A share is a run of whole micro-batches, and a micro-batch's scores do not depend on what else is in its
pass: so the scores are the same to the bit for any number of ranks. A pass is as many times longer as
there are ranks, so that each decodes a layer as rarely as one alone would.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from scoremode.engines.base import Extras, OutOfMemory, Progress, Schedule
from scoremode.engines.torch.base_model import LiveReference
from scoremode.engines.torch.engine import TorchEngine
from scoremode.engines.torch.pending import Launched
from scoremode.engines.torch.ranks.messages import Ranks
from scoremode.errors import RunFolderError
from scoremode.reference.keeper import HeadTensors, Keeper
from scoremode.reference.states import write_states
from scoremode.results.scores import Scores, concatenate
from scoremode.text.plan import Plan

__all__ = ["RankedEngine", "deal"]

# What each rank says of itself beside its scores.
_OWN = ("tokens", "seconds", "peak_bytes")
# Of a share that did not fit: why.
_NO_MEMORY = "out_of_memory"


def deal(plan: Plan, schedule: Schedule, windows: range, shares: int) -> list[range]:
    """A pass's windows in so many runs of whole micro-batches, about alike in tokens.

    Some may be empty. The first is rather the smaller one: its rank also writes.
    """
    batches = schedule.batches(plan, windows)
    tokens = [int(plan.lengths[batch.start : batch.stop].sum()) for batch in batches]
    done = np.cumsum([0, *tokens])
    # Cut where it is nearest to even; of two such places at the first.
    cuts = [int(np.abs(done * shares - done[-1] * i).argmin()) for i in range(shares + 1)]
    starts = [batch.start for batch in batches] + [windows.stop]
    return [range(starts[a], starts[b]) for a, b in pairwise(cuts)]


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
        extras = extras or Extras()
        keeps = extras.keeper is not None
        command = {"do": "score", "schedule": schedule.to_json(), "first_pass": first_pass}
        number = self._ranks.tell(command | {"keeps": keeps})
        try:
            yield from self._passes(plan, schedule, first_pass, number, progress, extras)
        except OutOfMemory:
            # What comes next is another command, and some may be at work on this one.
            self._ranks.abandon(number)
            raise

    def _passes(
        self,
        plan: Plan,
        schedule: Schedule,
        first_pass: int,
        number: int,
        progress: Progress | None,
        extras: Extras,
    ) -> Iterator[Scores]:
        """The Scores of each pass of the command `number`, which the other ranks have been told."""
        # As one engine does it: the next pass is begun before this one's scores are waited for.
        waiting: _Pass | None = None
        for i, windows in enumerate(schedule.passes(plan)[first_pass:], first_pass):
            name = number, i
            try:
                with (
                    self._states_file(plan, windows, extras.keeper, i) as states,
                    self._abandoned_first(number, states),
                ):
                    begun = self._begin(plan, schedule, windows, name, progress, extras, states)
                    if states is not None:
                        # The file is whole when the scores of all ranks are there.
                        begun.parts = [self._finish(begun, plan, progress, extras)]
            except OutOfMemory:
                if waiting is not None:
                    yield self._finish(waiting, plan, progress, extras)
                raise
            if waiting is not None:
                yield self._finish(waiting, plan, progress, extras)
            waiting = begun
        if waiting is not None:
            yield self._finish(waiting, plan, progress, extras)

    def _begin(
        self,
        plan: Plan,
        schedule: Schedule,
        windows: range,
        name: tuple[int, int],
        progress: Progress | None,
        extras: Extras,
        states: Path | None,
    ) -> "_Pass":
        """Begins the pass that is the second of `name`, as the command that is the first asks for it;
        `states` is where the rows of its final states go."""
        shares = deal(plan, schedule, windows, self._ranks.size)
        at = [int(plan.offsets[share.start] - plan.offsets[windows.start]) for share in shares]
        if states is not None:
            for rank in range(1, len(shares)):
                file = {"path": str(states.resolve()), "at": at[rank]}
                self._ranks.leave(_name("states", name, rank), {}, file)
            extras = replace(extras, keeper=_rows_of(states, at[0]))
        own = None
        if shares[0]:
            own = self._engine.launch(plan, schedule, shares[0], name[1], progress, extras)
        return _Pass(name, shares, own)

    def _finish(
        self, begun: "_Pass", plan: Plan, progress: Progress | None, extras: Extras
    ) -> Scores:
        """All ranks' Scores of a pass."""
        if begun.parts:
            return concatenate(begun.parts)
        parts = [] if begun.own is None else [begun.own.scores()]
        begin = time.perf_counter()
        for rank, share in enumerate(begun.shares[1:], 1):
            if share:
                columns, told = self._ranks.take(_name("scores", begun.name, rank))
                if _NO_MEMORY in told:
                    raise OutOfMemory(f"{self._ranks.title(rank)}: {told[_NO_MEMORY]}")
                self._told[rank] = told
                parts.append(Scores.from_columns(columns))
                if progress:
                    # A base in the same process has gone through the same windows.
                    models = 2 if isinstance(extras.reference, LiveReference) else 1
                    tokens = plan.lengths[share.start : share.stop].sum()
                    progress(models * float(tokens))
        self._waited += time.perf_counter() - begin
        return concatenate(parts)

    @contextmanager
    def _states_file(
        self, plan: Plan, windows: range, keeper: Keeper | None, number: int
    ) -> Iterator[Path | None]:
        """A file for the states of a pass, which is the keeper's when the block ends well."""
        if keeper is None:
            yield None
            return
        rows = int(plan.offsets[windows.stop] - plan.offsets[windows.start])
        width = self._engine.head.weight.shape[1]
        with keeper.filling(number, rows, width, self._engine.dtype) as path:
            yield path

    @contextmanager
    def _abandoned_first(self, number: int, states: Path | None) -> Iterator[None]:
        """Says that a command is abandoned before the file of its states goes: a rank that finds no
        file knows why."""
        try:
            yield
        except OutOfMemory:
            if states is not None:
                self._ranks.abandon(number)
            raise

    def serve(self, plan: Plan, command: dict[str, Any], extras: Extras) -> None:
        """On the other ranks: this one's share of what the first rank's `score` was asked for, until
        it is done, abandoned or too large for this rank's device, which the first one is told.

        `command`: as `score` tells it.
        """
        try:
            self._serve(plan, command, extras)
        except RunFolderError:
            # A rank that was late opens the states' file when the first one has taken it away.
            if not self._ranks.is_abandoned(command["number"]):
                raise

    def _serve(self, plan: Plan, command: dict[str, Any], extras: Extras) -> None:
        schedule, first_pass = Schedule(**command["schedule"]), command["first_pass"]
        number = command["number"]
        rank = self._ranks.place.rank
        waiting: tuple[str, Launched] | None = None

        def leave() -> None:
            if waiting is not None:
                self._ranks.leave(waiting[0], waiting[1].scores().columns(), self._facts())

        for i, windows in enumerate(schedule.passes(plan)[first_pass:], first_pass):
            share = deal(plan, schedule, windows, self._ranks.size)[rank]
            if self._ranks.is_abandoned(number):
                return
            name = number, i
            given = extras
            if command["keeps"]:
                # The first rank waits for the one before.
                leave()
                waiting = None
                if not self._ranks.comes(_name("states", name, rank), number):
                    return
                file = self._ranks.take(_name("states", name, rank))[1]
                given = replace(extras, keeper=_rows_of(Path(file["path"]), file["at"]))
            if share:
                try:
                    begun = self._engine.launch(plan, schedule, share, i, None, given)
                except OutOfMemory as error:
                    leave()
                    self._ranks.leave(_name("scores", name, rank), {}, {_NO_MEMORY: str(error)})
                    return
                leave()
                waiting = _name("scores", name, rank), begun
                if command["keeps"]:
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
    """A pass that has begun: each rank's windows, and this one's scores on their way.

    `parts`: all scores, where they had to be waited for.
    """

    name: tuple[int, int]
    shares: list[range]
    own: Launched | None
    parts: list[Scores] = field(default_factory=list)


def _all_batches(schedule: Schedule, plan: Plan) -> list[range]:
    return [batch for windows in schedule.passes(plan) for batch in schedule.batches(plan, windows)]


def _name(what: str, name: tuple[int, int], rank: int) -> str:
    """Of what a rank gives or gets for one pass of one command."""
    return f"{what}/{name[0]}/{name[1]}/{rank}"


class _Rows:
    """A pass's file of states as one rank sees it: the place of its share's rows."""

    def __init__(self, path: Path, at: int):
        self._path, self._at = path, at

    def put(self, number: int, parts: Sequence[torch.Tensor]) -> None:
        """Writes a share's states; all of them are in the file when the rank's scores are there."""
        if parts[0].is_cuda:
            # They are read by another stream than the one that is making them.
            torch.cuda.current_stream(parts[0].device).synchronize()
        at = self._at
        try:
            for states in parts:
                write_states(self._path, at, states)
                at += len(states)
        except OSError as error:
            raise RunFolderError(f"{self._path}: {error.strerror}") from None


def _rows_of(path: Path, at: int) -> Keeper:
    # An engine calls a keeper's `put` and nothing else of it.
    return cast("Keeper", _Rows(path, at))
