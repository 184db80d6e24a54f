"""A run from its plan to its record: engine → checked Scores → parts on disk → statistics.

Everything that can be wrong with the input is found before the run's folder is made; from then on each
finished pass is on disk, and what is on disk is whole.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.errors import ReferenceUnusable, TokenizerError
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import RunFolder, tidy
from scoremode.results.record.definition import SCHEMA, SCHEMA_VERSION
from scoremode.results.record.sections import now, versions
from scoremode.results.shards.checks import open_shard
from scoremode.runs.baselines.softmax import common_softmax
from scoremode.runs.context import RunContext
from scoremode.runs.finishing import (
    check_texts,
)
from scoremode.runs.identity import agree, identity_of
from scoremode.runs.mixtures import mixture_section
from scoremode.runs.passes import RunPasses
from scoremode.runs.planning import PlannedText
from scoremode.runs.request import Request, Result, TotalProgress
from scoremode.runs.resuming import find_earlier, go_on, new_folder
from scoremode.runs.scored import ScoredRun
from scoremode.runs.scoring import EngineFactory
from scoremode.runs.shards import shard_section
from scoremode.runs.watching import Watch
from scoremode.startup.clock import StageClock

if TYPE_CHECKING:
    from scoremode.runs.baselines import Baseline
    from scoremode.runs.noise import NoiseFloor

__all__ = ["run_plan", "score_plan"]


def run_plan(
    request: Request,
    checkpoint: Checkpoint,
    planned: PlannedText,
    make_engine: EngineFactory,
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
    engine = make_engine(checkpoint, planned.vocabulary)
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
    if earlier and earlier[1]["status"] != "running":
        notify(f"already finished: {earlier[0]}")
        return partial(_finished_before, request, *earlier)
    if request.resume is True and not earlier:
        notify(f"nothing to resume in {request.output}: starting anew")
    folder, record = go_on(*earlier) if earlier else _begin(context, identity)
    # Killed before its files were hashed: what it says may be of another model of the same headers.
    if not record["parts"] and "files" not in record["checkpoint"]:
        record = _first_record(context, identity)
    clock.begin("engine")
    scored = ScoredRun(context, RunPasses(context, folder, record), close)
    scored.score(floor, resumed=earlier is not None)
    return scored.finish


def _begin(context: RunContext, identity: dict[str, Any]) -> tuple[RunFolder, dict[str, Any]]:
    """A new run's folder and its record, which is not in it yet."""
    request = context.request
    record = _first_record(context, identity)
    own = request.output
    if request.keep is None:
        own = new_folder(request.output, request.model, identity)
    # Made now, so that an unwritable place is known before hours of work.
    return RunFolder.create(own, again=bool(request.resume)), record


def _first_record(context: RunContext, identity: dict[str, Any]) -> dict[str, Any]:
    """All that is known before a pass is scored."""
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


def _finished_before(request: Request, folder: Path, record: dict[str, Any]) -> Result:
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
    from scoremode.runs.noise import NoiseFloor

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
