"""Processes forked from one that has imported what a run needs: each starts in milliseconds."""

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.waiting import HANG

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["transformers.modeling_utils", "scoremode.cli.main", "scoremode.engines.torch.engine"]
)
# Stands in for the module where the package itself starts a process.
MULTIPROCESSING = SimpleNamespace(get_context=lambda _: CONTEXT)


def call(work: Callable[..., Any], *arguments: Any) -> tuple[int | None, str, str]:
    """Exit code, stdout and stderr of a process that calls `work`, and exits with what it returns."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("out", "err")]
        process = CONTEXT.Process(target=_called, args=(files, work, arguments))
        process.start()
        process.join(HANG)
        out, err = (file.read_text(errors="replace") for file in files)
        return process.exitcode, out, err


def _called(files: list[Path], work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY), number)
    sys.exit(work(*arguments))


def run_killed(
    arguments: list[str], folder: Path, parts: int, pattern: str = "*/parts/*.parquet"
) -> None:
    """Runs a command of scoremode's that is killed, as by kill -9, at the first file that it names
    in `folder` when its record and so many parts are there."""
    process = CONTEXT.Process(target=_killed, args=(arguments, folder, parts, pattern))
    process.start()
    process.join(HANG)
    assert process.exitcode == -signal.SIGKILL, f"to be killed, it ended with {process.exitcode}"


def _killed(arguments: list[str], folder: Path, parts: int, pattern: str) -> None:
    from scoremode.cli.main import main

    def hook(event: str, found: tuple) -> None:
        if event == "os.rename" and os.fspath(found[1]).startswith(os.fspath(folder)):
            parts_there, records = folder.glob(pattern), folder.rglob("record.json")
            if len(list(parts_there)) >= parts and any(records):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    sys.exit(main(arguments))
