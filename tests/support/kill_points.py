"""For features/test_resume.py: a run killed at touches of the disk, and resumed.

The engine's scores are made once, and then handed out, so that a run takes milliseconds and can be
killed hundreds of times: a child that is forked for it ends, without a word, before its n-th write,
rename, removal or sync of a file of the run (every STEP-th of them). Prints what was wrong, and how
many points there were.
"""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import torch

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.base import Extras, Schedule
from scoremode.engines.torch.engine import TorchEngine, build_engine
from scoremode.engines.torch.options import TorchOptions
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import find_runs
from scoremode.results.shards import Shard
from scoremode.results.shards.checks import open_shard
from scoremode.results.shards.merge import merge
from scoremode.runs.planning import plan_text
from scoremode.runs.request import Request
from scoremode.runs.run import run_plan
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset

KILLED = 77
PASSES = 3
EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree"}


class Canned:
    """An engine that was run once."""

    def __init__(self, engine: TorchEngine, passes, states):
        self._passes, self._states = passes, states
        self.vocabulary = engine.vocabulary
        self._identity, self._described = engine.identity(), engine.describe()
        self._head = engine.head_tensors()

    def schedule(self, plan):
        return schedule_of(plan)

    def score(self, plan, schedule, first_pass=0, progress=None, extras=None):
        for number in range(first_pass, len(schedule.passes(plan))):
            if extras.keeper is not None:
                extras.keeper.put(number, self._states[number])
            yield self._passes[number]

    def identity(self):
        return self._identity

    def describe(self):
        return self._described

    def head_tensors(self):
        return self._head

    def close(self):
        pass


def schedule_of(plan) -> Schedule:
    # Of one that is looked at, a look is soon enough a pass.
    return Schedule(-(-len(plan) // PASSES) if plan.protocol.seed is None else 24, 4)


class States:
    """A keeper that remembers."""

    def __init__(self):
        self.put_ = {}

    def put(self, number, parts):
        self.put_[number] = [part.clone() for part in parts]


def canned(request: Request, checkpoint, planned) -> Canned:
    engine = build_engine(checkpoint, request.options, planned.vocabulary)
    schedule, states = schedule_of(planned.plan), States()
    passes = list(engine.score(planned.plan, schedule, 0, None, Extras(keeper=states)))
    return Canned(engine, passes, states.put_)


def touches(folder: Path, at: int) -> None:
    """Ends this process before the `at`-th touch of a file under `folder`, and says so by its code."""
    left, root = [at], os.fspath(folder)

    def count() -> None:
        left[0] -= 1
        if left[0] < 0:
            os._exit(KILLED)

    def hook(event: str, arguments: tuple) -> None:
        if event in EVENTS and any(
            isinstance(a, str | os.PathLike) and os.fspath(a).startswith(root) for a in arguments
        ):
            count()

    os.fsync = lambda _: count()
    sys.addaudithook(hook)


def in_child(work) -> int:
    """Its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def facts(output: Path) -> dict:
    """All bytes that matter of the finished run in `output`, and its numbers."""
    runs = [output] if (output / "record.json").exists() else [f for f, _ in find_runs(output)]
    (folder,) = runs
    record = json.loads((folder / "record.json").read_text())
    if record["status"] == "shard":
        list(open_shard(folder).tables())
    else:
        record = load_run(folder)[0].document
    files = {str(f.relative_to(folder)): f for f in folder.rglob("*") if f.is_file()}
    return {n: f.read_bytes() for n, f in files.items() if n != "record.json"} | {
        name: record.get(name)
        for name in ("metrics", "distribution", "kept", "worst", "plan", "stopping")
    }


def main(work: Path, kind: str, step: int) -> None:
    """`kind`: ppl, reference, stopped, shard or merge."""
    torch.set_num_threads(1)
    # A killed process loses nothing that wasn't synced: the disk is not waited for.
    os.fsync = lambda _: None
    import scoremode.demo

    demo = Path(scoremode.demo.__file__).parent
    protocol, characters = preset("disjoint").override(context_length=32), 1500
    if kind == "stopped":
        # Ended by its third look, of six.
        protocol, characters = protocol.override(stop_when="ppl±20%", seed=0), 9000
    request = Request(
        model=str(demo / "model"),
        corpus=from_string((demo / "heldout.txt").read_text(encoding="utf-8")[:characters]),
        protocol=protocol,
        options=TorchOptions(device="cpu", dtype="float32", batch_windows=4),
        output=work / "whole",
        keep="stored" if kind == "reference" else None,
        shard=Shard(2, 2) if kind == "shard" else None,
    )
    checkpoint = open_checkpoint(request.model)
    planned = plan_text(request.corpus, request.protocol, model=request.model)
    engine = canned(request, checkpoint, planned)

    def run(output: Path, *, resume: bool) -> None:
        run_plan(
            replace(request, output=output, resume=resume),
            open_checkpoint(request.model),
            planned,
            lambda *_: engine,
        )

    if kind == "merge":
        for number in (1, 2):
            shard = replace(request, output=work / "shards", shard=Shard(number, 2))
            run_plan(shard, checkpoint, planned, lambda *_: engine)

        def run(output: Path, *, resume: bool) -> None:
            # Beside others of the same folder; a killed one leaves nothing under its own name.
            if resume and (output / "merged").exists():
                load_run(output / "merged")
            else:
                merge([work / "shards"], output / "merged")

    if in_child(lambda: run(work / "whole", resume=False)):
        sys.exit("the run that nobody kills fails")
    wanted = facts(work / "whole")
    at, code = 0, KILLED
    while code == KILLED:
        output = work / f"{at}"

        def killed(output: Path = output, at: int = at) -> None:
            touches(output, at)
            run(output, resume=False)

        code = in_child(killed)
        if code not in (0, KILLED):
            print(f"killed at {at}: ended with {code}")
        if in_child(lambda output=output: run(output, resume=True)):
            print(f"killed at {at}: can't be resumed")
        elif (found := facts(output)) != wanted:
            print(
                f"killed at {at}: other {[k for k in found | wanted if found.get(k) != wanted.get(k)]}"
            )
        shutil.rmtree(output)
        at += step
    print(f"{at // step - 1} points")
