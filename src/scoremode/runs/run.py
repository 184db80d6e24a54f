"""One run from its plan to its record: engine → checked Scores → parts on disk → statistics.

Everything that can be wrong with the input is found before the run's folder is made; from then on each
finished pass is on disk, and what is on disk is whole.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.background.beside import Beside
from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.base import Engine, Extras, OutOfMemory, Schedule
from scoremode.errors import (
    InvalidMeasurement,
    ReferenceUnusable,
    RunFolderError,
    TokenizerError,
)
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import RECORD, RunFolder
from scoremode.results.record import sections as records
from scoremode.results.record.described import check_identity
from scoremode.results.scores import Scores, check
from scoremode.runs.baselines.softmax import common_softmax
from scoremode.runs.finishing import auto_tokenizer_beside, finished_sections, table_beside
from scoremode.runs.identity import agree, identity_of
from scoremode.runs.planning import PlannedText
from scoremode.runs.request import Request, Result, TotalProgress
from scoremode.runs.resuming import (
    Files,
    check_files,
    files_section,
    find_earlier,
    first_difference,
    go_on,
    new_folder,
    read_part,
)
from scoremode.runs.scoring import EngineFactory
from scoremode.runs.sections import FURTHER
from scoremode.startup.clock import Clock
from scoremode.text.plan import Plan

if TYPE_CHECKING:
    from scoremode.reference.keeper import Keeper
    from scoremode.runs.baselines import Baseline
    from scoremode.runs.noise import NoiseFloor
    from scoremode.text.token_class import TokenTable

__all__ = ["run_plan"]


def run_plan(
    request: Request,
    checkpoint: Checkpoint,
    planned: PlannedText,
    make_engine: EngineFactory,
    *,
    baseline: "Baseline | None" = None,
    progress: TotalProgress | None = None,
    notify: Callable[[str], None] = lambda _: None,
    clock: Clock | None = None,
) -> Result:
    """`measure` from the plan on, with any engine."""
    clock = clock or Clock()
    clock.begin("engine")
    engine = make_engine(checkpoint, planned.vocabulary)
    # Once: when a run is done, so that its seconds have vLLM's end as well; or however it ends.
    close = cache(engine.close)
    try:
        return _Run(
            request, checkpoint, planned, engine, close, baseline, progress, notify, clock
        ).result()
    finally:
        close()


class _Run:
    """One run with all that it needs, start to end."""

    def __init__(
        self,
        request: Request,
        checkpoint: Checkpoint,
        planned: PlannedText,
        engine: Engine,
        close: Callable[[], None],
        baseline: "Baseline | None",
        progress: TotalProgress | None,
        notify: Callable[[str], None],
        clock: Clock,
    ):
        self.request, self.checkpoint, self.planned = request, checkpoint, planned
        self.plan: Plan = planned.plan
        self.engine, self.close, self.baseline = engine, close, baseline
        self.progress, self.notify, self.clock = progress, notify, clock
        self.keeper: Keeper | None = None
        self._reported = 0.0

    def result(self) -> Result:
        self._check_vocabulary()
        identity = identity_of(self.request, self.checkpoint, self.plan, self.engine, self.baseline)
        if self.request.ranks is not None:
            agree(self.request.ranks, identity)
        if self.checkpoint.config.get("auto_map") and not self.request.options.trust_remote_code:
            self.notify(
                "the checkpoint brings code of its own (auto_map), which is not run: "
                f"transformers' {identity['engine'].get('model_class', 'class')} computes instead"
            )
        if self.baseline is not None:
            self.clock.begin("base")
            self.baseline.prove(identity["engine"])
        self.clock.begin("check" if self.request.resume else "engine")
        floor = self._noise_floor()
        output, resume = self.request.output, self.request.resume
        reads: dict[str, Files] = {"checkpoint": self.checkpoint.hash_files}
        if self.baseline is not None:
            reads["reference"] = self.baseline.settle
        earlier = find_earlier(output, identity, reads, resume=resume, notify=self.notify)
        if earlier and earlier[1]["status"] != "running":
            self.notify(f"already finished: {earlier[0]}")
            return self._finished(*earlier)
        if resume and not earlier:
            self.notify(f"nothing to resume in {output}: starting anew")
        if earlier:
            folder, record = go_on(*earlier)
        else:
            schedule = self.engine.schedule(self.plan)
            # Made now, so that an unwritable place is known before hours of work.
            own = output if self.request.keep else new_folder(output, self.request.model, identity)
            folder = RunFolder.create(own, again=resume)
            record = self._new_record(identity, schedule)
        self.clock.begin("engine")
        table = table_beside(self.planned.tokenizer)
        theirs = auto_tokenizer_beside(self.request, self.planned, self.notify)
        try:
            if not earlier:
                folder.write_record(record)
            else:
                self._check_earlier(folder, record)
            self.clock.begin("score")
            self._score(folder, record)
            if floor is not None:
                self.clock.begin("noise")
                schedule = Schedule(**record["schedule"])
                record["noise_floor"] = floor.run(schedule, self.notify)
            self.clock.begin("finish")
            return Result(folder.path, self._finish(folder, record, table, theirs))
        except InvalidMeasurement as error:
            engine = self.engine.describe()
            record |= {"status": "invalid", "reason": str(error), "engine": engine}
            folder.write_record(record)
            folder.drop_parts()
            if self.keeper is not None:
                self.keeper.discard()
            raise
        except BaseException:
            if self.keeper is not None:
                self.keeper.stop()
            # A run without a finished pass is worth nothing to anybody.
            if record["status"] == "running" and folder.is_empty:
                folder.discard()
            raise
        finally:
            folder.close()
            table.wait()
            # A thread must not be within an import when the interpreter ends.
            theirs.wait()

    def _finished(self, folder: Path, record: dict[str, Any]) -> Result:
        """The result of a run that was done before, from its Scores. Raises RunFolderError."""
        if self.request.keep is not None:
            from scoremode.reference.stored import StoredReference

            StoredReference(folder).check_files()
        return Result(folder, load_run(folder, FURTHER)[0])

    def _check_earlier(self, folder: RunFolder, record: dict[str, Any]) -> None:
        """Reads the parts of a resumed run again, as if an engine had just made them."""
        check_identity(folder.path / RECORD, record)
        made = self.planned.to_json(self.request.corpus)
        for section in ("protocol", "plan"):
            # Two names of one procedure are one.
            theirs, ours = ({**r[section], "name": None} for r in (record, made))
            if differing := first_difference(section, theirs, ours):
                field, value, own = differing
                raise RunFolderError(
                    f"{folder.path / RECORD}: was changed: its {field} is {value}, this run's {own}"
                )
        begin, done = 0, len(record["parts"])
        passes = Schedule(**record["schedule"]).passes(self.plan)
        if done > len(passes):
            raise RunFolderError(
                f"{folder.path}: its record has {done} parts, and its plan {len(passes)} passes"
            )
        for number, windows in enumerate(passes[:done]):
            scores = read_part(folder, record, self.plan, windows, number)
            if self.baseline is not None:
                self.baseline.check(scores, begin, self.engine.identity())
            begin += len(scores)
        self.notify(f"resuming {folder.path} after {done} passes")

    def _noise_floor(self) -> "NoiseFloor | None":
        change = self.request.noise_floor
        if change is None or self.baseline is None:
            return None
        from scoremode.runs.noise import NoiseFloor

        options, ranks = self.request.options, self.request.ranks
        return NoiseFloor(change, self.baseline, self.planned, options, ranks)

    def _check_vocabulary(self) -> None:
        largest, entries = int(self.plan.tokens.max()), self.engine.vocabulary
        if largest >= entries:
            raise TokenizerError(
                f"{self.planned.tokenizer.source}: the text has token id {largest}, and the softmax "
                f"runs over {entries} entries"
            )
        if self.baseline is not None and self.baseline.vocabulary != entries:
            base, theirs = self.baseline.section(), self.baseline.vocabulary
            words, flags = common_softmax(self.request, self.planned, entries, base, theirs)
            error = ReferenceUnusable(
                f"{self.request.reference}: its softmax runs over {theirs} entries, this model's over "
                f"{entries}: {words}"
            )
            error.instead = flags
            raise error

    def _new_record(self, identity: dict[str, Any], schedule: Schedule) -> dict[str, Any]:
        # Here, since it needs torch, which takes seconds to import, and a plan alone does not.
        from scoremode.schemes.summary import stored_summary

        source = {
            "source": self.checkpoint.source,
            "path": str(self.checkpoint.path.resolve()),
            "fingerprint": self.checkpoint.fingerprint,
        }
        reference = {} if self.baseline is None else {"reference": self.baseline.section()}
        return {
            "schema": records.SCHEMA,
            "schema_version": records.SCHEMA_VERSION,
            "status": "running",
            "created": records.now(),
            "command": list(self.request.command),
            "versions": records.versions(),
            "identity": identity,
            "checkpoint": source | stored_summary(self.checkpoint),
            **self.planned.to_json(self.request.corpus),
            "schedule": schedule.to_json(),
            **reference,
            "parts": [],
        }

    def _score(self, folder: RunFolder, record: dict[str, Any]) -> None:
        """Scores what is missing. Where the device has too little memory for it, goes on from the last
        finished pass in smaller micro-batches, once."""
        try:
            return self._score_passes(folder, record)
        except OutOfMemory as error:
            before = Schedule(**record["schedule"])
            after = before.halved()
            if after == before or "schedule_change" in record:
                raise
            reason = str(error)
        # Here the error is gone, and with its frames what the failed pass held of the device.
        if self.keeper is not None:
            self.keeper.stop()
        record["schedule"] = after.to_json()
        record["schedule_change"] = {
            "after_passes": len(record["parts"]),
            "batch_windows_before": before.batch_windows,
            "reason": reason,
        }
        folder.write_record(record)
        self.notify(
            f"out of memory with {before.batch_windows} windows a micro-batch: going on from pass "
            f"{len(record['parts'])} with {after.batch_windows}"
        )
        self._score_passes(folder, record)

    def _score_passes(self, folder: RunFolder, record: dict[str, Any]) -> None:
        """A pass at a time, each checked before it is written."""
        plan, baseline = self.plan, self.baseline
        schedule = Schedule(**record["schedule"])
        passes = schedule.passes(plan)
        done = len(record["parts"])
        models = 1 if baseline is None else 1 + baseline.runs
        total = models * int(plan.lengths.sum())

        def report(tokens: float) -> None:
            self._reported += tokens
            if self.progress:
                self.progress(tokens, total)

        finished = models * float(sum(plan.lengths[w.start : w.stop].sum() for w in passes[:done]))
        report(finished - self._reported)
        keeper = self.keeper = self._keeper(folder, record)
        extras = Extras(
            None if baseline is None else baseline.reference(plan, schedule, report),
            self.request.full,
            keeper,
        )
        hashes = Beside(self._hash_files)
        ready: list[tuple[int, Scores]] = []

        def write(at_most: int = 0) -> None:
            """Writes what is ready, but for the last `at_most` passes."""
            self.clock.begin("write" if hashes.is_done else "hash")
            # Before the first part that depends on them, the files' hashes are in the record: a part
            # on disk always says which weights made it. They are mapped, so a change meanwhile would
            # count.
            self._settle_hashes(folder, record, hashes.result())
            self.clock.begin("write")
            while len(ready) > at_most:
                _write(folder, record, keeper, *ready.pop(0))
            self.clock.begin("score")

        scored = self.engine.score(plan, schedule, done, report, extras)
        for number, windows in enumerate(passes[done:], done):
            try:
                scores = next(scored, None)
            except OutOfMemory:
                write()
                raise
            if scores is None:
                raise InvalidMeasurement(
                    f"the engine stopped after {number} of {len(passes)} passes, at window "
                    f"{windows.start} of {len(plan)}"
                )
            self.checkpoint.check_unchanged()
            check(scores, plan, windows)
            if baseline is not None:
                baseline.check(scores, int(plan.offsets[windows.start]), self.engine.identity())
            ready.append((number, scores))
            # The device need not wait for the hashes, nor, where states are kept, for these: they are
            # being written while the next pass computes.
            if hashes.is_done:
                write(at_most=0 if keeper is None else 1)
        if next(scored, None) is not None:
            raise InvalidMeasurement(
                f"the engine returned more than the plan's {len(passes)} passes"
            )
        write()

    def _keeper(self, folder: RunFolder, record: dict[str, Any]) -> "Keeper | None":
        if self.request.keep is None:
            return None
        from scoremode.reference.keeper import Keeper

        tensors, stored = self.engine.head_tensors(), self.request.keep == "stored"
        keeper = Keeper(folder.path, self.plan, tensors, stored=stored)
        keeper.check_parts([part["states"] for part in record["parts"]])
        width = tensors.head.weight.shape[1]
        keeper.check_room(self.plan.scored, width, self.engine.identity()["dtype"])
        return keeper

    def _hash_files(self) -> dict[str, str]:
        """Those of the checkpoint, when a base's are there too."""
        if self.baseline is not None:
            self.baseline.settle()
        return self.checkpoint.hash_files()

    def _settle_hashes(
        self, folder: RunFolder, record: dict[str, Any], files: dict[str, str]
    ) -> None:
        """Notes what was read, and raises where it is not what it was when the run began."""
        base = None if self.baseline is None else self.baseline.settle()
        if "files" not in record["checkpoint"]:
            record["checkpoint"]["files"] = files
            if base is not None:
                files_section(record, "reference")["files"] = base
            folder.write_record(record)
        check_files(folder.path, record, "checkpoint", files)
        if base is not None:
            check_files(folder.path, record, "reference", base)

    def _finish(
        self,
        folder: RunFolder,
        record: dict[str, Any],
        table: "Beside[TokenTable]",
        theirs: Beside[dict[str, Any] | None],
    ) -> dict[str, Any]:
        record["tokenizer"]["auto_tokenizer"] = theirs.result()
        passes = Schedule(**record["schedule"]).passes(self.plan)
        parts = (
            read_part(folder, record, self.plan, windows, number)
            for number, windows in enumerate(passes)
        )
        record |= {
            **finished_sections(folder, parts, self.planned, self.notify, table),
            "status": "done",
            "finished": records.now(),
            "engine": self.engine.describe(),
        }
        if self.baseline is not None:
            record["reference"] |= self.baseline.finish()
            if self.request.gates:
                record["gates"] = [gate.to_json() for gate in self.request.gates.judge(record)]
        if self.keeper is not None:
            record["kept"] = self.keeper.kept(passes)
        del record["parts"]
        self.clock.begin("end")
        self.close()
        record["seconds"] = self.clock.to_json()
        folder.write_record(record)
        folder.drop_parts()
        return record


def _write(
    folder: RunFolder,
    record: dict[str, Any],
    keeper: "Keeper | None",
    number: int,
    scores: Scores,
) -> None:
    """A pass's part, when its states are on disk; and with its sha256 in the record it is done."""
    states = {} if keeper is None else {"states": keeper.settle(number)}
    sha256 = folder.write_part(number, scores)
    assert number == len(record["parts"])
    record["parts"].append({"sha256": sha256, **states})
    folder.write_record(record)
