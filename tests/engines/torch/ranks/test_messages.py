"""Ranks: how windows are dealt, what they say to each other, and what a failure becomes."""

import io
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from engine_helpers import make_engine
from models import make_checkpoint, random_plan

from scoremode.engines.base import Extras, OutOfMemory, Schedule
from scoremode.engines.torch.engine import TorchEngine
from scoremode.engines.torch.ranks import messages as ranks_module
from scoremode.engines.torch.ranks.engine import RankedEngine, deal
from scoremode.engines.torch.ranks.launch import Place, place_of
from scoremode.engines.torch.ranks.messages import Ranks
from scoremode.engines.work import Work
from scoremode.errors import CheckpointError, EngineError, ScoremodeError, UsageError
from scoremode.reference.keeper import Keeper
from scoremode.results.scores import Scores, concatenate
from scoremode.runs.identity import agree


def join(size: int) -> list[Ranks]:
    """Ranks of this very process, to be used by a thread each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [Ranks(Place(rank, size, port, "key")) for rank in range(size)]


def together(work: Callable[[Ranks], object], ranks: list[Ranks]) -> list[object]:
    """What `work` returns or raises on each rank, in threads of their own."""
    results: list[object] = [None] * len(ranks)

    def run(i: int) -> None:
        try:
            results[i] = work(ranks[i])
        except ScoremodeError as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        # Who waits for a rank that has failed waits for ever.
        assert not thread.is_alive(), results
    return results


@pytest.mark.parametrize("shares", [1, 2, 3, 8])
@pytest.mark.parametrize("windows", [range(0, 1), range(0, 11), range(4, 24)])
def test_shares_are_whole_micro_batches_in_order(windows, shares):
    plan = random_plan(windows=23)
    schedule = Schedule(pass_windows=20, batch_windows=2)
    dealt = deal(Work(plan, schedule, 0, windows), shares)
    assert [w for share in dealt for w in share.windows] == list(windows)
    assert len(dealt) == shares
    batches = [b for share in dealt for b in share.batches]
    assert batches == schedule.batches(plan, windows)
    sizes = [len(share.windows) for share in dealt]
    assert max(sizes) <= 2 * -(-len(batches) // shares)
    assert sizes[0] <= max(sizes[1:], default=sizes[0]) + 1


def test_runs_are_whole_micro_batches_and_not_too_long():
    plan, schedule = random_plan(windows=23), Schedule(20, 3)
    runs = schedule.runs(plan, range(0, 20), 7)
    assert [list(run) for run in runs] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9, 10, 11],
        [12, 13, 14, 15, 16, 17],
        [18, 19],
    ]
    assert [len(run) for run in schedule.runs(plan, range(0, 7), 1)] == [3, 3, 1]


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    folder = make_checkpoint(tmp_path_factory.mktemp("model"), "llama")
    return [make_engine(folder, batch_windows=2, max_memory=100_000) for _ in range(3)]


def columns_equal(a: Scores, b: Scores) -> bool:
    mine, theirs = a.columns(), b.columns()
    return mine.keys() == theirs.keys() and all(
        mine[name].dtype == theirs[name].dtype and np.array_equal(mine[name], theirs[name])
        for name in mine
    )


@pytest.mark.parametrize("size", [2, 3])
def test_any_number_of_ranks_gives_the_same_scores(size, engines):
    plan = random_plan(windows=23)
    alone = engines[0].schedule(plan)
    wanted = concatenate(list(engines[0].score(plan, alone)))
    described = []

    def work(ranks: Ranks) -> Scores | None:
        engine = RankedEngine(engines[ranks.place.rank], ranks)
        schedule = engine.schedule(plan)
        assert schedule == replace(alone, pass_windows=alone.pass_windows * size)
        if not ranks.is_first:
            while (command := ranks.command())["do"] == "score":
                engine.serve(plan, command, Extras())
            return None
        done: list[float] = []
        found = concatenate(list(engine.score(plan, schedule, progress=done.append)))
        assert sum(done) == pytest.approx(plan.lengths.sum())
        # And from a pass on, by a schedule that was made for one.
        rest = list(engine.score(plan, alone, first_pass=1))
        assert columns_equal(concatenate(rest), rows_of_passes(wanted, plan, alone, 1))
        described.append(engine.describe())
        ranks.end()
        return found

    scores, *nothing = together(work, join(size))
    assert nothing == [None] * (size - 1)
    assert isinstance(scores, Scores) and columns_equal(scores, wanted)
    devices = described[0]["devices"]
    assert [d["rank"] for d in devices] == list(range(size))
    assert all(d["tokens"] and d["peak_bytes"] and d["seconds"]["layers"] for d in devices)


def rows_of_passes(scores: Scores, plan, schedule: Schedule, first: int) -> Scores:
    begin = int(plan.offsets[schedule.passes(plan)[first].start])
    return Scores.from_columns({k: v[begin:] for k, v in scores.columns().items()})


class Small:
    """`engine` on a device too small for one pass by micro-batches of two windows."""

    def __init__(self, engine, fails_in: int | None):
        self._engine, self._fails_in = engine, fails_in

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def launch(self, work):
        if work.schedule.batch_windows == 2 and work.number == self._fails_in:
            raise OutOfMemory("CUDA out of memory")
        return self._engine.launch(work)


@pytest.mark.parametrize("keeps", [False, True], ids=["", "kept"])
@pytest.mark.parametrize("small", [0, 1, 2])
def test_a_rank_without_memory_has_all_go_on_with_another_schedule(engines, tmp_path, small, keeps):
    plan, before = random_plan(windows=23), Schedule(6, 2)
    wanted = concatenate(list(engines[0].score(plan, before)))

    def work(ranks: Ranks) -> int | None:
        own = Small(engines[ranks.place.rank], 2 if ranks.place.rank == small else None)
        engine = RankedEngine(cast("TorchEngine", own), ranks)
        if not ranks.is_first:
            served = 0
            while (command := ranks.command())["do"] == "score":
                engine.serve(plan, command, Extras())
                served += 1
            return served
        keeper = None
        if keeps:
            keeper = Keeper(tmp_path, plan, own.head_tensors(), stored=True)
        parts: list[Scores] = []
        said = "CUDA out of memory" if small == 0 else f"^rank {small}: CUDA out of memory"
        with pytest.raises(OutOfMemory, match=said):
            parts.extend(engine.score(plan, before, extras=Extras(keeper=keeper)))
        assert len(parts) == 2
        parts += engine.score(plan, before.halved(), len(parts), extras=Extras(keeper=keeper))
        if keeper is not None:
            keeper.stop()
        assert columns_equal(concatenate(parts), wanted)
        ranks.end()
        return None

    assert together(work, join(3)) == [None, 2, 2]


def test_a_pass_made_for_more_ranks_is_cut_and_scores_the_same(engines):
    plan = random_plan(windows=23)
    alone = engines[0].schedule(plan)
    wide = replace(alone, pass_windows=alone.pass_windows * 8)
    assert len(wide.passes(plan)) < len(alone.passes(plan))
    each = [list(engines[0].score(plan, schedule)) for schedule in (alone, wide)]
    assert columns_equal(*map(concatenate, each))


def test_a_pass_stays_as_it_is_where_a_longer_one_changed_micro_batches(engines):
    """Unequal windows in the middle: a pass ends a micro-batch where a longer one would go on."""
    plan = random_plan(windows=23)
    lengths = plan.lengths.copy()
    lengths[0] -= 1
    object.__setattr__(plan, "lengths", lengths)
    own = engines[0].schedule(plan)
    first, _ = join(2)
    assert RankedEngine(engines[0], first).schedule(plan) == own


def test_large_columns_travel_whole():
    columns = {"a": np.arange(3_000_000, dtype=np.int32), "b": np.zeros(0, np.float64)}

    def work(ranks: Ranks) -> object:
        if not ranks.is_first:
            ranks.leave("x", columns, {"rank": 1})
            return None
        return ranks.take("x")

    taken, _ = together(work, join(2))
    assert isinstance(taken, tuple)
    found, facts = taken
    assert facts == {"rank": 1}
    assert found.keys() == columns.keys()
    assert all(np.array_equal(found[k], columns[k]) for k in columns)


def test_no_value_is_ever_unpickled():
    """Another user of the machine may reach the store's port: what lies there is only data."""

    def work(ranks: Ranks) -> object:
        if not ranks.is_first:
            file = io.BytesIO()
            np.savez(file, facts=np.array([print], dtype=object))
            data = file.getvalue()
            ranks._store.set("x/0", cast("str", data))
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
    monkeypatch.setattr(ranks_module, "_ALIKE", 0.1)

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
            try:
                raise RuntimeError("CUDA error:\n out of luck")
            except RuntimeError as error:
                ranks.fail(error)
            return None
        agree(ranks, facts("a"))
        begin = time.monotonic()
        with pytest.raises(EngineError, match=r"^rank 1: RuntimeError: CUDA error: out of"):
            ranks.take("never")
        assert isinstance(ranks.failure(), EngineError)
        return time.monotonic() - begin

    seconds, _ = together(work, join(2))
    assert isinstance(seconds, float) and seconds < 5


def test_a_process_alone_has_no_place_and_torchrun_gives_one():
    launched = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    assert place_of({}) is None
    assert place_of({"RANK": "1", "WORLD_SIZE": "2"}) is None
    assert place_of(launched) == Place(1, 2)
    assert place_of(launched | {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "RANK": "0"}) is None
    with pytest.raises(UsageError, match="4 ranks, 2 of them on this machine"):
        place_of(launched | {"WORLD_SIZE": "4"})
