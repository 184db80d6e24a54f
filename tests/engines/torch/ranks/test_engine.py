"""An engine as one of several: how windows are dealt, and that no score depends on it."""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from engines.torch.ranks.joined import join, together
from support.engine import make_engine
from support.models import VOCAB, make_checkpoint, random_plan
from support.uneven_plans import unequal_plan

from scoremode.engines.base import Extras, OutOfMemory, Schedule, Work
from scoremode.engines.torch.engine import TorchEngine
from scoremode.engines.torch.ranks.engine import DataParallelEngine, deal
from scoremode.engines.torch.ranks.messages import Ranks, ScorePasses
from scoremode.errors import RunFolderError
from scoremode.reference.writer import Keeper
from scoremode.results.scores import Scores, concatenate


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
@pytest.mark.parametrize("plan", [random_plan(windows=23), unequal_plan(60, VOCAB)])
def test_any_number_of_ranks_gives_the_same_scores(size, plan, engines):
    alone = engines[0].schedule(plan)
    wanted = concatenate(list(engines[0].score(plan, alone)))
    described = []

    def work(ranks: Ranks) -> Scores | None:
        engine = DataParallelEngine(engines[ranks.place.rank], ranks)
        schedule = engine.schedule(plan)
        longer = {"pass_windows": alone.pass_windows * size}
        if alone.pass_tokens is not None:
            longer["pass_tokens"] = alone.pass_tokens * size
        assert schedule == replace(alone, **longer) and len(alone.passes(plan)) > 1
        if not ranks.is_first:
            follow(engine, ranks, plan)
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


def follow(engine: DataParallelEngine, ranks: Ranks, plan) -> int:
    """Does what the first rank says, until the end; the number of commands."""
    while isinstance(command := ranks.command(), ScorePasses):
        assert not list(engine.score(plan, command.schedule, command.first_pass))
    return ranks.number - 1


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
        engine = DataParallelEngine(cast("TorchEngine", own), ranks)
        if not ranks.is_first:
            return follow(engine, ranks, plan)
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


def test_states_that_another_machine_wrote_and_this_one_does_not_see_are_refused(engines, tmp_path):
    """As on a file system that shows each machine its own writes only."""
    plan, schedule = random_plan(windows=23), Schedule(6, 2)

    def work(ranks: Ranks, loses: bool) -> None:
        ranks.place = replace(ranks.place, here=1, node=ranks.place.rank)
        engine = DataParallelEngine(engines[ranks.place.rank], ranks)
        if not ranks.is_first:
            if loses:
                ranks.check = lambda: next(tmp_path.rglob("*.scoremode-tmp")).write_bytes(content)
            follow(engine, ranks, plan)
            return
        keeper = Keeper(tmp_path, plan, engine.head_tensors(), stored=True)
        try:
            list(engine.score(plan, schedule, extras=Extras(keeper=keeper)))
        finally:
            keeper.stop()
            ranks.abandon(ranks.number)
            ranks.end()

    assert together(lambda ranks: work(ranks, False), join(2)) == [None, None]
    content = (tmp_path / "states" / "00000.safetensors").read_bytes()
    content = content[:-64] + bytes(64)
    error, _ = together(lambda ranks: work(ranks, True), join(2))
    assert isinstance(error, RunFolderError)
    assert "rank 1" in str(error) and "wrote states of sha256" in str(error)


def test_states_of_a_head_with_quantized_inputs_are_float32_for_any_number_of_ranks(tmp_path):
    """In bfloat16 too: a file made for the compute dtype had half the room for them."""
    plan, folder = random_plan(windows=23), make_checkpoint(tmp_path / "model", "llama")
    engines = [make_engine(folder, dtype="bfloat16", batch_windows=2) for _ in range(2)]
    for engine in engines:
        # What such a head's inputs are, whatever their codes.
        engine.parts = replace(engine.parts, head_input=torch.Tensor.float)
    schedule, kept = Schedule(12, 2), {}

    def keep(engine: TorchEngine | DataParallelEngine) -> None:
        (tmp_path / type(engine).__name__).mkdir()
        keeper = Keeper(tmp_path / type(engine).__name__, plan, engine.head_tensors(), stored=True)
        list(engine.score(plan, schedule, extras=Extras(keeper=keeper)))
        for number in range(2):
            keeper.settle(number)
        kept[type(engine)] = keeper.kept(schedule.passes(plan))

    def work(ranks: Ranks) -> None:
        engine = DataParallelEngine(engines[ranks.place.rank], ranks)
        if not ranks.is_first:
            follow(engine, ranks, plan)
            return
        keep(engine)
        ranks.end()

    keep(engines[0])
    assert together(work, join(2)) == [None, None]
    assert kept[DataParallelEngine] == kept[TorchEngine]
    assert kept[TorchEngine]["states"]["dtype"] == "float32"


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
    assert DataParallelEngine(engines[0], first).schedule(plan) == own
