"""`scoremode status`: what runs and sweeps are doing, without disturbing them."""

import sys
import time
from typing import Any

from scoremode.cli.command import Command, print_result, rendered
from scoremode.cli.screen import Session
from scoremode.spec.flag import Flag
from scoremode.spec.run import Form, Runs
from scoremode.spec.values import finite

__all__ = ["Status"]

# Seconds between two looks, and the shortest that may be asked for.
_EVERY, _SHORTEST = 2.0, 0.1


class Status(Runs, Command):
    called = "status"
    summary = "show the progress of runs and their results so far"
    about = (
        "Prints for each run whether it is running, killed, done or invalid, how many windows are "
        "done, its rate, the time left, and its numbers so far with their intervals; for a sweep also "
        "which models are waiting, and which failed. Only reads: running processes are not disturbed."
    )
    watch: Flag[float | None, float | None] = Flag(
        f"refresh this often (default: {_EVERY:g}) until nothing is running",
        "SECONDS",
        read=finite,
        nargs="?",
        const=_EVERY,
    )
    form = Form("all that is known of each run")

    def run(self, session: Session) -> int:
        from scoremode.errors import UsageError
        from scoremode.report.runs import status_document
        from scoremode.results.folders.status import StatusReader, found_runs
        from scoremode.runs.sweep.manifest import unfinished

        if self.watch is not None and self.watch < _SHORTEST:
            raise UsageError(f"--watch {self.watch:g}: must be at least {_SHORTEST:g} seconds")
        reader = StatusReader()

        def look() -> list[dict[str, Any]]:
            wanted = {path: unfinished(path) for path in self.runs}
            found = (
                run
                for path in self.runs
                for run in found_runs(path, is_sweep=wanted[path] is not None)
            )
            states = [reader.status(folder) for folder in dict.fromkeys(found)]
            # A model whose run is invalid has failed in its sweep, for the same reason.
            known = [state["problem"] for state in states if state["state"] == "invalid"]
            waiting = [state for each in wanted.values() for state in each or ()]
            return states + [
                state
                for state in waiting
                if not (
                    state["state"] == "failed" and any(why in state["problem"] for why in known)
                )
            ]

        states = look()
        if self.watch is None or not _runs(states):
            print_result(session, states, status_document, self.form)
            return 0
        session.screen.clear()
        screen, shown = _Redrawn(), ""
        while True:
            if self.form == "json":
                from scoremode.lib.json import json_text

                text = json_text(states, ascii_only=True)
            else:
                text = rendered(status_document(states), self.form)
            if text != shown:
                screen.put(text)
                shown = text
            if not _runs(states):
                return 0
            time.sleep(self.watch)
            states = look()


def _runs(states: list[dict[str, Any]]) -> bool:
    """Whether a run goes on, or a sweep that has models left."""
    return any(
        state["state"] == "running" or (state["state"] == "waiting" and not state["problem"])
        for state in states
    )


class _Redrawn:
    """Text on stdout, which the next one replaces on a terminal, and follows anywhere else."""

    def __init__(self) -> None:
        self._lines = 0

    def put(self, text: str) -> None:
        if self._lines and sys.stdout.isatty():
            # To the first line's beginning, and everything from there on away.
            sys.stdout.write(f"\x1b[{self._lines}F\x1b[J")
        elif self._lines:
            sys.stdout.write("\n")
        sys.stdout.write(text)
        sys.stdout.flush()
        self._lines = text.count("\n")
