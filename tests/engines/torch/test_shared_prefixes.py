"""Requests that share their beginnings in all the ways that a run can go: the same bits by any number
of ranks, from any pass on, drawn again, and against a base."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from engines.torch.ranks.joined import join, together
from support.engine import make_engine, score
from support.models import VOCAB, make_checkpoint
from support.records import of_sections
from support.request_plans import shared_plan

from scoremode.engines.base import Extras, Schedule, Work
from scoremode.engines.torch.engine import ModelReference, TorchEngine
from scoremode.engines.torch.ranks.engine import DataParallelEngine, deal
from scoremode.engines.torch.ranks.messages import Ranks, ScorePasses
from scoremode.reference.replay import _of_conversations
from scoremode.results.scores import Scores, concatenate
from scoremode.runs.rescore.rescore import drawn_windows, micro_batches
from scoremode.runs.shards import batches_sha256

PLAN = shared_plan(VOCAB, questions=12)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(scope="module")
def engines(llama) -> list[TorchEngine]:
    return [make_engine(llama, dtype="float32") for _ in range(2)]


@pytest.fixture(scope="module")
def schedule(engines) -> Schedule:
    """Several passes of several micro-batches of several rows, as read from a record."""
    own = replace(engines[0].schedule(PLAN), row_tokens=40, batch_tokens=90, pass_tokens=200)
    found = Schedule(**own.to_json())
    assert found == own and len(own.passes(PLAN)) > 2
    return own


@pytest.fixture(scope="module")
def whole(engines, schedule) -> Scores:
    return score(engines[0], PLAN, schedule)


def equal(a: Scores, b: Scores) -> bool:
    mine, theirs = a.columns(), b.columns()
    return all(np.array_equal(mine[name], theirs[name]) for name in mine)


def test_a_run_that_goes_on_scores_the_same_bits(llama, schedule, whole):
    """By an engine of its own, whose first pass is a later one."""
    engine = make_engine(llama, dtype="float32")
    for first in (1, 2):
        rest = concatenate(list(engine.score(PLAN, schedule, first)))
        begin = int(PLAN.offsets[schedule.passes(PLAN)[first].start])
        assert rest.logprob.tolist() == whole.logprob[begin:].tolist()


def test_passes_of_any_length_have_the_same_bits(engines, schedule, whole):
    for tokens in (1, 500, 10_000):
        longer = replace(schedule, pass_tokens=tokens)
        assert batches_sha256(longer, PLAN) == batches_sha256(schedule, PLAN)
        assert equal(score(engines[0], PLAN, longer), whole)
    # Rows of another length are other micro-batches.
    other = replace(schedule, row_tokens=41)
    assert batches_sha256(other, PLAN) != batches_sha256(schedule, PLAN)


def test_two_ranks_score_the_same_bits(engines, schedule, whole):
    def work(ranks: Ranks) -> Scores | None:
        engine = DataParallelEngine(engines[ranks.place.rank], ranks)
        if ranks.is_first:
            found = concatenate(list(engine.score(PLAN, schedule)))
            ranks.end()
            return found
        while isinstance(command := ranks.command(), ScorePasses):
            assert not list(engine.score(PLAN, command.schedule, command.first_pass))
        return None

    found, nothing = together(work, join(2))
    assert nothing is None and isinstance(found, Scores) and equal(found, whole)
    longer = DataParallelEngine(engines[0], join(2)[0]).schedule(PLAN)
    own = engines[0].schedule(PLAN)
    assert longer.pass_tokens == 2 * (own.pass_tokens or 0) and longer.row_tokens == own.row_tokens


def test_what_is_shared_is_dealt_as_work_once():
    schedule = Schedule(10_000, 9999, pass_tokens=10_000, batch_tokens=90, row_tokens=40)
    work = Work(PLAN, schedule, 0, range(len(PLAN)))
    shares = [sum(share.sizes) for share in deal(work, 3)]
    assert max(shares) - min(shares) <= 2 * 90 and sum(shares) == sum(work.sizes)


def test_drawn_micro_batches_score_the_same_bits(llama, schedule, whole):
    """As `check --against` has them."""
    engine = make_engine(llama, dtype="float32")
    record = of_sections(schedule=schedule.to_json(), schedule_change=None)
    batches = micro_batches(record, PLAN)
    parts = drawn_windows(PLAN, batches, 0.6, 1, None, schedule.row_tokens)
    assert sum(len(part.windows) for part in parts) > len(PLAN) / 2
    for part in parts:
        again = part.schedule(engine.schedule(part.plan).pass_windows)
        found = score(engine, part.plan, again)
        rows = np.isin(whole.window, part.windows)
        assert found.logprob.tolist() == whole.logprob[rows].tolist()


def test_halved_micro_batches_fit_and_score_alike(engines, schedule, whole):
    halved = schedule.halved()
    assert halved.passes(PLAN) == schedule.passes(PLAN)
    found = score(engines[0], PLAN, halved)
    np.testing.assert_allclose(found.logprob, whole.logprob, rtol=0, atol=2e-5)


def test_a_reference_is_replayed_in_the_micro_batches_of_the_run(schedule):
    first = Work.passes(PLAN, schedule)[0]
    rows = first.spans[-1][1]
    record = of_sections(schedule=schedule.to_json(), schedule_change=None)
    record.kept = SimpleNamespace(states=SimpleNamespace(files=[SimpleNamespace(rows=rows)]))
    assert list(_of_conversations(record, PLAN)) == first.spans


@pytest.mark.parametrize("base", ["llama", "qwen2", "bloom"])
def test_a_base_beside_it_is_what_it_is_alone(base, llama, schedule, whole, tmp_path):
    """One whose windows may not share goes through them apart: BLOOM's positions are places."""
    folder = llama if base == "llama" else make_checkpoint(tmp_path / "base", base)
    engines = [make_engine(model, dtype="float32") for model in (folder, llama)]
    alone = score(make_engine(folder, dtype="float32", batch_windows=1), PLAN)
    done: list[float] = []
    reference = ModelReference(engines[0], PLAN, schedule, done.append)
    found = concatenate(list(engines[1].score(PLAN, schedule, extras=Extras(reference))))
    assert found.logprob.tolist() == whole.logprob.tolist()
    assert found.against is not None and sum(done) == pytest.approx(PLAN.lengths.sum())
    np.testing.assert_allclose(found.against.base_logprob, alone.logprob, rtol=0, atol=2e-5)
    said = engines[0].describe()["prefixes"]
    assert said.startswith("apart: its layer 0" if base == "bloom" else "shared in rows of 40")
    if base == "llama":
        assert not found.against.kld.any()


def test_a_base_that_fills_nothing_up_is_what_it_is_alone(tmp_path):
    """Beside a model that does: its rotations would be those of the longest window of a micro-batch."""

    def longer(settings):
        factors = {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
        rope = {"rope_type": "longrope", "rope_theta": 1e4, **factors}
        rope["original_max_position_embeddings"] = 18
        settings |= {"rope_parameters": rope, "original_max_position_embeddings": 18}

    bloom = make_checkpoint(tmp_path / "model", "bloom")
    phi3 = make_checkpoint(tmp_path / "base", "phi3", change=longer)
    model, base = (make_engine(folder, dtype="float32") for folder in (bloom, phi3))
    schedule = model.schedule(PLAN)
    assert schedule.row_tokens is None and schedule.pads
    done: list[float] = []
    extras = Extras(ModelReference(base, PLAN, schedule, done.append))
    found = concatenate(list(model.score(PLAN, schedule, extras=extras)))
    alone = score(make_engine(phi3, dtype="float32", batch_windows=1), PLAN)
    assert found.against is not None and sum(done) == pytest.approx(PLAN.lengths.sum())
    np.testing.assert_allclose(found.against.base_logprob, alone.logprob, rtol=0, atol=2e-5)


def test_a_pass_that_was_made_for_more_memory_is_cut(llama, schedule, whole):
    small = make_engine(llama, dtype="float32", max_memory=400_000)
    (work,) = Work.passes(PLAN, replace(schedule, pass_tokens=10_000))
    parts = small._affordable(work)
    assert len(parts) > 1
    assert [b for part in parts for b in part.batches] == work.batches
    # A row's masks count: without them more of it would fit.
    masked = small._memory_of(schedule, work.longest)
    assert masked.pass_token > small.parts.memory.pass_token
    assert equal(concatenate([small.launch(work).scores()]), whole)
    assert small.held_bytes(PLAN) == 0


def test_bf16_scores_of_shared_windows_are_near_those_apart(llama):
    engine = make_engine(llama, dtype="bfloat16")
    found = score(engine, PLAN)
    apart = score(engine, PLAN, engine._apart(PLAN))
    error = found.logprob - apart.logprob
    # None on a CPU without bfloat16 instructions, whose products of rows are each their own.
    assert np.sqrt(np.mean(error**2)) < 0.1
