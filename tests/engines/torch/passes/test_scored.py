"""The head's results of a micro-batch are those of the head by itself."""

import torch
from support.engine import make_engine
from support.models import random_plan

from scoremode.engines.base import Work
from scoremode.engines.torch.device import DeviceClock
from scoremode.engines.torch.passes.microbatch import score_states
from scoremode.head.project import score_rows


def test_alone_they_are_the_head_s(demo):
    engine = make_engine(demo / "model", dtype="float32")
    plan = random_plan(24, 2, 0, 500)
    (work,) = Work.passes(plan, engine.schedule(plan))
    states = torch.cat(engine.final_states(work))
    target = torch.from_numpy(plan.targets()[2]).long()
    span = (0, len(target))
    clock = DeviceClock(torch.device("cpu"))
    (found,) = score_states(engine.head, work, span, states, target, clock)
    wanted = score_rows(engine.head, states, target)
    assert torch.equal(found.logprob, wanted.logprob) and clock.seconds()["head"] > 0
