"""A device with too little memory in the middle of a run: half the micro-batch, once, and recorded."""

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.engine import make_engine

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.base import OutOfMemory, Schedule
from scoremode.engines.torch.engine import TorchEngine
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.torch.passes.microbatch import PendingScores
from scoremode.errors import EngineError
from scoremode.reference import writer as keeper
from scoremode.reference.writer import Keeper
from scoremode.results.folders.store import find_runs, read_scores
from scoremode.results.scores import concatenate
from scoremode.runs.measure import measure
from scoremode.runs.planning import plan_text
from scoremode.runs.request import Request
from scoremode.runs.run import run_plan
from scoremode.text.corpus import from_string
from scoremode.text.corpus_plan import PlannedText
from scoremode.text.protocol import preset

PASS, BATCH = 8, 4
WORDS = "CUDA out of memory.\nTried to  allocate 2.00 GiB."
LINE = "CUDA out of memory. Tried to allocate 2.00 GiB."


class Small:
    """The real engine on a device where a pass takes more than `room` windows' micro-batches hold.

    `fails`: whether a pass of a schedule does not fit.
    """

    def __init__(
        self, engine: TorchEngine, fails: Callable[[int, Schedule], bool], sized: Schedule
    ):
        self._engine, self._fails, self._sized = engine, fails, sized
        self.vocabulary = engine.vocabulary
        self.identity, self.describe = engine.identity, engine.describe
        self.close, self.head_tensors = engine.close, engine.head_tensors
        self.begun: list[tuple[int, Schedule]] = []

    def schedule(self, plan):
        return self._sized

    def score(self, plan, schedule, first_pass=0, progress=None, extras=None):
        self.begun.append((first_pass, schedule))
        parts = self._engine.score(plan, schedule, first_pass, progress, extras)
        for number in range(first_pass, len(schedule.passes(plan))):
            if self._fails(number, schedule):
                raise OutOfMemory(LINE)
            yield next(parts)


@pytest.fixture
def request_(demo, tmp_path) -> Request:
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:9000]
    return Request(
        model=str(demo / "model"),
        corpus=from_string(text),
        protocol=preset("disjoint").override(context_length=64),
        options=TorchOptions(device="cpu", dtype="float32"),
        output=tmp_path / "runs",
    )


@pytest.fixture(scope="module")
def engine(demo) -> Iterator[TorchEngine]:
    engine = make_engine(demo / "model", dtype="float32")
    yield engine
    engine.close()


def planned(request: Request) -> PlannedText:
    return plan_text(request.corpus, request.protocol, model=request.model)


def run(request, engine, fails, sized=Schedule(PASS, BATCH), **more):  # noqa: B008  frozen
    small = Small(engine, fails, sized)
    checkpoint = open_checkpoint(request.model)
    return run_plan(request, checkpoint, planned(request), lambda *_: small, **more), small


def logprobs(engine, plan, schedule) -> np.ndarray:
    return concatenate(list(engine.score(plan, schedule))).logprob


@pytest.mark.parametrize("k", [0, 1, 3])
def test_a_run_goes_on_from_the_last_finished_pass_with_half_the_micro_batch(k, request_, engine):
    lines, moved, totals = [], [], set()

    def progress(tokens, total):
        moved.append(tokens)
        totals.add(total)

    result, small = run(
        request_,
        engine,
        lambda number, schedule: number == k and schedule.batch_windows > 2,
        notify=lines.append,
        progress=progress,
    )
    record, plan = result.record.document, planned(request_).plan
    passes = Schedule(PASS, BATCH).passes(plan)
    assert len(passes) > 4
    assert small.begun == [(0, Schedule(PASS, BATCH)), (k, Schedule(PASS, BATCH // 2))]
    assert record["status"] == "done"
    assert record["schedule"] == {"pass_windows": PASS, "batch_windows": BATCH // 2}
    assert record["schedule_change"] == {
        "after_passes": k,
        "batch_windows_before": BATCH,
        "reason": LINE,
    }
    (line,) = (x for x in lines if "memory" in x)
    assert (
        line == f"out of memory with 4 windows a micro-batch: going on from pass {k} with 2 windows"
    )
    # Every target once, those before the change in the first schedule, the others in the second.
    scores = read_scores(result.folder)
    assert len(scores) == plan.scored
    before, after = (logprobs(engine, plan, Schedule(PASS, b)) for b in (BATCH, BATCH // 2))
    cut = int(plan.offsets[passes[k].start])
    assert np.array_equal(scores.logprob[:cut], before[:cut])
    assert np.array_equal(scores.logprob[cut:], after[cut:])
    # The bar ends at its end.
    assert sum(moved) == pytest.approx(totals.pop()) and not totals


def test_a_run_with_room_says_nothing_of_a_change(request_, engine):
    result, small = run(request_, engine, lambda *_: False)
    assert "schedule_change" not in result.record.document and len(small.begun) == 1


def twice(number, schedule):
    """Pass 1 in the first schedule, pass 3 in any."""
    return (number == 1 and schedule.batch_windows == BATCH) or number == 3


def test_a_second_time_is_one_error_and_the_run_can_be_resumed(request_, engine):
    with pytest.raises(OutOfMemory) as error:
        run(request_, engine, twice)
    assert str(error.value) == LINE and error.value.exit_code == 1
    ((folder, record),) = find_runs(request_.output)
    assert record["status"] == "running" and record["schedule"]["batch_windows"] == 2
    assert record["schedule_change"]["after_passes"] == 1
    assert len(list((folder / "parts").iterdir())) == 3

    resumed, small = run(replace(request_, resume=True), engine, lambda *_: False)
    assert small.begun == [(3, Schedule(PASS, 2))]
    assert resumed.folder == folder and resumed.record.document["status"] == "done"
    assert resumed.record.document["schedule_change"] == record["schedule_change"]
    whole, _ = run(
        request_, engine, lambda number, schedule: number == 1 and schedule.batch_windows == BATCH
    )
    a, b = (r.folder / "scores.parquet" for r in (whole, resumed))
    assert a.read_bytes() == b.read_bytes()
    assert resumed.record.document["metrics"] == whole.record.document["metrics"]


def test_a_resumed_run_that_has_changed_once_does_not_change_again(request_, engine):
    with pytest.raises(OutOfMemory):
        run(request_, engine, twice)
    with pytest.raises(OutOfMemory):
        run(replace(request_, resume=True), engine, twice)
    ((_, record),) = find_runs(request_.output)
    assert record["schedule"] == {"pass_windows": PASS, "batch_windows": 2}


def test_one_window_can_not_be_halved(request_, engine):
    lines = []
    with pytest.raises(OutOfMemory):
        run(request_, engine, lambda n, _: n == 2, sized=Schedule(4, 1), notify=lines.append)
    ((_, record),) = find_runs(request_.output)
    assert record["schedule"] == {"pass_windows": 4, "batch_windows": 1}
    assert "schedule_change" not in record and not any("memory" in line for line in lines)


def test_a_run_without_a_finished_pass_leaves_nothing(request_, engine):
    with pytest.raises(OutOfMemory):
        run(request_, engine, lambda *_: True)
    assert list(request_.output.iterdir()) == []


def test_an_odd_micro_batch_is_rounded_down_and_scores_stay_complete(request_, engine):
    result, small = run(
        request_, engine, lambda n, s: s.batch_windows == 5 and n == 1, sized=Schedule(10, 5)
    )
    assert small.begun[1] == (1, Schedule(10, 2))
    assert len(read_scores(result.folder)) == planned(request_).plan.scored


def test_kept_states_are_whole_after_a_change(request_, engine, tmp_path, monkeypatch):
    """Those of the failed pass may be being written already: they are written again, after that."""
    writing: list[Path] = []
    fill, check_parts = keeper.fill_states, Keeper.check_parts

    def fill_slowly(path, *more):
        writing.append(path)
        time.sleep(0.2)
        digest = fill(path, *more)
        writing.remove(path)
        return digest

    def check_nothing_is_written(self, passes):
        assert not writing
        check_parts(self, passes)

    monkeypatch.setattr(keeper, "fill_states", fill_slowly)
    monkeypatch.setattr(Keeper, "check_parts", check_nothing_is_written)

    class Late(Small):
        def score(self, plan, schedule, first_pass=0, progress=None, extras=None):
            parts = self._engine.score(plan, schedule, first_pass, progress, extras)
            for number, part in enumerate(parts, first_pass):
                if number == 1 and schedule.batch_windows == BATCH:
                    raise OutOfMemory(LINE)
                yield part

    kept = tmp_path / "reference"
    request = replace(request_, output=kept, keep="stored")
    late = Late(engine, lambda *_: False, Schedule(PASS, BATCH))
    result = run_plan(request, open_checkpoint(request.model), planned(request), lambda *_: late)
    # The pass before the failed one, whose states were being written, is not lost.
    assert result.record.document["schedule_change"]["after_passes"] == 1
    compared = measure(replace(request_, reference=str(kept)))
    assert compared.record.document["metrics"]["kld"]["value"] < 1e-9
    assert compared.record.document["metrics"]["ppl_ratio"]["value"] == pytest.approx(1, abs=1e-6)


def test_what_the_failed_pass_held_is_free_when_the_run_goes_on(request_, demo, monkeypatch):
    """An error's frames hold the pass's hidden states: half a micro-batch beside them may not fit."""
    failed: list[weakref.ref] = []
    alive: list[bool] = []
    launch = TorchEngine._launch

    def fail(self, work):
        if work.number == 1 and work.schedule.batch_windows == BATCH:
            states = torch.zeros(1000)
            failed.append(weakref.ref(states))
            raise torch.cuda.OutOfMemoryError(WORDS)
        if failed:
            alive.append(failed[0]() is not None)
        return launch(self, work)

    monkeypatch.setattr(TorchEngine, "_launch", fail)
    monkeypatch.setattr(TorchEngine, "schedule", lambda *_: Schedule(PASS, BATCH))
    # It is let go by counting references, not whenever a collection comes.
    gc.disable()
    try:
        record = measure(request_).record.document
    finally:
        gc.enable()
    assert record["schedule_change"]["reason"] == LINE
    assert alive and not any(alive)


def failing_at(monkeypatch, k: int) -> None:
    final_states = TorchEngine.final_states

    def fail(self, work):
        if work.windows.start == k * work.schedule.pass_windows:
            raise torch.cuda.OutOfMemoryError(WORDS)
        return final_states(self, work)

    monkeypatch.setattr(TorchEngine, "final_states", fail)


@pytest.mark.parametrize("is_queued", [False, True])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_the_engine_gives_all_passes_before_and_then_ours(
    k, is_queued, request_, engine, monkeypatch
):
    """Also where a pass is queued while the one before waits to be fetched, as on a GPU."""
    plan, schedule = planned(request_).plan, Schedule(PASS, BATCH)
    whole = list(engine.score(plan, schedule))
    failing_at(monkeypatch, k)
    if is_queued:
        monkeypatch.setattr(engine, "device", Queued(engine.device))
    parts = []
    with pytest.raises(OutOfMemory) as error:
        for part in engine.score(plan, schedule):
            parts.append(part)
    assert str(error.value) == LINE and isinstance(error.value, EngineError)
    assert error.value.__context__ is None
    assert len(parts) == k
    for a, b in zip(whole[:k], parts, strict=True):
        # The head has a micro-batch at a time where passes are queued.
        assert np.array_equal(a.target, b.target)
        assert np.abs(a.logprob - b.logprob).max() < (1e-5 if is_queued else 1e-30)


class Queued:
    """A CPU that is taken for a GPU where passes are queued, and nowhere else."""

    def __init__(self, device):
        self.torch, self.is_cuda = device.torch, True


def test_a_queued_pass_is_fetched_when_the_next_one_is(request_, engine, monkeypatch):
    """All in order and once, and one pass ahead: the device has work while scores are written."""
    plan, schedule = planned(request_).plan, Schedule(PASS, BATCH)
    whole = list(engine.score(plan, schedule))
    order: list[str] = []
    launch, scores = TorchEngine._launch, PendingScores.scores
    monkeypatch.setattr(
        TorchEngine,
        "_launch",
        lambda s, work: order.append("launch") or launch(s, work),
    )
    monkeypatch.setattr(PendingScores, "scores", lambda s: order.append("fetch") or scores(s))
    monkeypatch.setattr(engine, "device", Queued(engine.device))
    parts = list(engine.score(plan, schedule, 1))
    count = len(whole) - 1
    assert len(parts) == count > 2
    assert order == ["launch", *["launch", "fetch"] * (count - 1), "fetch"]
    for a, b in zip(whole[1:], parts, strict=True):
        assert np.array_equal(a.target, b.target)
        assert np.abs(a.logprob - b.logprob).max() < 1e-5


@pytest.mark.parametrize("where", ["place", "build_head"])
@pytest.mark.parametrize(("reason", "line"), [(WORDS, LINE), ("word " * 500, None)])
def test_loading_without_room_is_one_clear_error(where, reason, line, demo, monkeypatch):
    """A long reason is cut."""

    def fail(*_, **__):
        raise torch.cuda.OutOfMemoryError(reason)

    monkeypatch.setattr(f"scoremode.engines.torch.builder.{where}", fail)
    with pytest.raises(OutOfMemory) as error:
        make_engine(demo / "model")
    assert str(error.value) == line if line else len(str(error.value)) == 200


def test_an_engine_scores_after_it_was_out_of_memory_within_a_layer(demo, monkeypatch):
    """Slot, feeder and masks are fit for use whatever the place where it broke off."""
    engine = make_engine(Path(demo / "model"), dtype="float32")
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:3000]
    plan = plan_text(
        from_string(text),
        preset("disjoint").override(context_length=64),
        model=str(demo / "model"),
    ).plan
    schedule = Schedule(PASS, 2)
    whole = concatenate(list(make_engine(demo / "model", dtype="float32").score(plan, schedule)))
    layer = engine.parts.skeleton.layers[1]
    forward = layer.forward

    def fail(*_, **__):
        raise torch.cuda.OutOfMemoryError(WORDS)

    layer.forward = fail
    with pytest.raises(OutOfMemory):
        list(engine.score(plan, Schedule(PASS, BATCH)))
    layer.forward = forward
    again = concatenate(list(engine.score(plan, schedule)))
    assert np.array_equal(whole.logprob, again.logprob)
