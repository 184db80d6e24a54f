"""The runs of a sweep's model: all texts and protocols with one engine, which is gone afterwards."""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.model_files import resolve_model
from scoremode.engines.base import Engine, Extras, Options, Progress, Schedule
from scoremode.errors import EngineError, RunFolderError, line_of
from scoremode.lib import fallback
from scoremode.lib.json import json_digest
from scoremode.lib.tasks import Task
from scoremode.reference.writer import HeadTensors
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import RECORD, tidy
from scoremode.results.record.checks import checked_record
from scoremode.results.record.definition import Done
from scoremode.results.record.sections import versions
from scoremode.results.scores import Scores
from scoremode.runs.baselines import Baseline
from scoremode.runs.context import RunContext, import_engine
from scoremode.runs.finalize import check_texts
from scoremode.runs.models import check_engine, check_quantization
from scoremode.runs.planning import plan_request
from scoremode.runs.request import Request, Result, TotalProgress
from scoremode.runs.resume import relabeled
from scoremode.runs.run import score_plan
from scoremode.runs.sweep.bases import Bases, folder_of_base, options_of
from scoremode.runs.sweep.manifest import Board
from scoremode.startup.clock import StageClock
from scoremode.startup.warmup import libraries
from scoremode.text.corpus_plan import PlannedText
from scoremode.text.plan import Plan

Finish = Callable[[], Result]


@dataclass(frozen=True)
class Stage:
    """Receivers of a sweep's progress: `begin` gets each stage and `name`, the model it is of."""

    notify: Callable[[str], None]
    progress: TotalProgress | None
    begin: Callable[[str, str], None]
    name: str = ""

    def named(self, name: str) -> "Stage":
        return replace(self, name=name)

    def tell(self, stage: str, _: str) -> None:
        self.begin(stage, self.name)


@dataclass(frozen=True, eq=False)
class Opened:
    """A model's checkpoint, and for each of its requests the plan, or the line that says why not."""

    checkpoint: Checkpoint
    planned: list[PlannedText | str] = field(default_factory=list)


class Prepared:
    """A model made ready in a thread while the one before it computes: opened, planned, hashed.

    It touches no GPU. Its files are read once to be hashed, and then lie in the system's cache of
    files, where the engine finds them; a model that has no room there beside what is in use waits
    for its turn.

    - `requests`: one for each text and protocol.
    """

    def __init__(self, requests: Sequence[Request], free: Callable[[], int] | None = None):
        self._requests, self._free = requests, free or free_memory
        self._checkpoint: Checkpoint | None = None
        self._opening = Task(self._open)

    def opened(self) -> Opened:
        """The model, when it is ready. Raises what opening it raised."""
        return self._opening.result()

    def close(self) -> None:
        """Ends it, done or not."""
        self._opening.wait()
        if self._checkpoint is not None:
            self._checkpoint.stop_hashing()

    def _open(self) -> Opened:
        first = self._requests[0]
        files = resolve_model(first.model, first.revision)
        checkpoint = open_checkpoint(files, code=first.options.trust_remote_code)
        check_engine(first.options, checkpoint)
        check_quantization(first.quantization, checkpoint)
        self._checkpoint = checkpoint
        if checkpoint.bytes <= self._free():
            checkpoint.hashing()
        requests = [replace(request, model=files) for request in self._requests]
        return Opened(checkpoint, [_planned(request, checkpoint) for request in requests])


def _planned(request: Request, checkpoint: Checkpoint) -> PlannedText | str:
    try:
        planned = plan_request(request, checkpoint)
        if request.token_text:
            check_texts(planned.tokenizer)
    # Not hidden: it is this model's result under this text, and the others go on.
    except Exception as error:  # noqa: BLE001
        return line_of(error)
    return planned


def free_memory() -> int:
    """The bytes that files may take of the memory without driving out what is in use; where the system
    doesn't say, none."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        return 0
    return 0


class LentEngine:
    """An engine as one run has it: what it counts begins with the run, and `end` lets go of it.

    After that it still describes itself, for the run's record.
    """

    def __init__(self, engine: Engine, *, is_new: bool):
        self._engine: Engine | None = engine
        self.vocabulary = engine.vocabulary
        self._identity = engine.identity()
        before = {} if is_new else engine.describe()
        self._tokens, self._seconds = before.get("tokens", 0), before.get("seconds", {})
        self._described: dict[str, Any] | None = None

    @property
    def _lent(self) -> Engine:
        assert self._engine is not None, "an engine is used that was given back"
        return self._engine

    def schedule(self, plan: Plan) -> Schedule:
        return self._lent.schedule(plan)

    def score(
        self,
        plan: Plan,
        schedule: Schedule,
        first_pass: int = 0,
        progress: Progress | None = None,
        extras: Extras | None = None,
    ) -> Iterator[Scores]:
        return self._lent.score(plan, schedule, first_pass, progress, extras)

    def head_tensors(self) -> HeadTensors:
        return self._lent.head_tensors()

    def identity(self) -> dict[str, Any]:
        return self._identity

    def describe(self) -> dict[str, Any]:
        if self._described is not None:
            return self._described
        found = self._lent.describe()
        seconds = {k: s - self._seconds.get(k, 0.0) for k, s in found["seconds"].items()}
        return {**found, "tokens": found["tokens"] - self._tokens, "seconds": seconds}

    def end(self) -> None:
        """Lets go of the engine."""
        if self._engine is not None:
            self._described, self._engine = self.describe(), None

    def close(self) -> None:
        """Does nothing: whoever lends the engine closes it."""


def free_device() -> None:
    """Gives a GPU's memory back that nothing holds any more, and begins what is counted of it, and of
    its kernels, anew: both are the process's, and a record is of one model."""
    import torch

    # A model's modules and hooks refer to each other in circles.
    gc.collect()
    fallback.forget()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


class ModelRuns:
    """The runs of one model: `score` them, then `settle` what follows from the scores.

    - `requests`: one for each pair; `prepared`: the model, opened for them.
    - `job`: the model's index on the `board`; None for the base, whose errors are raised.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        prepared: Prepared,
        bases: Bases,
        board: Board,
        job: int | None,
        stage: Stage,
    ):
        self._requests, self._prepared, self._bases = requests, prepared, bases
        self._board, self._job, self._stage = board, job, stage
        self._finishing: dict[int, tuple[Task[Result], str | None]] = {}
        self._folders: list[Path] = []
        self._engine: Engine | None = None
        self._made_with: tuple[int | None, Options] | None = None
        self.fingerprint: str | None = None

    def score(self, after: "ModelRuns | None" = None) -> None:
        """Scores what is missing; when it returns the engine is closed. `after`: the runs before."""
        stage = self._stage
        stage.begin("open", stage.name)
        try:
            opened = self._opened()
            if opened is None:
                return
            self.fingerprint = opened.checkpoint.fingerprint
            # It might find those of the same model while they are being finished.
            if after is not None and after.fingerprint == self.fingerprint:
                after.settle()
            for number in range(len(self._requests)):
                self._pair(number, opened)
        finally:
            self._close_engine()
            self._prepared.close()

    def settle(self) -> None:
        """Notes the result of each run, when it is there."""
        for number, (finishing, asked) in self._finishing.items():
            finishing.wait()
            try:
                result = finishing.result()
            # Not hidden: the entry has the line.
            except Exception as error:  # noqa: BLE001
                self._fail(number, line_of(error))
            else:
                assert self._job is not None
                self._board.done(self._job, number, result, asked)
        self._finishing.clear()

    def wait(self) -> None:
        """Returns when nothing is being finished any more."""
        for finishing, _ in self._finishing.values():
            finishing.wait()

    def kept(self) -> list[Path]:
        """The base's references, one for each pair."""
        return self._folders

    def _opened(self) -> Opened | None:
        try:
            return self._prepared.opened()
        # Not hidden: each entry has the line.
        except Exception as error:
            if self._job is None:
                raise
            line = line_of(error)
        for number in range(len(self._requests)):
            self._fail(number, line)
        return None

    def _pair(self, number: int, opened: Opened) -> None:
        planned = opened.planned[number]
        if isinstance(planned, str):
            self._fail(number, planned)
            return
        if self._job is None:
            self._folders.append(self._keep(number, opened.checkpoint, planned))
            return
        self._board.begin(self._job, number)
        try:
            finish, asked = self._scored(number, opened.checkpoint, planned)
        # Not hidden: the entry has the line. The error's frames may hold a device's memory.
        except Exception as error:  # noqa: BLE001
            line = line_of(error)
        else:
            self._finishing[number] = Task(finish), asked
            return
        self._fail(number, line)

    def _fail(self, number: int, line: str) -> None:
        if self._job is None:
            raise EngineError(f"the base: {line}")
        self._board.failed(self._job, number, line)

    def _keep(self, number: int, checkpoint: Checkpoint, planned: PlannedText) -> Path:
        """The folder of the base's reference, made now or by a call before."""
        libraries.wait()
        request, clock = self._requests[number], StageClock(tell=self._stage.tell)
        options = request.options.keeping()
        lent = self._lent(checkpoint, planned, options)
        try:
            output = folder_of_base(request.output, checkpoint, planned, request)
            # A head that lies in the checkpoint as it is used stays there.
            head = lent.head_tensors()
            is_there = head.weight is not None and (head.head.bias is None or head.bias is not None)
            keep = "checkpoint" if is_there else "stored"
            request = replace(request, output=output, keep=keep)
            finish = score_plan(
                self._context(request, checkpoint, planned, lent, None, clock), _nothing
            )
            return finish().folder
        finally:
            lent.end()

    def _scored(
        self, number: int, checkpoint: Checkpoint, planned: PlannedText
    ) -> tuple[Finish, str]:
        """Scores all passes of a run. Returns a call that makes its result, and the sha256 by which a
        later call finds it."""
        request, clock = self._requests[number], StageClock(tell=self._stage.tell)
        for note in planned.notes:
            self._stage.notify(note)
        clock.begin("import")
        libraries.wait()
        clock.begin("base")
        baseline = self._bases.baseline(request, planned, checkpoint)
        identity = {
            "checkpoint": checkpoint.fingerprint,
            **planned.identity(),
            "reference": baseline.identity(),
            "versions": versions(),
        }
        asked = json_digest([identity, options_of(request)])
        if (folder := self._done_before(asked, identity, request, checkpoint)) is not None:
            return partial(_read, folder, request.label), asked
        clock.begin("engine")
        lent = self._lent(checkpoint, planned, request.options, baseline)
        try:
            context = self._context(request, checkpoint, planned, lent, baseline, clock)
            finish = score_plan(context, _nothing)
        finally:
            lent.end()
            # What it does from now on is done beside the next model.
            clock.tell = _nothing_told
        return finish, asked

    def _context(
        self,
        request: Request,
        checkpoint: Checkpoint,
        planned: PlannedText,
        lent: LentEngine,
        baseline: Baseline | None,
        clock: StageClock,
    ) -> RunContext:
        progress = self._stage.progress or _no_progress
        notify = self._stage.notify
        return RunContext(request, checkpoint, planned, lent, baseline, progress, notify, clock)

    def _lent(
        self,
        checkpoint: Checkpoint,
        planned: PlannedText,
        options: Options,
        baseline: Baseline | None = None,
    ) -> LentEngine:
        """The engine that is there if it would be made alike, else a new one, when that is closed."""
        wanted = options if baseline is None else baseline.beside(options)
        made_with = planned.vocabulary, wanted
        is_new = self._engine is None or self._made_with != made_with
        if is_new:
            self._close_engine()
            # Of the model before.
            free_device()
            import_engine(wanted)
            self._engine = wanted.make(
                checkpoint, planned.vocabulary, planned.plan, self._stage.notify
            )
            self._made_with = made_with
        assert self._engine is not None
        return LentEngine(self._engine, is_new=is_new)

    def _close_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _done_before(
        self, asked: str, identity: dict[str, Any], request: Request, checkpoint: Checkpoint
    ) -> Path | None:
        """The finished run of the same that an earlier call made, its weights' hashes the same now."""
        folder = self._board.earlier(asked)
        if folder is None or not (folder / RECORD).exists():
            return None
        try:
            record = checked_record(folder)
        except RunFolderError as error:
            self._stage.notify(f"left alone: {error}")
            return None
        from scoremode.engines.torch.device import choose_device

        own: Any = request.options
        device = choose_device(own.device, own.max_memory, own.memory_share).to_json()
        theirs = record.document.get("identity", {})
        same = (
            isinstance(record, Done)
            and {name: theirs.get(name) for name in identity} == identity
            and theirs.get("engine", {}).get("device") == device
            and record.checkpoint.files == checkpoint.hash_files()
        )
        return folder if same else None


def _read(folder: Path, label: str | None) -> Result:
    record = load_run(folder)[0]
    if relabeled(folder, record, label) is not record:
        tidy(folder)
        record = load_run(folder)[0]
    return Result(folder, record)


def _nothing() -> None:
    """Closes nothing: an engine is closed when the last of its runs is scored."""


def _nothing_told(stage: str, of: str) -> None:
    """Shows nothing."""


def _no_progress(tokens: float, total: int) -> None:
    """Counts nothing."""
