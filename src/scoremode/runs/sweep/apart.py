"""A sweep whose engine has one model a process, as vLLM: every run in a process of its own."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import line_of
from scoremode.lib.processes import run_apart
from scoremode.runs.measure import measure
from scoremode.runs.planning import plan_text
from scoremode.runs.request import Request, Result
from scoremode.runs.sweep.bases import folder_of_base
from scoremode.runs.sweep.board import Board
from scoremode.runs.sweep.model import Stage
from scoremode.startup.clock import StageClock

__all__ = ["capture_apart", "measure_apart"]


def capture_apart(requests: Sequence[Request], stage: Stage) -> list[Any]:
    """The folders of the base's references, one for each of its requests. Raises ScoremodeError."""
    folders = []
    for request in requests:
        checkpoint = open_checkpoint(
            request.model, request.revision, code=request.options.trust_remote_code
        )
        planned = plan_text(
            request.corpus,
            request.protocol,
            model=request.model,
            tokenizer=request.tokenizer,
            revision=request.revision,
        )
        output = folder_of_base(request.output, checkpoint, planned, request)
        folders.append(_run("the base", replace(request, output=output), stage).folder)
    return folders


def measure_apart(requests: Sequence[Request], board: Board, job: int, stage: Stage) -> None:
    """Runs one model under each pair; what fails is noted."""
    for number, request in enumerate(requests):
        board.begin(job, number)
        try:
            result = _run(request.model, request, stage)
        # Not hidden: the entry has the line.
        except Exception as error:  # noqa: BLE001
            board.failed(job, number, line_of(error))
        else:
            board.done(job, number, result)


def _run(label: str, request: Request, stage: Stage) -> Result:
    def receive(message: tuple[str, Any]) -> None:
        kind, value = message
        if kind == "stage":
            stage.begin(value, stage.name)
        elif kind == "notify":
            stage.notify(value)
        elif stage.progress:
            stage.progress(*value)

    return run_apart(label, _measure, request, receive=receive)


def _measure(send: Callable[[Any], None], request: Request) -> Result:
    return measure(
        request,
        progress=lambda *counts: send(("progress", counts)),
        notify=lambda line: send(("notify", line)),
        clock=StageClock(tell=lambda name, _: send(("stage", name))),
    )
