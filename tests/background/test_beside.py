"""A call in a thread: its result, its error, and what it holds."""

import threading
import weakref

import pytest

from scoremode.background.beside import Beside


def test_a_result_is_there_when_it_is_asked_for():
    held = threading.Event()
    beside = Beside(lambda: held.wait() and threading.current_thread())
    beside.wait(0.01)
    assert not beside.is_done
    held.set()
    assert beside.result() is not threading.current_thread()
    assert beside.is_done and beside.result() is beside.result()


def test_an_error_is_raised_where_the_result_is_asked_for_and_not_where_it_is_waited_for():
    def fail() -> None:
        raise KeyboardInterrupt("there")

    beside = Beside(fail)
    beside.wait()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt, match="there"):
            beside.result()


def test_what_the_call_held_is_let_go_when_it_is_done():
    class Held:
        def work(self) -> int:
            return 3

    held = Held()
    gone = weakref.ref(held)
    beside = Beside(held.work)
    del held
    assert beside.result() == 3 and gone() is None
