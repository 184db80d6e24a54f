"""A run in two halves: its passes, then all that follows from them, elsewhere and later."""

import threading
from dataclasses import replace

import pytest

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.base import Schedule
from scoremode.engines.torch.engine import TorchEngine, build_engine
from scoremode.errors import InvalidMeasurement, RunFolderError
from scoremode.lib.tasks import Task
from scoremode.reference import writer as keeper
from scoremode.reference.stored import StoredReference
from scoremode.reference.writer import Keeper
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import find_runs, read_record
from scoremode.runs.context import RunContext
from scoremode.runs.measure import measure
from scoremode.runs.planning import plan_text
from scoremode.runs.run import score_plan

# Seconds after which a test that waits for a thread is taken to hang.
HANG = 120


class Described:
    """An engine that is gone when its scores are there, but for what it says of itself."""

    def __init__(self, engine):
        self._engine, self.vocabulary = engine, engine.vocabulary
        self._identity, self.head_tensors = engine.identity(), engine.head_tensors

    def schedule(self, plan):
        return self._engine.schedule(plan)

    def score(self, *args):
        yield from self._engine.score(*args)
        self._described = self._engine.describe()
        self._engine.close()
        self._engine = None

    def identity(self):
        return self._identity

    def describe(self):
        return self._described


def context_of(request_):
    checkpoint = open_checkpoint(request_.model)
    planned = plan_text(request_.corpus, request_.protocol, model=request_.model)
    engine = build_engine(checkpoint, request_.options, planned.vocabulary)
    return RunContext(request_, checkpoint, planned, Described(engine))


def test_what_follows_from_the_scores_needs_no_engine_and_may_run_in_another_thread(request_):
    closed = []
    finish = score_plan(context_of(request_), lambda: closed.append(1))
    ((folder, record),) = find_runs(request_.output)
    assert record["status"] == "running" and record["parts"] and not closed
    result = Task(finish).result()
    assert closed == [1] and result.folder == folder
    alone = measure(replace(request_, output=request_.output.with_name("alone")))
    names = "metrics", "scores", "plan", "distribution"
    assert {n: result.record.document.get(n) for n in names} == {
        n: alone.record.document.get(n) for n in names
    }
    scores = [(r.folder / "scores.parquet").read_bytes() for r in (result, alone)]
    assert scores[0] == scores[1]
    assert load_run(folder)[0].document["status"] == "done"
    assert not (folder / "parts").exists() and not (folder / ".lock").exists()


def test_a_part_that_is_spoiled_in_between_ends_the_run_and_stays_to_be_resumed(request_):
    finish = score_plan(context_of(request_), lambda: None)
    ((folder, _),) = find_runs(request_.output)
    part = sorted((folder / "parts").iterdir())[0]
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    with pytest.raises(Exception, match="sha256"):
        finish()
    assert read_record(folder)["status"] == "running" and not (folder / ".lock").exists()
    part.write_bytes(whole)
    assert measure(replace(request_, resume=True)).folder == folder


def test_a_mean_that_is_not_finite_is_noted_in_the_second_half(request_, monkeypatch):
    finish = score_plan(context_of(request_), lambda: None)

    def wrong(*_):
        raise InvalidMeasurement("its mean is not finite")

    monkeypatch.setattr("scoremode.runs.run.finished_sections", wrong)
    with pytest.raises(InvalidMeasurement):
        finish()
    ((folder, record),) = find_runs(request_.output)
    assert (record["status"], record["reason"]) == ("invalid", "its mean is not finite")
    assert not (folder / "parts").exists() and not (folder / ".lock").exists()


# Windows of a pass of which the plan has one, and of which it has several.
@pytest.fixture(params=[1000, 4], ids=["one pass", "several"])
def of_kept(request, request_, tmp_path, monkeypatch):
    """A request for a reference, whose model scores in passes of so many windows; and the number of
    the last pass."""
    schedule = Schedule(request.param, 2)
    monkeypatch.setattr(TorchEngine, "schedule", lambda *_: schedule)
    plan = plan_text(request_.corpus, request_.protocol, model=request_.model).plan
    wanted = replace(request_, output=tmp_path / "reference", keep="stored")
    return wanted, len(schedule.passes(plan)) - 1


def test_the_last_states_are_written_beside_what_follows_from_the_scores(of_kept, monkeypatch):
    """What comes is what comes of a run that waits for them; a model alone has the same scores."""
    may_write, is_waited_for = threading.Event(), threading.Event()
    own, own_settle = keeper.fill_states, Keeper.settle
    kept, last = of_kept

    def late(path, *more):
        # A temporary name holds the file's own.
        if f"{last:05}." in path.name:
            assert may_write.wait(HANG)
        return own(path, *more)

    def settle(self, number):
        if number == last:
            is_waited_for.set()
        digest = own_settle(self, number)
        assert number != last or may_write.is_set()
        return digest

    monkeypatch.setattr(keeper, "fill_states", late)
    monkeypatch.setattr(Keeper, "settle", settle)
    finish = score_plan(context_of(kept), lambda: None)
    record = read_record(kept.output)
    assert record["status"] == "running" and len(record["parts"]) == last
    finishing = Task(finish)
    assert is_waited_for.wait(HANG) and (kept.output / "scores.parquet").exists()
    assert not finishing.is_done and read_record(kept.output) == record
    may_write.set()
    result = finishing.result()
    assert (
        result.record.document["status"] == "done" and "write" in result.record.document["seconds"]
    )
    StoredReference(kept.output).check_files()
    monkeypatch.setattr(keeper, "fill_states", own)
    again = measure(replace(kept, output=kept.output.with_name("again")))
    assert again.record.document["kept"] == result.record.document["kept"]
    alone = measure(replace(kept, output=kept.output.with_name("alone"), keep=None))
    files = [(r.folder / "scores.parquet").read_bytes() for r in (result, again, alone)]
    assert files[0] == files[1] == files[2]


def test_last_states_that_can_not_be_written_leave_what_can_be_gone_on_with(of_kept, monkeypatch):
    own = keeper.fill_states
    kept, last = of_kept

    def full(path, *more):
        if f"{last:05}." in path.name:
            raise OSError(28, "No space left on device")
        return own(path, *more)

    monkeypatch.setattr(keeper, "fill_states", full)
    with pytest.raises(RunFolderError, match="No space left on device"):
        measure(kept)
    # A run without a finished pass leaves nothing.
    assert kept.output.exists() is (last > 0)
    monkeypatch.setattr(keeper, "fill_states", own)
    if last:
        record = read_record(kept.output)
        assert record["status"] == "running" and len(record["parts"]) == last
        assert (
            not list(kept.output.rglob("*.scoremode-tmp")) and not (kept.output / ".lock").exists()
        )
    resumed = measure(replace(kept, resume=True))
    StoredReference(kept.output).check_files()
    whole = measure(replace(kept, output=kept.output.with_name("whole")))
    assert resumed.record.document["kept"] == whole.record.document["kept"]
    files = [(r.folder / "scores.parquet").read_bytes() for r in (resumed, whole)]
    assert files[0] == files[1]
