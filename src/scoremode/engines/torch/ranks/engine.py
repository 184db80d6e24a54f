"""A torch engine among several, one a device: each scores its share of a pass's windows.

A share is a run of whole micro-batches, and a micro-batch's scores do not depend on what else is in its
pass: so the scores are the same to the bit for any number of ranks. A pass is as many times longer as
there are ranks, so that each decodes a layer as rarely as one alone would.
"""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from scoremode.engines.base import Extras, OutOfMemory, Progress, Schedule, Work
from scoremode.engines.torch.engine import ModelReference, TorchEngine
from scoremode.engines.torch.passes.microbatch import PendingScores, fetched
from scoremode.engines.torch.ranks.messages import Ranks, ScorePasses
from scoremode.errors import RunFolderError
from scoremode.reference.states import digest_rows, write_states
from scoremode.reference.writer import HeadTensors
from scoremode.results.scores import Scores, concatenate
from scoremode.text.plan import Plan

if TYPE_CHECKING:
    import hashlib

# Fields that each rank says of itself beside its scores.
_OWN = ("tokens", "seconds", "peak_bytes")
# The field of the sha256 of states that another machine has written.
_DIGEST = "states_sha256"
# The field that a share which did not fit comes back with: why it did not.
_NO_MEMORY = "out_of_memory"


def deal(work: Work, shares: int) -> list[Work]:
    """Cuts a pass into so many runs of whole micro-batches, about alike in tokens; some may be empty.

    The first one is rather smaller, since its rank also writes.
    """
    batches = work.batches
    sizes = [work.part(batch).tokens for batch in batches]
    if work.schedule.row_tokens is not None:
        # What windows have in common is work once.
        sizes = work.sizes
    done = np.cumsum([0, *sizes])
    # Cut where it is nearest to even; of two such places at the first.
    cuts = [int(np.abs(done * shares - done[-1] * i).argmin()) for i in range(shares + 1)]
    starts = [batch.start for batch in batches] + [work.windows.stop]
    return [work.part(range(starts[a], starts[b])) for a, b in pairwise(cuts)]


class DataParallelEngine:
    """`engine`, which is this rank's, as one of `ranks`, which share the windows of every pass."""

    def __init__(self, engine: TorchEngine, ranks: Ranks):
        self._engine, self._ranks = engine, ranks
        # What each of the other ranks said of itself last.
        self._told: dict[int, dict[str, Any]] = {}
        self._waited = 0.0

    @property
    def vocabulary(self) -> int:
        return self._engine.vocabulary

    def schedule(self, plan: Plan) -> Schedule:
        """The engine's own with a longer pass, where that leaves the micro-batches as they are."""
        own = self._engine.schedule(plan)
        longer = replace(own, pass_windows=own.pass_windows * self._ranks.size)
        if own.pass_tokens is not None:
            longer = replace(longer, pass_tokens=own.pass_tokens * self._ranks.size)
        return longer if _all_batches(longer, plan) == _all_batches(own, plan) else own

    def score(
        self,
        plan: Plan,
        schedule: Schedule,
        first_pass: int = 0,
        progress: Progress | None = None,
        extras: Extras | None = None,
    ) -> Iterator[Scores]:
        """The Scores of each pass on the first rank; none on the others, which do their shares of the
        command that they had last, until that is done, abandoned or too large for their device."""
        passes = Work.passes(plan, schedule, first_pass, progress, extras)
        if not self._ranks.is_first:
            self._follow(passes)
            return
        keeps = extras is not None and extras.keeper is not None
        number = self._ranks.tell(ScorePasses(schedule, first_pass, keeps, len(plan)))
        try:
            # As one GPU does it: the next pass is begun before this one's scores are waited for.
            yield from fetched(self._begun(number, passes), ahead=True)
        except OutOfMemory:
            # What comes next is another command, and some may be at work on this one.
            self._ranks.abandon(number)
            raise

    def _begun(self, command: int, passes: Sequence[Work]) -> Iterator[Callable[[], Scores]]:
        """Begins each pass of a command, which the other ranks have been told; a call waits for it."""
        width, dtype = self._engine.head.weight.shape[1], self._engine.states_dtype
        for work in passes:
            if (keeper := work.extras.keeper) is None:
                yield self._begin(command, work)
                continue
            rows = work.spans[-1][1] - work.spans[0][0]
            with keeper.states_file(work.number, rows, width, dtype) as path:
                try:
                    # The file is whole when the scores of all ranks are there.
                    scores = self._begin(command, work, path)()
                except OutOfMemory:
                    # Before the file goes: a rank that finds none knows why.
                    self._ranks.abandon(command)
                    raise
            yield partial(concatenate, [scores])

    def _begin(self, command: int, work: Work, states: Path | None = None) -> Callable[[], Scores]:
        """Begins a pass, and returns a call that waits for all ranks' Scores of it; `states`: the file
        that its final states go to."""
        own, *others = deal(work, self._ranks.size)
        if states is not None:
            # An empty share may lie at the end of the plan.
            offsets, begin = work.plan.offsets, work.windows.start
            for rank, share in enumerate(others, 1):
                at = int(offsets[share.windows.start] - offsets[begin])
                file = {"path": str(states.resolve()), "at": at}
                self._ranks.leave(_name("states", command, work, rank), file)
            own = replace(own, put=partial(_write_rows, states, 0, None))
        launched = self._engine.launch(own) if own.windows else None
        return partial(self._finish, command, work, launched, others, states)

    def _finish(
        self,
        command: int,
        work: Work,
        own: PendingScores | None,
        others: Sequence[Work],
        states: Path | None,
    ) -> Scores:
        """All ranks' Scores of a pass, each share's when it is there."""
        # A base in the same process has gone through the same windows.
        models = 2 if isinstance(work.extras.reference, ModelReference) else 1
        parts = [] if own is None else [own.scores()]
        begin = time.perf_counter()
        for rank, share in enumerate(others, 1):
            if share.windows:
                told, columns = self._ranks.take(_name("scores", command, work, rank))
                if _NO_MEMORY in told:
                    raise OutOfMemory(f"{self._ranks.title(rank)}: {told[_NO_MEMORY]}")
                if (digest := told.pop(_DIGEST)) is not None and states is not None:
                    self._check_rows(rank, states, share, work, digest)
                self._told[rank] = told
                parts.append(Scores.from_columns(columns))
                work.progress(float(models * share.tokens))
        self._waited += time.perf_counter() - begin
        return concatenate(parts)

    def _check_rows(self, rank: int, states: Path, share: Work, work: Work, digest: str) -> None:
        """Raises RunFolderError where this machine does not read what another one has written."""
        offsets, begin = work.plan.offsets, int(work.plan.offsets[work.windows.start])
        ends = (int(offsets[share.windows.start]), int(offsets[share.windows.stop]))
        try:
            found = digest_rows(states, range(ends[0] - begin, ends[1] - begin))
        except OSError as error:
            raise RunFolderError(f"{states}: {error.strerror}") from None
        if found != digest:
            raise RunFolderError(
                f"{states}: {self._ranks.title(rank)} wrote states of sha256 {digest[:12]}… to it, and "
                f"here they are {found[:12]}…: keep the reference on a file system that shows all "
                "machines what each has written"
            )

    def _follow(self, passes: Sequence[Work]) -> None:
        """Another rank's share of the current command: its scores are left for the first rank."""
        command, number = self._ranks.current, self._ranks.number
        assert isinstance(command, ScorePasses), command
        try:
            # Where states are kept the first rank waits for a pass before it begins another.
            for _ in fetched(self._shares(number, passes, command.keeps), ahead=not command.keeps):
                pass
        except RunFolderError:
            # A rank that was late opens the states' file when the first one has taken it away.
            if not self._ranks.is_abandoned(number):
                raise

    def _shares(
        self, command: int, passes: Sequence[Work], keeps: bool
    ) -> Iterator[Callable[[], None]]:
        """Begins this rank's share of each pass; a call waits for its scores and leaves them."""
        rank = self._ranks.place.rank
        for work in passes:
            share = deal(work, self._ranks.size)[rank]
            if self._ranks.is_abandoned(command):
                return
            digest = sha256() if keeps and self._ranks.place.spans_nodes else None
            if keeps:
                name = _name("states", command, work, rank)
                if not self._ranks.comes(name, command):
                    return
                file, _ = self._ranks.take(name)
                share = replace(
                    share, put=partial(_write_rows, Path(file["path"]), file["at"], digest)
                )
            if share.windows:
                name = _name("scores", command, work, rank)
                try:
                    launched = self._engine.launch(share)
                except OutOfMemory as error:
                    yield partial(self._ranks.leave, name, {_NO_MEMORY: str(error)})
                    return
                yield partial(self._leave, command, name, launched, digest)

    def _leave(
        self, command: int, name: str, launched: PendingScores, digest: "hashlib._Hash | None"
    ) -> None:
        if not self._ranks.is_abandoned(command):
            columns = launched.scores().columns()
            self._ranks.check()
            of_states = {_DIGEST: digest.hexdigest() if digest else None}
            self._ranks.leave(name, self._facts() | of_states, columns)

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
        facts = {"device": self._ranks.device, "name": described["device"]["name"]}
        if self._ranks.place.spans_nodes:
            facts["host"] = socket.gethostname()
        return facts | {k: described[k] for k in _OWN}


def _all_batches(schedule: Schedule, plan: Plan) -> list[range]:
    return [batch for windows in schedule.passes(plan) for batch in schedule.batches(plan, windows)]


def _name(kind: str, command: int, work: Work, rank: int) -> str:
    """The name of what a rank gives or gets for one pass of one command."""
    return f"{kind}/{command}/{work.number}/{rank}"


def _write_rows(
    path: Path, at: int, digest: "hashlib._Hash | None", states: Sequence[torch.Tensor]
) -> None:
    """Writes a share's states to the rows `at …` of a pass's file, before its scores are there."""
    update = digest.update if digest else lambda _: None
    if states[0].is_cuda:
        # They are read by another stream than the one that is making them.
        torch.cuda.current_stream(states[0].device).synchronize()
    try:
        for part in states:
            write_states(path, at, part, update)
            at += len(part)
    except OSError as error:
        raise RunFolderError(f"{path}: {error.strerror}") from None
