"""What two runs must share to be one, and all ranks of one run."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.run_requests import request

from scoremode.engines.torch.ranks.places import Place
from scoremode.errors import EngineError
from scoremode.runs.context import RunContext, agree, identity_of

ENGINE = {"dtype": "bfloat16", "device": {"type": "cuda", "name": "x", "memory_bytes": 10}}


def identity(*, baseline: object = None, **more) -> dict[str, Any]:
    context = SimpleNamespace(
        request=replace(request(Path("model"), "text", Path("runs")), **more),
        checkpoint=SimpleNamespace(fingerprint="f0"),
        planned=SimpleNamespace(identity=lambda: {"plan": "p0"}),
        engine=SimpleNamespace(identity=lambda: ENGINE),
        baseline=baseline,
    )
    return identity_of(cast("RunContext", context))


def test_it_has_what_was_asked_for():
    plain = identity()
    assert set(plain) == {"checkpoint", "plan", "engine", "versions"}
    assert (plain["checkpoint"], plain["plan"], plain["engine"]) == ("f0", "p0", ENGINE)
    assert identity(keep="stored") == plain | {"keep": "stored"}
    base = SimpleNamespace(identity=lambda: {"kind": "stored"})
    compared = {"reference": {"kind": "stored"}, "full": True, "noise_floor": None}
    assert identity(baseline=base, full=True) == plain | compared
    # Neither where the run goes nor what was typed.
    assert identity(output=Path("elsewhere"), command=("scoremode",)) == plain


class Ranks:
    place = Place(0, 3, "--devices", local=0, here=3)

    def __init__(self, *others: dict[str, Any]):
        self._others = others

    def agree(self, facts: dict[str, Any]) -> list[dict[str, Any]]:
        return [facts, *self._others]

    def title(self, rank: int) -> str:
        return f"rank {rank} (cpu on node{rank})"


def test_ranks_may_differ_in_their_memory_alone():
    ours = {"plan": "p0", "engine": ENGINE}
    smaller = {**ours, "engine": ENGINE | {"device": ENGINE["device"] | {"memory_bytes": 9}}}
    agree(cast("Any", Ranks(ours, smaller)), ours)
    other = {**ours, "engine": ENGINE | {"device": ENGINE["device"] | {"name": "y"}}}
    with pytest.raises(
        EngineError, match="rank 2 is not like rank 0: its engine device name is 'y'"
    ):
        agree(cast("Any", Ranks(smaller, other)), ours)
    far = Ranks(smaller, other)
    far.place = replace(far.place, here=1)
    with pytest.raises(
        EngineError, match=r"^rank 2 \(cpu on node2\) is not like rank 0: its engine"
    ):
        agree(cast("Any", far), ours)
