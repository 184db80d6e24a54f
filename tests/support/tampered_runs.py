"""Runs of the real engine, its results changed or cut short on the way out."""

from functools import cache
from pathlib import Path

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.base import Schedule
from scoremode.engines.torch.engine import TorchEngine, build_engine
from scoremode.engines.torch.options import TorchOptions
from scoremode.runs.planning import plan_text
from scoremode.runs.run import run_plan


class Tampering:
    """The real engine with its results changed on the way out, three passes of them."""

    def __init__(self, engine: TorchEngine, tamper):
        self._engine, self._tamper = engine, tamper
        self.vocabulary = engine.vocabulary
        self.identity, self.describe = engine.identity, engine.describe
        self.close, self.head_tensors = engine.close, engine.head_tensors

    def schedule(self, plan):
        return Schedule(pass_windows=-(-len(plan) // 3), batch_windows=2)

    def score(self, plan, schedule, first_pass=0, progress=None, extras=None):
        yield from self._tamper(self._engine.score(plan, schedule, first_pass, progress, extras))


@cache
def loaded(model: str, options: TorchOptions, vocabulary: int | None) -> TorchEngine:
    return build_engine(open_checkpoint(model), options, vocabulary)


def run(request, tamper=lambda parts: parts):
    planned = plan_text(request.corpus, request.protocol, model=request.model)

    def engine():
        return Tampering(loaded(request.model, request.options, planned.vocabulary), tamper)

    return run_plan(request, open_checkpoint(request.model), planned, engine)


def each(change):
    return lambda parts: (change(part) for part in parts)


class Stop(Exception):
    pass


def interrupted_after(n):
    def tamper(parts):
        for i, part in enumerate(parts):
            if i == n:
                raise Stop
            yield part

    return tamper


def copy_model(demo: Path, target: Path) -> None:
    target.mkdir()
    for file in (demo / "model").iterdir():
        (target / file.name).write_bytes(file.read_bytes())
