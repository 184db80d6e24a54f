"""Connections: who can reach what listens, and lines that come in pieces."""

import socket

import pytest
from engines.torch.ranks.far_ranks import far_place
from support.waiting import HANG

from scoremode.engines.torch.ranks.lifeline import Connection, listener
from scoremode.engines.torch.ranks.places import Place
from scoremode.errors import EngineError


def test_on_one_machine_no_other_one_is_listened_to():
    here = Place(0, 2, "srun", local=0, here=2)
    with listener(here) as near, listener(far_place(0)) as far:
        assert near.getsockname()[0] == "127.0.0.1"
        assert far.getsockname()[0] in ("::", "0.0.0.0")
        # By IPv4 as well.
        socket.create_connection(("127.0.0.1", far.getsockname()[1]), timeout=HANG).close()


def test_a_port_in_use_is_named():
    with listener(far_place(0, launcher="srun")) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineError) as error:
            listener(far_place(0, launcher="srun"), port)
    assert str(error.value).startswith(
        f"srun: cannot listen on port {port}: Address already in use"
    )
    assert str(error.value).endswith("; MASTER_PORT=… names another")


def test_lines_come_whole():
    listening = socket.create_server(("127.0.0.1", 0))
    with listening:
        theirs = socket.create_connection(listening.getsockname())
        taken, _ = listening.accept()
        connection = Connection(taken)
        theirs.sendall(b"by")
        assert connection.receive() and connection.line() is None
        theirs.sendall(b"e\nexcused\n")
        assert connection.receive()
        assert (connection.line(), connection.line(), connection.line()) == (
            b"bye",
            b"excused",
            None,
        )
        connection.say(b"over\n")
        assert theirs.recv(100) == b"over\n"
        theirs.close()
        assert not connection.receive()
        connection.close()


def test_a_link_is_asked_after_within_20_seconds():
    with socket.socket() as made:
        Connection(made)
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
            idle = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            interval = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
            assert idle + 8 * interval == 20
