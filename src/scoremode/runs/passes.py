"""The passes of a run: scored by the engine, checked, and written one by one."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from scoremode.checkpoint.virtual import Unread
from scoremode.engines.base import Extras, OutOfMemory, Schedule
from scoremode.errors import InvalidMeasurement, UnsupportedFormat
from scoremode.lib.tasks import Task
from scoremode.results.folders.store import RunFolder
from scoremode.results.scores import Scores, check
from scoremode.results.statistics.blocks import CONVERSATION
from scoremode.results.statistics.windows import WindowSums, estimates_of, look_at, window_sums
from scoremode.runs.context import RunContext
from scoremode.runs.request import Watch
from scoremode.runs.resume import check_files, files_section, read_part
from scoremode.runs.shards import share_of
from scoremode.text.plan import Plan

if TYPE_CHECKING:
    from scoremode.reference.writer import Keeper


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


class RunPasses:
    """The passes that a run's record has no parts of yet, and where its final states go.

    - `document`: the run's record in `folder`, as it is written; it gains a part with every pass.
    - `plan`: the run's, or, when a rule has ended it, what was scored of it.
    """

    def __init__(self, context: RunContext, folder: RunFolder, document: dict[str, Any]):
        self._context, self.folder, self.document = context, folder, document
        self._keeper: Keeper | None = None
        # Window tokens that progress was told of.
        self._reported = 0.0
        # Passes that are scored and not on disk. With states to keep, the last one's scores never are.
        self._ready: list[tuple[int, Scores]] = []
        # What was scored of it, where a rule ended it.
        self.plan = context.plan

    @property
    def schedule(self) -> Schedule:
        return Schedule(**self.document["schedule"])

    def _sha256_of(self, number: int) -> str:
        return self.document["parts"][number]["sha256"]

    def score(self) -> None:
        """Scores what is missing. Where the device has too little memory for it, goes on from the last
        finished pass in smaller micro-batches, once.

        Raises InvalidMeasurement, OutOfMemory, and all that an engine raises.
        """
        try:
            return self._score()
        except OutOfMemory as error:
            before, after = self.schedule, self.schedule.halved()
            if (shard := self._context.request.shard) is not None:
                why = str(error).rstrip(".")
                raise OutOfMemory(
                    f"--shard {shard}: {why}: all shards have the same micro-batches, so this one "
                    f"can't go on in others than {before.batch_words}: give a smaller --batch-size to "
                    "all of them"
                ) from None
            if after == before or "schedule_change" in self.document:
                raise
            reason = str(error)
        # Here the error is gone, and with its frames what the failed pass held of the device.
        self.stop()
        done = len(self.document["parts"])
        self.document["schedule"] = after.to_json()
        self.document["schedule_change"] = {
            "after_passes": done,
            "batch_windows_before": before.batch_windows,
            "reason": reason,
        }
        self.folder.write_record(self.document)
        self._context.notify(
            f"out of memory with {before.batch_words} a micro-batch: going on from pass {done} with "
            f"{after.batch_words}"
        )
        self._score()

    @property
    def _held(self) -> int:
        """Passes whose scores may wait in memory for their states to be on disk."""
        return 0 if self._keeper is None else 1

    def stop(self) -> None:
        """Ends the writing of states that no finished pass has."""
        if self._keeper is not None:
            self._keeper.stop()

    def discard(self) -> None:
        """Removes the states that were kept."""
        if self._keeper is not None:
            self._keeper.discard()

    def scores(self, plan: Plan) -> Iterator[Scores]:
        """The Scores of each pass of `plan`, which all are scored: read from disk, or, of the last one
        whose states may still be on their way there, as they were scored. Raises RunFolderError."""
        waiting = dict(self._ready)
        share = share_of(self.schedule, self._context.request.shard, plan)
        for number, windows in enumerate(share.passes):
            if number in waiting:
                yield waiting[number]
            else:
                yield read_part(self.folder, self._sha256_of(number), plan, windows, number)

    def kept(self) -> dict[str, Any] | None:
        """The record's section of kept states and head, when all of them are on disk; None without any.

        Raises RunFolderError, ReferenceUnusable.
        """
        keeper, clock = self._keeper, self._context.clock
        if keeper is None:
            return None
        clock.begin("write")
        for number, _ in self._ready:
            keeper.settle(number)
        kept = keeper.kept(self.schedule.passes(self._context.plan))
        clock.begin("finish")
        return kept

    def _score(self) -> None:
        """Scores a pass at a time, each checked before it is written; where the plan has a rule to stop
        by, from one look to the next, and no further than to the one that ends it."""
        context, plan = self._context, self._context.plan
        shard, done = context.request.shard, len(self.document["parts"])
        share, is_shard = share_of(self.schedule, shard, plan), shard is not None
        passes = share.passes
        report = self._reporter(share.windows, passes[:done])
        # Nothing of an attempt that failed.
        self._ready.clear()
        self._keeper = self._new_keeper()
        # What a part of the text says is no estimate of all of it.
        watch = RunWatch(plan, None if is_shard else context.watch)
        for number, windows in enumerate(passes[:done] if watch.looks else []):
            watch.add(read_part(self.folder, self._sha256_of(number), plan, windows, number))
        hashes = Task(self._hash_files)
        for look in (share.windows.stop,) if is_shard else plan.looks:
            is_whole = plan.protocol.stop_when is None and look == len(plan)
            part = plan if is_whole else plan.first_windows(look)
            self._score_part(part, share.before, done, watch, report, hashes)
            done = max(done, len(self.schedule.passes(part)) - share.before)
            self.plan = part
            if watch.ends(look):
                break
        # The last pass's states are written beside what follows from the scores.
        self._write(hashes, at_most=self._held)

    def _score_part(
        self,
        plan: Plan,
        before: int,
        done: int,
        watch: RunWatch,
        report: Callable[[float], None],
        hashes: Task[dict[str, str]],
    ) -> None:
        """Scores the passes of `plan` but for those `before`, which other shards have, and `done`
        more."""
        context, baseline, keeper = self._context, self._context.baseline, self._keeper
        schedule = self.schedule
        passes, first = schedule.passes(plan), before + done
        if first >= len(passes):
            return
        base = None if baseline is None else baseline.reference(plan, schedule, report)
        extras = Extras(base, context.request.full, context.request.draft, keeper)
        scored = context.engine.score(plan, schedule, first, report, extras)
        for number, windows in enumerate(passes[first:], first):
            try:
                scores = next(scored, None)
            except Exception:
                # Passes that wait for the hashes are done. Ctrl-C waits for none.
                self._write(hashes)
                raise
            if scores is None:
                raise InvalidMeasurement(
                    f"the engine stopped after {number} of {len(passes)} passes, at window "
                    f"{windows.start} of {len(plan)}"
                )
            context.checkpoint.check_unchanged()
            self._check(scores, plan, windows)
            if baseline is not None:
                begin = int(plan.offsets[windows.start])
                baseline.check(scores, begin, context.engine.identity())
            self._ready.append((number - before, scores))
            watch.add(scores)
            # The device need not wait for the hashes, nor, where states are kept, for these: they are
            # being written while the next pass computes.
            if hashes.is_done:
                self._write(hashes, at_most=self._held)
        if next(scored, None) is not None:
            raise InvalidMeasurement(
                f"the engine returned more than the plan's {len(passes)} passes"
            )

    def _check(self, scores: Scores, plan: Plan, windows: range) -> None:
        """Raises InvalidMeasurement for scores that contradict the plan or themselves. Where one is not
        finite, the message names the stored weight that isn't either."""
        try:
            check(scores, plan, windows)
        except InvalidMeasurement as error:
            checkpoint, found = self._context.checkpoint, None
            has_none = isinstance(checkpoint, Unread)
            if np.isfinite(scores.logprob).all() or has_none:
                raise
            # Needed by no run that ends well.
            from scoremode.schemes.summary import not_finite

            self._context.notify("a score is not finite: looking for a stored value that is not")
            try:
                found = not_finite(checkpoint)
            except UnsupportedFormat:
                # vLLM's to decode.
                raise error from None
            why = found or "all stored weights are finite, so that it came about in computing"
            raise InvalidMeasurement(f"{error}; {why}") from None

    def _reporter(self, windows: range, finished: list[range]) -> Callable[[float], None]:
        """Passes on tokens of `windows` that are done, those of the `finished` passes at once."""
        context, lengths = self._context, self._context.plan.lengths
        total = context.models * int(lengths[windows.start : windows.stop].sum())

        def report(tokens: float) -> None:
            self._reported += tokens
            context.progress(tokens, total)

        done = context.models * float(sum(lengths[w.start : w.stop].sum() for w in finished))
        report(done - self._reported)
        return report

    def _new_keeper(self) -> "Keeper | None":
        if self._context.request.keep is None:
            return None
        from scoremode.reference.writer import Keeper

        engine, plan = self._context.engine, self._context.plan
        tensors, stored = engine.head_tensors(), self._context.request.keep == "stored"
        keeper = Keeper(self.folder.path, plan, tensors, stored=stored)
        keeper.check_parts([part["states"] for part in self.document["parts"]])
        keeper.check_room(plan.scored, tensors.head.weight.shape[1], engine.identity()["dtype"])
        return keeper

    def _write(self, hashes: Task[dict[str, str]], at_most: int = 0) -> None:
        """Writes what is ready, but for the last `at_most` passes."""
        clock = self._context.clock
        clock.begin("write" if hashes.is_done else "hash")
        # Before the first part that depends on them, the files' hashes are in the record: a part on
        # disk always says which weights made it. They are mapped, so a change meanwhile would count.
        self._settle_hashes(hashes.result())
        clock.begin("write")
        while len(self._ready) > at_most:
            self._write_part(*self._ready.pop(0))
        clock.begin("score")

    def _write_part(self, number: int, scores: Scores) -> None:
        """Writes a pass when its states are on disk; with its sha256 in the record it is done."""
        states = {} if self._keeper is None else {"states": self._keeper.settle(number)}
        beside, chats = {}, self._context.plan.conversation
        if chats is not None:
            # For those who look at the run while it goes, without a plan.
            beside[CONVERSATION] = chats[scores.window]
        sha256 = self.folder.write_part(number, scores, beside)
        assert number == len(self.document["parts"])
        self.document["parts"].append({"sha256": sha256, **states})
        self.folder.write_record(self.document)

    def _hash_files(self) -> dict[str, str]:
        """The checkpoint's hashes, when a base's are there too, and other machines have the same."""
        context, base = self._context, None
        if context.baseline is not None:
            base = context.baseline.settle()
        files = context.checkpoint.hash_files()
        if context.request.ranks is not None:
            from scoremode.runs.workers import check_nodes

            check_nodes(context.request.ranks, context.checkpoint.path, files, base)
        return files

    def _settle_hashes(self, files: dict[str, str]) -> None:
        """Notes what was read, and raises where it is not what it was when the run began."""
        document, baseline = self.document, self._context.baseline
        base = None if baseline is None else baseline.settle()
        if "files" not in document["checkpoint"]:
            document["checkpoint"]["files"] = files
            if base is not None:
                files_section(document, "reference")["files"] = base
            self.folder.write_record(document)
        check_files(self.folder.path, document, "checkpoint", files)
        if base is not None:
            check_files(self.folder.path, document, "reference", base)
