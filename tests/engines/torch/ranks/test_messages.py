"""Ranks: what they say to each other, and what a failure becomes."""

import io
import json
import socket
import time
from functools import partial
from typing import cast

import numpy as np
import pytest
from engines.torch.ranks.far_ranks import far_place
from engines.torch.ranks.joined import join, together
from torch.distributed import HashStore

from scoremode.engines.base import OutOfMemory, Schedule
from scoremode.engines.torch.ranks import messages
from scoremode.engines.torch.ranks.lifeline import Lifelines, Peer
from scoremode.engines.torch.ranks.messages import (
    End,
    LookFor,
    Ranks,
    ScorePasses,
    ScoreVariant,
    command_of,
    json_of,
)
from scoremode.errors import CheckpointError, EngineError, UsageError
from scoremode.runs.context import agree


@pytest.mark.parametrize(
    "command",
    [
        ScorePasses(Schedule(12, 3), 2, keeps=True, windows=24),
        ScoreVariant(1),
        LookFor("/shared/ref/.seen", "0f"),
        End(),
    ],
)
def test_a_command_is_the_same_where_it_arrives(command):
    assert command_of(json.loads(json.dumps(json_of(command)))) == command


@pytest.mark.parametrize("use_libuv", [True, False])
def test_large_columns_travel_whole(monkeypatch: pytest.MonkeyPatch, use_libuv: bool):
    """In either of torch's stores: torchrun's is the one without libuv where USE_LIBUV=0 says so."""
    monkeypatch.setattr(messages, "TCPStore", partial(messages.TCPStore, use_libuv=use_libuv))
    columns = {"a": np.arange(3_000_000, dtype=np.int32), "b": np.zeros(0, np.float64)}

    def work(ranks: Ranks) -> object:
        if not ranks.is_first:
            ranks.leave("x", {"rank": 1}, columns)
            return None
        return ranks.take("x")

    taken, _ = together(work, join(2))
    assert isinstance(taken, tuple)
    facts, found = taken
    assert facts == {"rank": 1}
    assert found.keys() == columns.keys()
    assert all(np.array_equal(found[k], columns[k]) for k in columns)


def test_no_value_is_ever_unpickled():
    """Another user of the machine may reach the store's port: what lies there is only data."""

    def work(ranks: Ranks) -> object:
        if not ranks.is_first:
            file = io.BytesIO()
            np.savez(file, facts=np.array([print], dtype=object))
            ranks._store.set("x/0", cast("str", file.getvalue()))
            ranks._store.set("x", "1")
            return None
        with pytest.raises(ValueError, match="allow_pickle=False"):
            ranks.take("x")
        return None

    together(work, join(2))


def facts(name: str) -> dict:
    device = {"type": "cuda", "name": name, "memory_bytes": len(name), "threads": None}
    return {"plan": "1", "engine": {"engine": "torch", "device": device}}


def test_ranks_on_unlike_devices_are_refused():
    def work(ranks: Ranks, names: tuple[str, str]) -> None:
        said = facts(names[ranks.place.rank])
        if ranks.is_first:
            agree(ranks, said)
        else:
            ranks.agree(said)

    error, _ = together(lambda r: work(r, ("NVIDIA H200", "NVIDIA A100")), join(2))
    assert isinstance(error, EngineError)
    assert str(error) == (
        "rank 1 is not like rank 0: its engine device name is 'NVIDIA A100', rank 0's 'NVIDIA H200'"
    )
    assert together(lambda r: work(r, ("NVIDIA H200", "NVIDIA H200")), join(2)) == [None, None]


@pytest.mark.parametrize(
    ("raised", "text", "kind"),
    [
        (CheckpointError, "shard 2 is missing", CheckpointError),
        # Which is an engine's own, and no business of other ranks.
        (OutOfMemory, "CUDA out of memory", EngineError),
    ],
)
def test_what_fails_before_they_agree_is_told_there(raised, text, kind, monkeypatch):
    monkeypatch.setattr(messages, "_ALIKE", 0.1)

    def work(ranks: Ranks) -> None:
        if not ranks.is_first:
            ranks.fail(raised(text))
            return
        agree(ranks, facts("a"))

    error, _ = together(work, join(2))
    assert isinstance(error, kind)
    assert str(error) == f"rank 1: {text}"


def test_what_fails_later_ends_the_wait_at_once():
    def work(ranks: Ranks) -> float | None:
        if not ranks.is_first:
            ranks.agree(facts("a"))
            ranks.take("all agreed")
            try:
                raise RuntimeError("CUDA error:\n out of luck")
            except RuntimeError as error:
                ranks.fail(error)
            return None
        agree(ranks, facts("a"))
        ranks.leave("all agreed", {})
        begin = time.monotonic()
        with pytest.raises(EngineError, match=r"^rank 1: RuntimeError: CUDA error: out of"):
            ranks.take("never")
        assert isinstance(ranks.failure(), EngineError)
        return time.monotonic() - begin

    seconds, _ = together(work, join(2))
    assert isinstance(seconds, float) and seconds < 60


def far(monkeypatch: pytest.MonkeyPatch) -> tuple[Ranks, Ranks]:
    """Two ranks, of which each has a machine of its own, as the first one's lifelines say."""
    store = HashStore()
    monkeypatch.setattr(messages, "open_store", lambda *_: store)
    line = Lifelines(far_place(0))
    line.peers[1] = Peer("node2", 1, 0)
    return Ranks(far_place(0), line=line), Ranks(far_place(1))


def test_ranks_are_named_with_their_machines(monkeypatch):
    first, other = far(monkeypatch)
    here = socket.gethostname()
    assert (first.title(1), other.title(1)) == ("rank 1 (node2)", f"rank 1 ({here})")
    first.device = other.device = "cuda:0"
    assert first.title(0) == f"rank 0 (cuda:0 on {here})"
    assert first.title(1) == "rank 1 (cuda:0 on node2)" and first.leaders == [1]
    assert isinstance(first._line, Lifelines)
    first._line.ended = 1, "its process was ended"
    assert str(first.failure()) == "rank 1 (cuda:0 on node2): its process was ended"
    assert first._line.is_told
    # What it said itself counts more.
    monkeypatch.setattr(messages, "_ALIKE", 0.0)
    monkeypatch.setattr(socket, "gethostname", lambda: "node2")
    _ = first._store
    other.fail(CheckpointError("/m: shard 2 is missing"))
    failure = first.failure()
    assert isinstance(failure, CheckpointError)
    assert str(failure) == "rank 1 (cuda:0 on node2): /m: shard 2 is missing"
    first._line.end(at_once=True)


def test_one_gpu_of_two_ranks_is_refused(monkeypatch):
    first, other = far(monkeypatch)
    monkeypatch.setattr(messages, "gpu_of", lambda _: "GPU-1")
    first.device = other.device = "cuda:0"
    other.agree(facts("a"))
    with pytest.raises(UsageError, match=r"and rank 1 \(cuda:0 on node2\) have the same GPU"):
        first.agree(facts("a"))
    assert isinstance(first._line, Lifelines)
    first._line.end(at_once=True)
