"""An engine that is lent to one run after the other."""

import gc
import weakref

from scoremode.lib import fallback
from scoremode.runs.sweep.model import LentEngine, free_device


class Counting:
    """An engine that counts what it has done since it was made."""

    vocabulary = 12

    def __init__(self):
        self.tokens = 0
        self.is_closed = False

    def score(self, *args):
        self.tokens += 10
        yield args

    def schedule(self, plan):
        return plan

    def head_tensors(self):
        return "head"

    def identity(self):
        return {"engine": "counting"}

    def describe(self):
        return {"tokens": self.tokens, "seconds": {"load": 2.0, "layers": self.tokens / 10}}

    def close(self):
        self.is_closed = True


def test_each_run_has_what_was_done_for_it_and_the_first_the_loading():
    engine = Counting()
    first = LentEngine(engine, is_new=True)
    assert list(first.score("plan", "schedule")) == [("plan", "schedule", 0, None, None)]  # pyright: ignore
    assert first.describe() == {"tokens": 10, "seconds": {"load": 2.0, "layers": 1.0}}
    first.end()
    second = LentEngine(engine, is_new=False)
    list(second.score("plan", "schedule"))  # pyright: ignore[reportArgumentType]
    second.end()
    assert second.describe() == {"tokens": 10, "seconds": {"load": 0.0, "layers": 1.0}}
    assert first.describe()["tokens"] == 10
    assert second.identity() == {"engine": "counting"} and second.vocabulary == 12
    second.close()
    assert not engine.is_closed


def test_one_that_was_given_back_holds_nothing():
    engine = Counting()
    held = weakref.ref(engine)
    lent = LentEngine(engine, is_new=True)
    lent.end()
    lent.end()
    del engine
    gc.collect()
    assert held() is None and lent.describe()["tokens"] == 0


def test_freeing_collects_circles_and_begins_the_account_of_kernels_anew(monkeypatch):
    monkeypatch.setattr(fallback, "_ran", {"norm": "triton"})
    gc.disable()
    try:
        circle = Counting()
        circle.itself = circle  # pyright: ignore[reportAttributeAccessIssue]
        held = weakref.ref(circle)
        del circle
        assert held() is not None
        free_device()
        assert held() is None and fallback.ran() == {}
    finally:
        gc.enable()
