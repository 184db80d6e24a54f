"""A run whose folder is there: its passes, and when all are scored, what follows from them.

The two halves need not follow each other at once, nor run in one thread: the second needs no device, so
that another model may have it by then.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scoremode.errors import InvalidMeasurement
from scoremode.results.record.checks import unlike_dtypes
from scoremode.results.record.sections import now
from scoremode.runs.context import RunContext
from scoremode.runs.finishing import (
    auto_tokenizer_beside,
    finished_sections,
    overlap_beside,
    shard_sections,
    table_beside,
)
from scoremode.runs.nodes import check_shared
from scoremode.runs.passes import RunPasses
from scoremode.runs.request import Result
from scoremode.runs.resuming import check_earlier

if TYPE_CHECKING:
    from scoremode.runs.noise import NoiseFloor

__all__ = ["ScoredRun"]


class ScoredRun:
    """A run from its folder on: `score`, then `finish`.

    The record of a run that turns out invalid says why, and a run without a finished pass leaves
    nothing. `close`: called before the record is written for the last time.
    """

    def __init__(self, context: RunContext, passes: RunPasses, close: Callable[[], None]):
        self._context, self._passes, self._close = context, passes, close
        self._table = table_beside(context.planned.tokenizer)
        self._theirs = auto_tokenizer_beside(context)
        self._overlap = overlap_beside(context)

    def score(self, floor: "NoiseFloor | None", *, resumed: bool) -> None:
        """Scores all passes that are missing, and the noise floor where one is wanted."""
        context, passes = self._context, self._passes
        folder, record = passes.folder, passes.record
        with self._left_whole():
            if resumed:
                check_earlier(context, folder, record)
            else:
                folder.write_record(record)
            ranks = context.request.ranks
            if ranks is not None and ranks.place.spans_nodes and context.request.keep is not None:
                check_shared(ranks, folder.path)
            context.clock.begin("score")
            passes.score()
            if floor is not None:
                context.clock.begin("noise")
                record["noise_floor"] = floor.run(passes.schedule, context.notify)

    def finish(self) -> Result:
        """The result, when the record has all that follows from the passes."""
        folder, record, clock = self._passes.folder, self._passes.record, self._context.clock
        with self._left_whole():
            clock.begin("finish")
            self._complete()
            clock.begin("end")
            self._close()
            record["seconds"] = clock.to_json()
            folder.write_record(record)
            folder.drop_parts()
        self._release()
        return Result(folder.path, record)

    @contextmanager
    def _left_whole(self) -> Iterator[None]:
        """Leaves, where the block fails, a folder that says so, or that can be gone on with."""
        folder, record = self._passes.folder, self._passes.record
        try:
            yield
        except InvalidMeasurement as error:
            try:
                engine = self._context.engine.describe()
                record |= {"status": "invalid", "reason": str(error), "engine": engine}
                folder.write_record(record)
                folder.drop_parts()
                self._passes.discard()
            finally:
                self._release()
            raise
        except BaseException:
            try:
                self._passes.stop()
                # A run without a finished pass is worth nothing to anybody.
                if record["status"] == "running" and (folder.is_empty or not record["parts"]):
                    folder.discard()
            finally:
                self._release()
            raise

    def _release(self) -> None:
        self._passes.folder.close()
        self._table.wait()
        # A thread must not be within an import when the interpreter ends.
        self._theirs.wait()
        self._overlap.wait()

    def _complete(self) -> None:
        """Gives the record all sections that follow from its passes, in place of their parts."""
        context, passes = self._context, self._passes
        folder, record, is_shard = passes.folder, passes.record, context.request.shard is not None
        # What was scored of the plan where a rule ended the run; a shard is of all of it.
        plan = context.plan if is_shard else passes.plan
        record["tokenizer"]["auto_tokenizer"] = self._theirs.result()
        parts = passes.scores(plan)
        if is_shard:
            targets = record["shard"]["targets"]
            made = shard_sections(context, plan, folder, parts, self._table, targets)
        else:
            made = finished_sections(context, plan, folder, parts, self._table)
        kept = passes.kept()
        record |= {
            **made,
            "plan": plan.to_json(),
            "status": "shard" if is_shard else "done",
            "finished": now(),
            "engine": context.engine.describe(),
        }
        if (overlap := self._overlap.result()) is not None:
            record["calibration"] = overlap.section(plan)
        if context.baseline is not None:
            record["reference"] |= context.baseline.finish()
            record["reference"]["arithmetic"] = unlike_dtypes(record)
            if gates := context.request.gates:
                record["gates"] = [gate.to_json() for gate in gates.judge(record)]
        if kept is not None:
            record["kept"] = kept
        del record["parts"]
