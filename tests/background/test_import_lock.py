"""One thread imports at a time."""

import gc
import threading

from scoremode.background.import_lock import importing
from scoremode.startup.imports import Importing


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
