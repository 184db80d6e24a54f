"""Lifelines: who ended without a word, and who said one first."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from threading import Thread

import pytest
from engines.torch.ranks.far_ranks import far_place, joined_lines, nobody_ended
from support.waiting import HANG, wait_for

from scoremode.engines.torch.ranks import lifeline
from scoremode.engines.torch.ranks.lifeline import Lifeline, Lifelines, Peer
from scoremode.engines.torch.ranks.places import Place
from scoremode.errors import EngineError


@pytest.fixture(autouse=True)
def ended(monkeypatch) -> Iterator[list[str]]:
    """No thread may end the tests' own process."""
    with nobody_ended() as found:
        monkeypatch.setattr(
            lifeline.signal, "pthread_kill", lambda _, n: found.append(f"signal {n}")
        )
        yield found


def break_off(line: Lifeline) -> None:
    assert line._connection is not None
    line._connection._socket.shutdown(socket.SHUT_RDWR)


def test_an_orderly_end_is_nobodys_failure(ended):
    first, others = joined_lines(3)
    host = socket.gethostname()
    assert first.peers == {1: Peer(host, 1, 0), 2: Peer(host, 2, 0)}
    assert [line.store for line in others] == [("127.0.0.1", 7)] * 2
    others[0].leave()
    break_off(others[0])
    wait_for(lambda: set(first._open) == {2})
    # The second is waited for.
    others[1].leave()
    begin = time.monotonic()
    first.end(at_once=False)
    assert time.monotonic() - begin < 9
    wait_for(lambda: others[1].is_over)
    assert first.ended is None and ended == []


def test_a_rank_that_ends_without_a_word_is_named(ended):
    first, others = joined_lines(3)
    break_off(others[1])
    wait_for(lambda: first.ended)
    assert first.ended == (2, "its process was ended, as a system out of memory does")
    assert str(first.failure()).startswith(
        f"rank 2 ({socket.gethostname()}): its process was ended"
    )
    wait_for(lambda: f"signal {signal.SIGTERM}" in ended)
    first.end(at_once=True)
    # The others hear of it, and leave what is to be said to the first one.
    wait_for(lambda: others[0]._has_failed)


def test_beside_a_launcher_that_ends_all_it_has_time_for_that(ended, monkeypatch):
    monkeypatch.setattr(lifeline, "_EXCUSED", 0.3)
    first = Lifelines(far_place(0))
    line = Lifeline(far_place(0))
    # Another rank of torchrun's on the same machine.
    line._place = Place(1, 2, "torchrun", local=1, here=2, node=0)
    line.join("127.0.0.1", first.port, first.key)
    break_off(line)
    wait_for(lambda: first.lost)
    assert first.ended is None and not [e for e in ended if "signal" in e]
    wait_for(lambda: first.ended)
    assert first.ended == first.lost
    first.end(at_once=True)


def test_a_rank_that_was_told_to_end_is_a_reason_when_nothing_else_happens(monkeypatch):
    monkeypatch.setattr(lifeline, "_EXCUSED", 0.3)
    first, (line,) = joined_lines()
    line.leave(excused=True)
    break_off(line)
    wait_for(lambda: first._excused)
    assert first.ended is None
    wait_for(lambda: first.ended)
    assert first.ended == (1, "its process was told to end")
    first.end(at_once=True)


def test_ranks_that_do_not_come_are_named():
    first = Lifelines(far_place(0, 4), patience=0.2)
    line = Lifeline(far_place(2, 4))
    line.join("127.0.0.1", first.port, first.key)
    wait_for(lambda: first.ended)
    assert first.ended == (None, "torchrun: 2 of 4 ranks have not come in 0 s: rank 1, 3")
    first.end(at_once=True)


def test_without_the_first_rank_the_others_end(ended):
    first, (line,) = joined_lines()
    for connection in list(first._open.values()):
        connection._socket.shutdown(socket.SHUT_RDWR)
    said = f"rank 0 ({socket.gethostname()}): its process was ended, as a system out of memory does"
    wait_for(lambda: said in ended)
    assert not line.is_over
    first.end(at_once=True)


def test_a_first_rank_that_has_failed_says_why_itself(ended):
    first, _ = joined_lines()
    first.end(at_once=True)
    wait_for(lambda: ended == [""])


def test_strangers_are_sent_away_and_change_nothing():
    first, (line,) = joined_lines(2)
    said = {"key": first.key, "rank": 1, "host": "x", "node": 1, "local": 0}
    strange = [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"x" * 5000, b"\xff\n"]
    strange += [json.dumps(said | more).encode() + b"\n" for more in (
        {"rank": 0}, {"rank": 2}, {"rank": True}, {"rank": "1"}, {"node": "x"}, {},
    )]  # fmt: skip
    for words in strange:
        with socket.create_connection(("127.0.0.1", first.port), timeout=HANG) as stranger:
            stranger.sendall(words)
            try:
                assert stranger.recv(100) == b"", words
            except ConnectionResetError:
                # There were more bytes than it wanted to read.
                continue
    assert first.ended is None and list(first.peers) == [1]
    line.leave()
    first.end(at_once=False)


def test_a_rank_of_another_run_hears_that_it_is_wrong():
    first, (line,) = joined_lines()
    with pytest.raises(EngineError, match="is not rank 0 of this run"):
        Lifeline(far_place(1)).join("127.0.0.1", first.port, "another's")
    assert first.ended is None
    line.leave()
    first.end(at_once=False)


def test_another_programs_port_is_no_rank_0():
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = Lifeline(far_place(1, launcher="srun"))
        port = server.getsockname()[1]

        def answer() -> None:
            taken, _ = server.accept()
            with taken:
                taken.recv(1000)
                taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        Thread(target=answer, daemon=True).start()
        with pytest.raises(EngineError, match="is not rank 0 of this run"):
            line.join("127.0.0.1", port, "key")
    with pytest.raises(EngineError, match=rf"no connection to rank 0 at 127.0.0.1 port {port}"):
        line.join("127.0.0.1", port, "key", patience=0.1)


def test_the_thread_ends_a_process_that_is_stuck(ended, monkeypatch):
    monkeypatch.setattr(lifeline, "_STUCK", 0.1)
    first, (line,) = joined_lines()
    break_off(line)
    why = f"rank 1 ({socket.gethostname()}): its process was ended, as a system out of memory does"
    wait_for(lambda: why in ended)
    first.end(at_once=True)


STOPPED = """
import sys, time
from engines.torch.ranks.far_ranks import far_place
from scoremode.engines.torch.ranks.lifeline import Lifeline
line = Lifeline(far_place(1))
line.join("127.0.0.1", int(sys.argv[1]), sys.argv[2])
print("joined", flush=True)
time.sleep(3600)
"""


def test_a_stopped_process_lives_and_a_killed_one_does_not():
    first = Lifelines(far_place(0))
    arguments = [sys.executable, "-c", STOPPED, str(first.port), first.key]
    paths = os.pathsep.join(path for path in sys.path if path)  # the tests' folder among them
    environment = os.environ | {"PYTHONPATH": paths}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline() == "joined\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1)
        assert first.ended is None
        process.kill()
    wait_for(lambda: first.ended)
    assert first.ended is not None and first.ended[0] == 1
    first.end(at_once=True)
