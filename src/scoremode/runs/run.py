"""A run from its plan to its record: engine → checked Scores → parts on disk → statistics.

Everything that can be wrong with the input is found before the run's folder is made; from then on each
finished pass is on disk, and what is on disk is whole.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.base import Engine
from scoremode.errors import InvalidMeasurement, ReferenceUnusable, TokenizerError
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import RunFolder, tidy
from scoremode.results.gates import Compared
from scoremode.results.labels import Named
from scoremode.results.record.checks import swapped, unlike_dtypes
from scoremode.results.record.definition import (
    SCHEMA,
    SCHEMA_VERSION,
    Record,
    Running,
    read_document,
)
from scoremode.results.record.section import decode
from scoremode.results.record.sections import now, versions
from scoremode.results.shards.checks import open_shard
from scoremode.results.statistics.blocks import planned_blocks
from scoremode.runs.context import RunContext, agree, identity_of
from scoremode.runs.finalize import (
    auto_tokenizer_task,
    check_texts,
    finished_sections,
    overlap_task,
    token_table_task,
)
from scoremode.runs.models import mixture_section
from scoremode.runs.passes import RunPasses
from scoremode.runs.request import Request, Result, TotalProgress, Watch
from scoremode.runs.resume import check_earlier, find_earlier, go_on, new_folder, relabeled
from scoremode.runs.shards import shard_section, share_of
from scoremode.startup.clock import StageClock
from scoremode.text.corpus_plan import PlannedText
from scoremode.text.kept_text import KeptText

if TYPE_CHECKING:
    from scoremode.runs.baselines import Baseline
    from scoremode.runs.rescore.noise import NoiseFloor


def run_plan(
    request: Request,
    checkpoint: Checkpoint,
    planned: PlannedText,
    make_engine: Callable[[], Engine],
    *,
    baseline: "Baseline | None" = None,
    progress: TotalProgress | None = None,
    notify: Callable[[str], None] = lambda _: None,
    clock: StageClock | None = None,
    watch: Watch | None = None,
) -> Result:
    """`measure` from the plan on, with any engine."""
    clock, progress = clock or StageClock(), progress or (lambda *_: None)
    if request.token_text:
        check_texts(planned.tokenizer)
    clock.begin("engine")
    engine = make_engine()
    context = RunContext(
        request, checkpoint, planned, engine, baseline, progress, notify, clock, watch
    )
    with ExitStack() as engine_open:
        engine_open.callback(engine.close)
        # Before the record is written, so that its seconds have vLLM's end as well.
        return score_plan(context, engine_open.close)()


def score_plan(context: RunContext, close: Callable[[], None]) -> Callable[[], Result]:
    """Scores all that is missing of the run, or of an earlier one that it goes on with.

    Returns what makes the result, of one that was finished before as well: a call, due once, that needs
    nothing more of the engine than to describe itself. `close`: called in it, before the record is
    written for the last time.
    """
    request, checkpoint, baseline = context.request, context.checkpoint, context.baseline
    clock, notify = context.clock, context.notify
    _check_vocabulary(context)
    identity = identity_of(context)
    if request.ranks is not None:
        agree(request.ranks, identity)
    if checkpoint.config.get("auto_map") and not request.options.trust_remote_code:
        notify(
            "the checkpoint brings code of its own (auto_map), which is not run: "
            f"transformers' {identity['engine'].get('model_class', 'class')} computes instead"
        )
    if baseline is not None:
        clock.begin("base")
        baseline.prove()
    clock.begin("check" if request.resume else "engine")
    floor = _noise_floor(context)
    earlier = find_earlier(context, identity)
    if earlier:
        earlier = earlier[0], relabeled(*earlier, request.label)
    if earlier and not isinstance(earlier[1], Running):
        notify(f"already finished: {earlier[0]}")
        return partial(_finished_before, request, *earlier)
    _tell_what_is_too_short(context)
    if request.resume is True and not earlier:
        notify(f"nothing to resume in {request.output}: starting anew")
    folder, document = go_on(*earlier) if earlier else _begin(context, identity)
    # Killed before its files were hashed: what it says may be of another model of the same headers.
    if not document["parts"] and "files" not in document["checkpoint"]:
        document = _first_record(context, identity)
    if (line := swapped(document)) is not None:
        notify(line)
    clock.begin("engine")
    scored = ScoredRun(context, RunPasses(context, folder, document), close)
    scored.score(floor, resumed=earlier is not None)
    return scored.finish


def _tell_what_is_too_short(context: RunContext) -> None:
    """Says before anything is scored that there will be no intervals, where the windows are too few."""
    request = context.request
    note = planned_blocks(context.plan)["note"]
    if note is None:
        return
    kept = ", of the reference as well" if isinstance(request.corpus, KeptText) else ""
    context.notify(note + kept)
    if request.gates is not None and request.gates.on == "upper":
        context.notify("--gate-on upper: no interval, so no upper end: every gate will be missed")


def _begin(context: RunContext, identity: dict[str, Any]) -> tuple[RunFolder, dict[str, Any]]:
    """A new run's folder and its record, which is not in it yet."""
    request = context.request
    record = _first_record(context, identity)
    own = request.output
    if request.keep is None:
        checkpoint = context.checkpoint
        named = Named(checkpoint.source, checkpoint.place, request.label or "")
        own = new_folder(request.output, named.name, identity)
    # Made now, so that an unwritable place is known before hours of work.
    return RunFolder.create(own, again=bool(request.resume)), record


def _first_record(context: RunContext, identity: dict[str, Any]) -> dict[str, Any]:
    """The record as far as it is known before a pass is scored."""
    # Here, since it needs torch, which takes seconds to import, and a plan alone does not.
    from scoremode.schemes.summary import stored_summary

    request, checkpoint, baseline = context.request, context.checkpoint, context.baseline
    source = {
        "source": checkpoint.source,
        "path": checkpoint.place,
        "fingerprint": checkpoint.fingerprint,
    }
    schedule, shard = context.engine.schedule(context.plan), request.shard
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "status": "running",
        "created": now(),
        "command": list(request.command),
        **({} if request.label is None else {"label": request.label}),
        "directory": str(Path.cwd()),
        "versions": versions(),
        "identity": identity,
        "checkpoint": source | mixture_section(checkpoint) | stored_summary(checkpoint),
        **context.planned.to_json(request.corpus),
        "schedule": schedule.to_json(),
        **({} if shard is None else {"shard": shard_section(shard, schedule, context.plan)}),
        **({} if baseline is None else {"reference": baseline.section()}),
        "parts": [],
    }


def _finished_before(request: Request, folder: Path, record: Record) -> Result:
    """The result of a run that was done before, from its Scores, its folder cleared of what a kill left
    there. Raises RunFolderError."""
    tidy(folder)
    if request.keep is not None:
        from scoremode.reference.stored import StoredReference

        StoredReference(folder).check_files()
    if request.shard is not None:
        return Result(folder, open_shard(folder).record)
    return Result(folder, load_run(folder)[0])


def _noise_floor(context: RunContext) -> "NoiseFloor | None":
    request, baseline = context.request, context.baseline
    if request.noise_floor is None or baseline is None:
        return None
    from scoremode.runs.rescore.noise import NoiseFloor

    planned, change = context.planned, request.noise_floor
    return NoiseFloor(change, baseline, planned, request.options, request.ranks)


def _check_vocabulary(context: RunContext) -> None:
    """Raises TokenizerError for a token that the head lacks, ReferenceUnusable for a base with another
    softmax."""
    request, planned, baseline = context.request, context.planned, context.baseline
    largest, entries = int(context.plan.tokens.max()), context.engine.vocabulary
    if largest >= entries:
        raise TokenizerError(
            f"{planned.tokenizer.source}: the text has token id {largest}, and the softmax runs over "
            f"{entries} entries"
        )
    if baseline is not None and baseline.vocabulary != entries:
        base, theirs = baseline.section(), baseline.vocabulary
        words, flags = common_softmax(request, planned, entries, base, theirs)
        error = ReferenceUnusable(
            f"{request.reference}: its softmax runs over {theirs} entries, this model's over "
            f"{entries}: {words}"
        )
        error.instead = flags
        raise error


def common_softmax(
    request: Request,
    planned: PlannedText,
    entries: int,
    base: Mapping[str, Any],
    base_entries: int,
) -> tuple[str, dict[str, str]]:
    """Advice on one softmax for a model and its base, whose heads have different widths: words, and the
    flags that follow it (none where another command comes first).

    A checkpoint's head may have rows that no token has (32,064 for 32,000 tokens, say), or its
    tokenizer tokens that its base never knew. Both have one tokenizer's vocabulary, so it must be one
    tokenizer for both, and the softmax must run over that.

    - `entries`, `base_entries`: over what the softmax of the model and of its base runs.
    - `base`: the record's section of the base.
    """
    ours, least = planned.tokenizer.size, min(entries, base_entries)
    theirs = base.get("tokenizer")
    if theirs is None:  # a llama.cpp file, which knows no tokenizer
        if ours != base_entries:
            return "no flag gives both one vocabulary", {}
        return "--vocabulary tokenizer gives both one", {"--vocabulary": "tokenizer"}
    own = str(request.tokenizer or request.model)
    is_stored = base["kind"] == "stored"
    other = theirs["source"] if is_stored else request.reference
    other = str(request.tokenizer or other)
    fitting = [
        (size, name) for size, name in ((ours, own), (theirs["size"], other)) if size <= least
    ]
    if not fitting:
        return f"neither tokenizer fits {least} entries, so no flag gives both one vocabulary", {}
    _, name = min(fitting)
    flags = {"--vocabulary": "tokenizer"}
    if ours != theirs["size"]:
        flags["--tokenizer"] = name
    words = " ".join(f"{flag} {value}" for flag, value in flags.items())
    if not is_stored:
        return f"{words} gives both one", flags
    if planned.plan.protocol.vocabulary == "tokenizer":
        # What the base ran over is its own tokenizer's, which then is what this model needs.
        return f"--tokenizer {other} gives both one", {"--tokenizer": other}
    return f"keep the reference anew with {words}, and give that here as well", {}


class ScoredRun:
    """A run from its folder on: `score`, then `finish`.

    The two halves need not follow each other at once, nor run in one thread: the second needs no
    device, so that another model may have it by then.

    The record of a run that turns out invalid says why, and a run without a finished pass leaves
    nothing. `close`: called before the record is written for the last time.
    """

    def __init__(self, context: RunContext, passes: RunPasses, close: Callable[[], None]):
        self._context, self._passes, self._close = context, passes, close
        self._table = token_table_task(context.planned.tokenizer)
        self._auto_tokenizer = auto_tokenizer_task(context)
        self._overlap = overlap_task(context)

    def score(self, floor: "NoiseFloor | None", *, resumed: bool) -> None:
        """Scores all passes that are missing, and the noise floor where one is wanted."""
        context, passes = self._context, self._passes
        folder, document = passes.folder, passes.document
        with self._left_whole():
            if resumed:
                check_earlier(context, folder, document)
            else:
                folder.write_record(document)
            ranks = context.request.ranks
            if ranks is not None and ranks.place.spans_nodes and context.request.keep is not None:
                from scoremode.runs.workers import check_shared

                check_shared(ranks, folder.path)
            context.clock.begin("score")
            passes.score()
            if floor is not None:
                document["noise_floor"] = floor.run(passes.schedule, context)

    def finish(self) -> Result:
        """The result, when the record has all that follows from the passes."""
        folder, document, clock = self._passes.folder, self._passes.document, self._context.clock
        with self._left_whole():
            clock.begin("finish")
            self._complete()
            clock.begin("end")
            self._close()
            document["seconds"] = clock.to_json()
            folder.write_record(document)
            folder.drop_parts()
        self._release()
        return Result(folder.path, read_document(document))

    @contextmanager
    def _left_whole(self) -> Iterator[None]:
        """Leaves, where the block fails, a folder that says so, or that can be gone on with."""
        folder, document = self._passes.folder, self._passes.document
        try:
            yield
        except InvalidMeasurement as error:
            try:
                engine = self._context.engine.describe()
                document |= {"status": "invalid", "reason": str(error), "engine": engine}
                folder.write_record(document)
                folder.drop_parts()
                self._passes.discard()
            finally:
                self._release()
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                error.add_note(self._what_is_kept())
            try:
                self._passes.stop()
                # A run without a finished pass is worth nothing to anybody.
                if document["status"] == "running" and (folder.is_empty or not document["parts"]):
                    folder.discard()
            finally:
                self._release()
            raise

    def _what_is_kept(self) -> str:
        """What an interrupt leaves of the run, and how it goes on."""
        request, passes = self._context.request, self._passes
        resume = " with --resume" * (request.resume is False)
        again = f"run the same command again{resume} to go on"
        share = share_of(passes.schedule, request.shard, self._context.plan)
        # A complete record has no parts, and was made of all of them.
        if done := len(passes.document.get("parts", share.passes)):
            kept = share.passes[done - 1].stop - share.windows.start
            return f"{kept:,} of {len(share.windows):,} windows kept, {again}"
        # Of several models, others' runs may be kept.
        is_alone = request.resume != "if-there"
        return "no pass was written, nothing of the run is kept" if is_alone else again

    def _release(self) -> None:
        self._passes.folder.close()
        self._table.wait()
        # A thread must not be within an import when the interpreter ends.
        self._auto_tokenizer.wait()
        self._overlap.wait()

    def _complete(self) -> None:
        """Gives the record all sections that follow from its passes, in place of their parts."""
        context, passes = self._context, self._passes
        folder, document, shard = passes.folder, passes.document, context.request.shard
        # What was scored of the plan where a rule ended the run; a shard is of all of it.
        plan = passes.plan if shard is None else context.plan
        if not self._auto_tokenizer.is_done:
            context.clock.tell("tokenizer", "")
        document["tokenizer"]["auto_tokenizer"] = self._auto_tokenizer.result()
        context.clock.tell("finish", "")
        parts = passes.scores(plan)
        targets = None if shard is None else document["shard"]["targets"]
        made = finished_sections(context, plan, folder, parts, self._table, document, targets)
        kept = passes.kept()
        document |= {
            **made,
            "plan": plan.to_json(),
            "status": "done" if shard is None else "shard",
            "finished": now(),
            "engine": context.engine.describe(),
        }
        if (overlap := self._overlap.result()) is not None:
            document["calibration"] = overlap.section(plan)
        if context.baseline is not None:
            document["reference"] |= context.baseline.finish()
            document["reference"]["arithmetic"] = unlike_dtypes(document)
            if gates := context.request.gates:
                document["gates"] = [
                    gate.to_json() for gate in gates.judge(decode(document, Compared))
                ]
        if kept is not None:
            document["kept"] = kept
        del document["parts"]
