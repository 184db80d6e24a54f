"""A torch engine, on the CPU by default, and its checked Scores of a whole plan."""

from pathlib import Path
from typing import Any

import numpy as np
from support.models import random_plan

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.base import Schedule
from scoremode.engines.torch.engine import TorchEngine, build_engine
from scoremode.engines.torch.options import TorchOptions
from scoremode.results.scores import Scores, check, concatenate
from scoremode.text.plan import Plan


def make_engine(folder: Path, vocabulary: int | None = None, **options: Any) -> TorchEngine:
    options = {"device": "cpu"} | options
    return build_engine(open_checkpoint(str(folder)), TorchOptions(**options), vocabulary)


def score(engine: TorchEngine, plan: Plan, schedule: Schedule | None = None) -> Scores:
    schedule = schedule or engine.schedule(plan)
    parts = list(engine.score(plan, schedule))
    for windows, part in zip(schedule.passes(plan), parts, strict=True):
        check(part, plan, windows)
    return concatenate(parts)


def check_equal(packed: Path, dense: Path, *dtypes: str, **options: Any) -> Scores:
    """Checks that a packed model and the dense one of its weights score the same bits, in each dtype;
    returns the dense one's Scores."""
    plan = random_plan()
    for dtype in dtypes:
        ours = score(make_engine(packed, dtype=dtype, arithmetic="weights", **options), plan)
        theirs = score(make_engine(dense, dtype=dtype, **options), plan)
        assert np.array_equal(ours.logprob, theirs.logprob)
        # A model that says nothing about its text would agree with anything.
        assert theirs.logprob.std() > 0.3
    return theirs
