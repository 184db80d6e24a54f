"""Runs that are shared out: by engines that were loaded once, with a schedule that tests choose."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.run_requests import request
from support.tampered_runs import loaded

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.base import Schedule
from scoremode.errors import ScoremodeError
from scoremode.results.folders.store import RECORD, seal_of
from scoremode.results.shards import Shard
from scoremode.runs.planning import plan_text
from scoremode.runs.request import Request, Result
from scoremode.runs.run import run_plan

SCHEDULE = Schedule(pass_windows=8, batch_windows=4)


class Scheduled:
    """The real engine with a schedule of the test's, and what comes out of it as `tamper` has it."""

    def __init__(self, engine, schedule: Schedule, tamper=lambda parts: parts):
        self._engine, self._schedule, self._tamper = engine, schedule, tamper
        self.vocabulary = engine.vocabulary
        self.identity, self.describe = engine.identity, engine.describe
        self.head_tensors = engine.head_tensors

    def schedule(self, plan):
        return self._schedule

    def score(self, *given, **named):
        yield from self._tamper(self._engine.score(*given, **named))

    def close(self):
        pass


def asked(demo: Path, output: Path, characters: int = 9000, **more: Any) -> Request:
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:characters]
    return request(demo / "model", text, output, **more)


def run(
    asked: Request,
    schedule: Schedule = SCHEDULE,
    shard: str | None = None,
    tamper=lambda parts: parts,
    **more: Any,
) -> Result:
    """The request's run, or one of its shards, without a base."""
    asked = replace(asked, shard=None if shard is None else Shard.parsed(shard), **more)
    planned = plan_text(asked.corpus, asked.protocol, model=asked.model)

    def engine():
        return Scheduled(loaded(asked.model, asked.options, planned.vocabulary), schedule, tamper)

    return run_plan(asked, open_checkpoint(asked.model), planned, engine)


def shards(asked: Request, of: int, schedule: Schedule = SCHEDULE, **more: Any) -> list[Path]:
    return [run(asked, schedule, f"{i}/{of}", **more).folder for i in range(1, of + 1)]


def edited(folder: Path, target: Path, change, *, sealed: bool = True) -> Path:
    """A copy of a run whose record was changed."""
    shutil.copytree(folder, target)
    record = json.loads((target / RECORD).read_text())
    change(record)
    if sealed:
        record["sha256"] = seal_of(record)
    (target / RECORD).write_text(json.dumps(record))
    return target


def refusal(call, *given: Any, **named: Any) -> str:
    """The one line of the error that a call ends with."""
    try:
        call(*given, **named)
    except ScoremodeError as error:
        words = str(error)
        assert "\n" not in words
        return words
    raise AssertionError("nothing was refused")


def untimed(record: dict[str, Any]) -> dict[str, Any]:
    """A record without what is of the moment: when, how long, and its seal."""
    left = {
        k: v for k, v in record.items() if k not in ("created", "finished", "seconds", "sha256")
    }
    return left | {"command": None}
