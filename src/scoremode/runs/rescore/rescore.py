"""Second runs: some windows scored again under other options, and held against the first scores.

`verify` (every engine against float32), `noise` (a base against itself) and `check` (a published run
against its record) differ in the windows they take, in the options, and in what they say of the
difference. What they share is here: windows are scored again, in this process or in one of its own, and
two scorings are judged by whether rounding explains their difference.

A score depends on its micro-batch: a matrix product may sum in another order for another number of
rows. So of a finished run whole micro-batches are drawn, by the record's own schedule, and run again as
they were.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.model_files import ModelFiles
from scoremode.engines.base import Engine, Extras, Options, Progress, Schedule
from scoremode.errors import CheckpointError, TokenizerError
from scoremode.lib.processes import run_apart
from scoremode.results.record.definition import Record
from scoremode.results.scores import Scores, check, concatenate
from scoremode.results.statistics.agreement import (
    LIMITS,
    Difference,
    Verdict,
    difference,
    judge,
    logits_of,
)
from scoremode.results.statistics.blocks import Places
from scoremode.runs.context import import_engine
from scoremode.text.plan import Plan


@dataclass(frozen=True, eq=False)
class Rescored:
    """Scores of all windows of a plan, and `Engine.describe` of what scored them."""

    scores: Scores
    engine: dict[str, Any]


def rescore(
    engine: Engine,
    plan: Plan,
    schedule: Schedule | None = None,
    *,
    extras: Extras | None = None,
    progress: Progress | None = None,
) -> Rescored:
    """Scores all windows of a plan by an engine, in its own schedule where none is given.

    Raises InvalidMeasurement for scores that contradict the plan or themselves.
    """
    schedule = schedule or engine.schedule(plan)
    parts = engine.score(plan, schedule, progress=progress, extras=extras or Extras())
    scores = concatenate(list(parts))
    check(scores, plan, range(len(plan)))
    return Rescored(scores, engine.describe())


@dataclass(frozen=True)
class Job:
    """A task for one engine's process: a model as it was seen, how to run it, and its windows.

    - `vocabulary`: entries that the softmax runs over, None for the whole head.
    - `reference`: the folder of a base to compare with, or None.
    """

    model: ModelFiles
    fingerprint: str
    options: Options
    plan: Plan
    vocabulary: int | None
    reference: Path | None = None


def rescore_apart(
    label: str, job: Job, *, receive: Callable[[tuple[str, Any]], None] = lambda _: None
) -> Rescored:
    """Runs the job in a process of its own: a model may fill the memory, and vLLM keeps process-wide
    state.

    `receive`: gets ("progress", window tokens done), ("notify", a line for the user) and ("stage", the
    one that begins). Raises ScoremodeError with `label` in front.
    """
    return run_apart(label, run_job, job, receive=receive)


def run_job(send: Callable[[Any], None], job: Job) -> Rescored:
    """Runs, in the job's own process, one engine over all windows of its plan; `send` takes what
    `rescore_apart` says."""
    checkpoint = open_checkpoint(job.model, code=job.options.trust_remote_code)
    if checkpoint.fingerprint != job.fingerprint:
        raise CheckpointError(f"{checkpoint.source}: has changed since it was opened")
    plan = job.plan
    send(("stage", "import"))
    import_engine(job.options)
    send(("stage", "engine"))
    engine = job.options.make(checkpoint, job.vocabulary, plan, lambda line: send(("notify", line)))
    try:
        largest = int(plan.tokens.max())
        if largest >= engine.vocabulary:
            raise TokenizerError(
                f"the text has token id {largest}, and the softmax runs over {engine.vocabulary}"
            )
        extras = Extras()
        if job.reference is not None:
            from scoremode.reference.stored import StoredReference

            extras = Extras(StoredReference(job.reference))
        send(("stage", "score"))
        send(("progress", 0.0))
        rescored = rescore(
            engine, plan, extras=extras, progress=lambda tokens: send(("progress", tokens))
        )
        checkpoint.check_unchanged()
        return rescored
    finally:
        engine.close()


def judged(
    scores: Scores,
    engine: Mapping[str, Any],
    others: Scores,
    other: Mapping[str, Any],
    context_length: int,
    weights: np.ndarray | None = None,
    places: Places | None = None,
    *,
    named: str = "the reference",
) -> tuple[Difference, Verdict]:
    """The difference of two scorings, judged by what the coarsest dtype of both explains.

    - `engine`, `other`: sections of what computed `scores` and `others`; an empty one is exact.
    - `context_length`, `weights`, `places`: as `difference` takes them.
    - `named`: the name of `others` in the verdict's words.
    """
    found = difference(scores, others, context_length, weights, places)
    order = list(LIMITS).index
    engines = [each for each in (engine, other) if each]
    ran, reference = ((each.get("activations") or {}).get("ran") for each in (engine, other))
    verdict = judge(
        found,
        compute=max((each["dtype"] for each in engines), key=order, default="float32"),
        logits=max(map(logits_of, engines), key=order, default="float32"),
        activations=ran,
        reference=reference,
        named=named,
    )
    return found, verdict


@dataclass(frozen=True, eq=False)
class Sample:
    """Some windows of a plan, in micro-batches of one size.

    - `windows` int64 [W]: which of the whole plan's; `plan`: those alone.
    - `batch_windows`: windows of every one of the micro-batches, which follow one another.
    - `offsets` int64 [W]: rows of the whole plan before each window.
    - `chunk_tokens`, `row_tokens`: as the run's schedule has them.
    """

    windows: NDArray[np.int64]
    plan: Plan
    batch_windows: int
    offsets: NDArray[np.int64]
    chunk_tokens: int | None = None
    row_tokens: int | None = None

    def schedule(self, pass_windows: int) -> Schedule:
        """The schedule that keeps these micro-batches, in passes of about so many windows."""
        whole = max(1, pass_windows // self.batch_windows)
        return _Batches(
            whole * self.batch_windows,
            self.batch_windows,
            self.chunk_tokens,
            row_tokens=self.row_tokens,
        )

    def in_whole(self, row: int) -> int:
        """The row of the whole plan that is this one here."""
        w = int(np.searchsorted(self.plan.offsets, row, side="right")) - 1
        return int(self.offsets[w]) + row - int(self.plan.offsets[w])

    def renamed(self, scores: Scores) -> Scores:
        """Scores of `plan`, with the whole plan's numbers of its windows."""
        return replace(scores, window=self.windows[scores.window].astype(np.int32))


class _Batches(Schedule):
    """A schedule whose micro-batches have so many windows each, whatever the lengths of these."""

    def batches(self, plan: Plan, windows: range) -> list[range]:
        cuts = range(windows.start, windows.stop, self.batch_windows)
        return [range(i, min(i + self.batch_windows, windows.stop)) for i in cuts]


def micro_batches(record: Record, plan: Plan) -> list[range]:
    """The windows of each micro-batch of a finished run, by its record's schedule."""
    assert record.schedule
    after = Schedule(**msgspec.to_builtins(record.schedule))
    before, passes_before = after, 0
    if change := record.schedule_change:
        before = replace(after, batch_windows=change.batch_windows_before, split=1)
        passes_before = change.after_passes
    return [
        batch
        for number, windows in enumerate(after.passes(plan))
        for batch in (before if number < passes_before else after).batches(plan, windows)
    ]


def drawn_windows(
    plan: Plan,
    batches: Sequence[range],
    share: float,
    seed: int,
    chunk_tokens: int | None = None,
    row_tokens: int | None = None,
) -> list[Sample]:
    """Micro-batches drawn until they hold that share of a plan's windows, by their size.

    The same `seed` draws the same ones. `chunk_tokens`, `row_tokens`: of the run's schedule.
    """
    wanted, chosen = max(1, round(share * len(plan))), []
    for number in np.random.default_rng(seed).permutation(len(batches)):
        if sum(len(batches[n]) for n in chosen) >= wanted:
            break
        chosen.append(int(number))
    by_size: dict[int, list[range]] = {}
    for number in sorted(chosen):
        by_size.setdefault(len(batches[number]), []).append(batches[number])
    result = []
    for size, group in sorted(by_size.items(), reverse=True):
        windows = np.concatenate([np.arange(b.start, b.stop) for b in group])
        # No looks of its own: a micro-batch stays what it was.
        part = replace(plan.windows_at(windows), protocol=plan.protocol.whole())
        offsets = plan.offsets[windows]
        result.append(Sample(windows, part, size, offsets, chunk_tokens, row_tokens))
    return result


def found_probability(batches: Sequence[range], share: float, windows: int) -> float:
    """The least probability with which `drawn_windows`, its seed drawn evenly, takes a micro-batch that
    has one of so many windows, wherever these stand.

    They stand in as few micro-batches as can hold them, m of B, and as few are drawn as can hold the
    share, b: all b miss them with probability C(B - m, b) / C(B, b). Exact where all are of one size.
    """
    held = list(accumulate(sorted(map(len, batches), reverse=True)))
    wanted = max(1, round(share * held[-1]))
    drawn, changed = (
        next(n for n, sum_ in enumerate(held, 1) if sum_ >= least) for least in (wanted, windows)
    )
    every = len(batches)
    return 1 - math.comb(every - changed, drawn) / math.comb(every, drawn)
