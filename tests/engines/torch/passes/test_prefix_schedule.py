"""Whether requests share what they have in common, and what the record says of it."""

import pytest
from support.engine import make_engine, score
from support.models import VOCAB, make_checkpoint
from support.request_plans import plan_of, shared_plan

from scoremode.engines.torch.model.layer_recorder import NotSeparable
from scoremode.engines.torch.passes import prefix_schedule as module
from scoremode.engines.torch.passes.execution import run_whole
from scoremode.text.task_requests import TokenRequest


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("model"), "llama")


def said(engine, plan) -> str:
    """What the record says when `plan` was scored."""
    schedule = engine.schedule(plan)
    score(engine, plan, schedule)
    words = engine.describe()["prefixes"]
    assert (schedule.row_tokens is None) == words.startswith("apart: ")
    return words


def test_what_is_scored_by_itself_goes_apart(llama):
    assert said(make_engine(llama, batch_windows=1), shared_plan(VOCAB)) == "apart: --batch-size 1"


def test_requests_with_little_in_common_go_apart(llama):
    plan = plan_of([TokenRequest([n, n + 1], [n + 2], n) for n in range(3, 60, 3)])
    assert said(make_engine(llama), plan) == "apart: they have too little in common"


def test_windows_that_may_go_in_chunks_go_apart(llama, monkeypatch):
    monkeypatch.setattr(module, "is_long", lambda length: length > 20)
    assert "tokens may go in chunks" in said(make_engine(llama), shared_plan(VOCAB))


def test_what_spans_a_window_goes_apart(llama):
    engine = make_engine(llama)
    engine.parts.arithmetic.windows.are_spanned = True
    wanted = "apart: a scale, or columns of outliers, span a window"
    assert said(engine, shared_plan(VOCAB)) == wanted


def test_rotations_by_length_go_apart(tmp_path):
    def change(settings):
        settings["rope_parameters"] = {
            "rope_type": "dynamic",
            "factor": 2.0,
            "rope_theta": 10_000.0,
        }

    model = make_checkpoint(tmp_path / "model", "llama", change=change)
    wanted = "apart: its rotations depend on how long a window is"
    assert said(make_engine(model), shared_plan(VOCAB)) == wanted


def test_a_model_that_runs_window_by_window_goes_apart(llama):
    engine = make_engine(llama)
    parts = engine.parts
    reason = NotSeparable("its layers talk")
    engine.way = run_whole(parts.skeleton, parts.layers, parts.arithmetic.windows, reason)
    words = said(engine, shared_plan(VOCAB))
    assert words == "apart: window by window: its layers talk"


def test_a_model_is_tried_once(llama, monkeypatch):
    tried = []
    monkeypatch.setattr(module, "sharing_obstacle", lambda *given, **how: tried.append(1))
    engine = make_engine(llama)
    for seed in range(3):
        engine.schedule(shared_plan(VOCAB, seed=seed))
    assert tried == [1]


def test_a_stored_schedule_decides_how_a_run_goes_on(llama, monkeypatch):
    """Whatever would be chosen now: a score depends on what lies beside it by its last bits."""
    engine, plan = make_engine(llama, dtype="float32"), shared_plan(VOCAB)
    before = engine.schedule(plan)
    wanted = score(engine, plan, before).logprob.tolist()
    monkeypatch.setattr(module, "_LENGTHS", (64,))
    again = make_engine(llama, dtype="float32")
    assert score(again, plan, before).logprob.tolist() == wanted
    assert again.describe()["prefixes"] == "shared in rows of 512 tokens"
    apart = again._apart(plan)
    score(again, plan, apart)
    assert again.describe()["prefixes"] == "apart: as they were scored before"
