"""Calls in threads and their results; the garbage collector off for a while; one import at a time."""

import gc
import threading
import weakref

import pytest

from scoremode.lib.tasks import Task, importing, not_collecting
from scoremode.startup.warmup import Importing


def test_a_result_is_there_when_it_is_asked_for():
    held = threading.Event()
    task = Task(lambda: held.wait() and threading.current_thread())
    task.wait(0.01)
    assert not task.is_done
    held.set()
    assert task.result() is not threading.current_thread()
    assert task.is_done and task.result() is task.result()


def test_an_error_is_raised_where_the_result_is_asked_for_and_not_where_it_is_waited_for():
    def fail() -> None:
        raise KeyboardInterrupt("there")

    task = Task(fail)
    task.wait()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt, match="there"):
            task.result()


def test_what_the_call_held_is_let_go_when_it_is_done():
    class Held:
        def work(self) -> int:
            return 3

    held = Held()
    gone = weakref.ref(held)
    task = Task(held.work)
    del held
    assert task.result() == 3 and gone() is None


@pytest.mark.parametrize("before", [True, False])
def test_it_is_off_within_and_then_as_it_was(before):
    was = gc.isenabled()
    (gc.enable if before else gc.disable)()
    try:
        with pytest.raises(ValueError, match="within"), not_collecting():
            assert not gc.isenabled()
            raise ValueError("within")
        assert gc.isenabled() == before
        assert not_collecting()(gc.isenabled)() is False
        assert gc.isenabled() == before
    finally:
        (gc.enable if was else gc.disable)()


def test_another_thread_that_imports_waits_for_the_one_that_does():
    order: list[str] = []
    begun, held = threading.Event(), threading.Event()
    ours = Importing()
    ours.ask(lambda: (begun.set(), held.wait(), order.append("theirs")))
    begun.wait()
    threading.Timer(0.05, held.set).start()
    with importing():
        order.append("ours")
    assert order == ["theirs", "ours"]
    ours.settle()


def test_an_import_within_an_import_goes_on_and_nothing_is_collected_meanwhile():
    with importing():
        with importing():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
