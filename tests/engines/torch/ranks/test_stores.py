"""The store: where each rank finds it."""

import socket
from threading import Thread

import pytest
from engines.torch.ranks.far_ranks import far_place, nobody_ended
from torch.distributed import HashStore

from scoremode.engines.torch.ranks import messages
from scoremode.engines.torch.ranks.lifeline import Lifeline, Lifelines, listener
from scoremode.engines.torch.ranks.messages import open_store
from scoremode.errors import EngineError


@pytest.fixture(autouse=True)
def nobody_ends():
    with nobody_ended() as said:
        yield
        assert said == []


def test_under_srun_the_lifelines_say_where_it_is():
    place, other = far_place(0, launcher="srun"), far_place(1, launcher="srun")
    served = listener(place)
    first = Lifelines(place, key=place.key, store=served.getsockname()[1])
    line = Lifeline(other)
    line.join("127.0.0.1", first.port, other.key)
    found = []
    serving = Thread(target=lambda: found.append(open_store(place, served, first)), daemon=True)
    serving.start()
    store = open_store(other, None, line)
    serving.join(30)
    store.set("a", "1")
    assert found[0].get("a") == b"1"
    line.leave()
    first.end(at_once=False)


def test_under_torchrun_it_says_where_the_lifelines_are(monkeypatch):
    shared = HashStore()
    monkeypatch.setattr(messages, "rendezvous", lambda *_, **__: iter([(shared, 0, 2)]))
    place = far_place(0)
    first, line = Lifelines(place), Lifeline(far_place(1))
    open_store(place, None, first)
    open_store(far_place(1), None, line)
    assert list(first.peers) == [1]
    line.leave()
    first.end(at_once=False)


def test_a_first_rank_that_does_not_come_is_missed(monkeypatch):
    monkeypatch.setattr(messages, "rendezvous", lambda *_, **__: iter([(HashStore(), 1, 2)]))
    monkeypatch.setattr(messages, "PATIENCE", 0.1)
    with pytest.raises(EngineError, match="torchrun: rank 0 has not come in 0 s"):
        open_store(far_place(1), None, Lifeline(far_place(1)))


def test_the_others_reach_the_address_that_torchrun_has_where_it_is_this_machines():
    place = far_place(0)
    assert messages._reached(place) == "127.0.0.1"
    elsewhere = messages.Place(0, 2, "torchrun", 0, 1, host="192.0.2.1", port=9)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            own = probe.getsockname()[0]
    except OSError:
        pytest.skip("this machine has no route to anywhere")
    assert messages._reached(elsewhere) == own
