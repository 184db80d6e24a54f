"""The one way to a measurement: a request → checkpoint, plan, base and engine → a run → its record."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.model_files import ModelFiles
from scoremode.engines.replay.options import ReplayOptions
from scoremode.errors import RunFolderError, ScoremodeError
from scoremode.lib.processes import run_apart
from scoremode.results.folders.store import RunFolder
from scoremode.runs.context import import_engine
from scoremode.runs.models import opened_model
from scoremode.runs.planning import plan_of_base, plan_request
from scoremode.runs.request import (
    Request,
    Result,
    TotalProgress,
    Watch,
    check_request,
)
from scoremode.runs.run import run_plan
from scoremode.startup.clock import StageClock, Tell
from scoremode.startup.warmup import check_installation, preparing
from scoremode.text.corpus_plan import PlannedText


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
    check_request(request)
    request = request.resolved()
    checkpoint = opened_model(request, notify)
    with preparing(checkpoint, request.options), ExitStack() as at_end:
        clock.begin("plan")
        planned = plan_request(request, checkpoint)
        for note in planned.notes:
            notify(note)
        if isinstance(request.options, ReplayOptions):
            request.options.predictions.check_plan(planned, request.corpus)
        clock.begin("import")
        import_engine(request.options)
        options, baseline = request.options, None
        # Several ranks wait for a pass's states to be written.
        if request.keep is not None and request.ranks is None:
            options = options.keeping()
        if request.reference is not None:
            # Here, since it needs torch.
            from scoremode.runs.baselines import open_baseline

            clock.begin("base")
            kept = None
            if request.captures_base:
                kept = at_end.enter_context(
                    _captured(request, checkpoint, planned, clock, progress, notify)
                )
            baseline = open_baseline(request, planned, checkpoint, kept)
            at_end.callback(baseline.close)
            options = baseline.beside(options)
        plan, vocabulary = planned.plan, planned.vocabulary
        return run_plan(
            request,
            checkpoint,
            planned,
            partial(options.make, checkpoint, vocabulary, plan, notify, request.ranks),
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
        planned = plan_request(request, checkpoint)
        baseline, options = None, request.options
        import_engine(options)
        if request.reference is not None:
            from scoremode.runs.baselines import open_baseline

            baseline = open_baseline(request, planned, checkpoint)
            options = baseline.beside(options)
        from scoremode.runs.workers import follow_plan

        plan, vocabulary = planned.plan, planned.vocabulary
        make = partial(options.make, checkpoint, vocabulary, plan, lambda _: None, request.ranks)
        follow_plan(request, checkpoint, planned, make, baseline)


@contextmanager
def _captured(
    request: Request,
    checkpoint: Checkpoint,
    planned: PlannedText,
    clock: StageClock,
    progress: TotalProgress | None,
    notify: Callable[[str], None],
) -> Iterator[Path]:
    """The base of a request, whose model is in `checkpoint`, as a reference, where its engine runs one
    model at a time.

    It lies beside the runs, and is gone at the end. An interrupted run leaves it, and goes on from it.
    """
    assert isinstance(request.reference, ModelFiles)
    options = request.options.in_dtype_of(checkpoint)
    base = open_checkpoint(request.reference, code=options.trust_remote_code)
    capture = replace(
        request,
        options=options.of_base(base),
        model=request.reference,
        revision=request.reference_revision,
        swaps=(),
        quantization=None,
        reference=None,
        reference_revision=None,
        # With a length that was found for the model, so that both have the same windows.
        protocol=planned.plan.protocol,
        full=False,
        draft=None,
        noise_floor=None,
        judge=None,
        label=None,
        keep="stored",
    )
    own = plan_of_base(planned, request.corpus, request.reference, request.tokenizer)
    key = f"{request.reference} {request.reference_revision} {own.plan.sha256} {capture.options}"
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
