"""The one way to a measurement: a request → checkpoint, plan, base and engine → a run → its record."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from scoremode.checkpoint.model_files import resolve_model
from scoremode.errors import RunFolderError, ScoremodeError, UsageError
from scoremode.lib.processes import run_apart
from scoremode.results.comparison.comparable import check_same_plan
from scoremode.results.folders.store import RunFolder
from scoremode.runs.context import engine_factory
from scoremode.runs.models import opened_model
from scoremode.runs.planning import PlannedText, check_same_tokens, plan_text
from scoremode.runs.request import (
    Request,
    Result,
    TotalProgress,
    Watch,
    check_sharding,
    check_stopping,
)
from scoremode.runs.run import run_plan
from scoremode.startup.clock import StageClock, Tell
from scoremode.startup.warmup import check_installation, preparing

__all__ = [
    "follow",
    "measure",
    "measure_apart",
    "planned_text",
]


def measure(
    request: Request,
    *,
    progress: TotalProgress | None = None,
    notify: Callable[[str], None] = lambda _: None,
    clock: StageClock | None = None,
    watch: Watch | None = None,
) -> Result:
    """Scores a model under a protocol and writes the run's folder.

    `notify` gets one line for anything the user should know while it runs; `clock` may have counted
    the seconds before; `watch` gets the estimates of the passes done, after each. A script that
    compares two models in vLLM needs the guard `if __name__ == "__main__"`, as every program that
    starts processes. Raises ScoremodeError.
    """
    clock = clock or StageClock()
    clock.begin("open")
    # Before anything is loaded, or fetched from the hub.
    check_installation()
    check_stopping(request)
    check_sharding(request)
    request = request.resolved()
    checkpoint = opened_model(request, notify)
    with preparing(checkpoint, request.options), ExitStack() as at_end:
        clock.begin("plan")
        planned = planned_text(request)
        for note in planned.notes:
            notify(note)
        clock.begin("import")
        options, baseline = request.options, None
        # Several ranks wait for a pass's states to be written.
        if request.keep is not None and request.ranks is None:
            options = options.keeping()
        make_engine = engine_factory(options, planned, notify, request.ranks)
        if request.reference is not None:
            from scoremode.runs.baselines import needs_capture, open_baseline

            clock.begin("base")
            kept = None
            if needs_capture(request):
                if (rule := request.protocol.stop_when) is not None:
                    raise UsageError(
                        f"--stop-when {rule}: with --engine vllm the base runs first, over all "
                        "windows: keep it with scoremode reference, and give that as --reference"
                    )
                if (shard := request.shard) is not None:
                    raise UsageError(
                        f"--shard {shard}: with --engine vllm the base runs first, over all windows: "
                        "keep it with scoremode reference, and give that as --reference"
                    )
                alike = replace(request, options=request.options.in_dtype_of(checkpoint))
                kept = at_end.enter_context(_captured(alike, planned, clock, progress, notify))
            baseline = open_baseline(request, planned, checkpoint, kept)
            at_end.callback(baseline.close)
            make_engine = engine_factory(baseline.beside(options), planned, notify, request.ranks)
        return run_plan(
            request,
            checkpoint,
            planned,
            make_engine,
            baseline=baseline,
            progress=progress,
            notify=notify,
            clock=clock,
            watch=watch,
        )


def follow(request: Request) -> None:
    """Does the share of a rank but the first in the same request, until nothing more is wanted.

    Raises ScoremodeError.
    """
    request = request.resolved()
    checkpoint = opened_model(request)
    hashes = request.ranks is not None and request.ranks.place.leads_node
    with preparing(checkpoint, request.options, hashes=hashes):
        planned, baseline, options = planned_text(request), None, request.options
        # First, since it waits for the imports, which a base in this process needs as well.
        make_engine = engine_factory(options, planned, lambda _: None, request.ranks)
        if request.reference is not None:
            from scoremode.runs.baselines import open_baseline

            baseline = open_baseline(request, planned, checkpoint)
            options = baseline.beside(options)
            make_engine = engine_factory(options, planned, lambda _: None, request.ranks)
        from scoremode.runs.workers import follow_plan

        follow_plan(request, checkpoint, planned, make_engine, baseline)


def planned_text(request: Request) -> PlannedText:
    """The request's text, cut into windows for its model. Raises ScoremodeError."""
    return plan_text(
        request.corpus,
        request.protocol,
        model=resolve_model(request.model, request.revision),
        tokenizer=request.tokenizer,
    )


@contextmanager
def _captured(
    request: Request,
    planned: PlannedText,
    clock: StageClock,
    progress: TotalProgress | None,
    notify: Callable[[str], None],
) -> Iterator[Path]:
    """The request's base as a reference, where its engine runs one model at a time.

    It lies beside the runs, and is gone at the end. An interrupted run leaves it, and goes on from it.
    """
    assert request.reference is not None
    capture = replace(
        request,
        model=request.reference,
        revision=request.reference_revision,
        swaps=(),
        quantization=None,
        reference=None,
        reference_revision=None,
        # With a length that was found for the model, so that both have the same windows.
        protocol=planned.plan.protocol,
        full=False,
        noise_floor=None,
        judge=None,
        keep="stored",
    )
    base = planned_text(capture)
    tokens, text = base.plan.tokens, base.text_sha256
    check_same_tokens(planned, tokens, text, str(request.reference), base.tokenizer, base.chat)
    ours, theirs = (p.to_json(request.corpus) for p in (planned, base))
    check_same_plan(ours, theirs, str(request.reference))
    key = f"{request.reference} {request.reference_revision} {base.plan.sha256} {request.options}"
    folder = request.output / f".reference-{sha256(key.encode()).hexdigest()[:16]}"
    if folder.is_symlink():
        raise RunFolderError(f"{folder}: is a link, not what a run has left: remove it")
    capture = replace(capture, output=folder, resume=folder.exists())
    notify(f"the base first: its states go to {folder} meanwhile")

    def tell(stage: str, _: str) -> None:
        clock.tell(stage, "the base")

    try:
        measure_apart("the base", capture, tell, notify, progress)
        yield folder
    except ScoremodeError:
        with suppress(RunFolderError):
            RunFolder.open(folder).discard()
        raise
    RunFolder.open(folder).discard()


def measure_apart(
    label: str,
    request: Request,
    tell: Tell,
    notify: Callable[[str], None],
    progress: TotalProgress | None,
) -> Result:
    """`measure` in a process of its own, whose errors have `label` in front. Raises ScoremodeError."""

    def receive(message: tuple[str, Any]) -> None:
        kind, value = message
        if kind == "stage":
            tell(value, "")
        elif kind == "notify":
            notify(value)
        elif progress:
            progress(*value)

    return run_apart(label, _measure, request, receive=receive)


def _measure(send: Callable[[Any], None], request: Request) -> Result:
    return measure(
        request,
        progress=lambda *counts: send(("progress", counts)),
        notify=lambda line: send(("notify", line)),
        clock=StageClock(tell=lambda stage, _: send(("stage", stage))),
    )
