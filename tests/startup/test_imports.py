"""Imports beside: their order, their errors, and that nothing of them is left."""

import threading

import pytest

from scoremode.startup.warmup import Importing


def test_imports_happen_in_the_order_asked_for_and_wait_ends_after_the_last():
    done: list[int] = []
    ours, held = Importing(), threading.Event()
    ours.ask(held.wait, lambda: done.append(1))
    ours.ask(lambda: done.append(2))
    assert done == []
    held.set()
    ours.wait()
    assert done == [1, 2]


def test_what_is_asked_for_after_the_end_is_imported_too():
    done: list[int] = []
    ours = Importing()
    ours.ask(lambda: done.append(1))
    ours.wait()
    ours.ask(lambda: done.append(2))
    ours.wait()
    assert done == [1, 2]


def test_an_error_surfaces_once_and_as_itself_and_nothing_after_it_is_tried():
    done: list[int] = []
    ours = Importing()
    ours.modules("scoremode.no_such_module")
    ours.ask(lambda: done.append(1))
    with pytest.raises(ModuleNotFoundError, match=r"scoremode\.no_such_module"):
        ours.wait()
    ours.wait()
    assert done == []
    ours.ask(lambda: done.append(2))
    ours.wait()
    assert done == [2]


def test_what_is_asked_for_after_one_failed_is_not_tried_either():
    done: list[int] = []
    ours = Importing()
    ours.modules("scoremode.no_such_module")
    assert ours._thread is not None
    ours._thread.wait()
    ours.ask(lambda: done.append(1))
    with pytest.raises(ModuleNotFoundError):
        ours.wait()
    ours.ask(lambda: done.append(2))
    ours.wait()
    assert done == [2]


def test_settling_lets_the_begun_one_end_forgets_the_others_and_leaves_no_thread():
    done: list[int] = []
    before, begun, held = threading.active_count(), threading.Event(), threading.Event()
    ours = Importing()
    ours.ask(lambda: (begun.set(), held.wait(), done.append(1)), lambda: done.append(2))
    begun.wait()
    threading.Timer(0.05, held.set).start()
    ours.settle()
    assert done == [1]
    assert threading.active_count() <= before + 1  # the timer's may be ending
    ours.wait()


def test_settling_does_not_wait_for_ever_where_the_process_ends_anyway():
    begun, held = threading.Event(), threading.Event()
    ours = Importing()
    ours.patience = 0.05
    ours.ask(lambda: (begun.set(), held.wait()))
    begun.wait()
    stuck = ours._thread
    ours.settle()
    assert stuck is not None and not stuck.is_done
    held.set()
    stuck.wait()
