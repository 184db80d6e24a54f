"""Connections of ranks: a socket that listens for them, and one by which lines come.

A system answers for its processes, whatever they do; the other one is asked to find out within 20
seconds where it answers no more.
"""

import errno
import json
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from scoremode.engines.torch.ranks.places import Place
from scoremode.errors import EngineError

__all__ = ["UNANSWERED", "Connection", "Peer", "listener"]

# Seconds for an answer, of which none may come.
UNANSWERED = 20
# Seconds of silence until the systems ask, between their questions, and how many of those.
_IDLE, _INTERVAL, _PROBES = 4, 2, 8
# Seconds for the first line of the other side, whose process may be at other work.
_FIRST = 60
# Bytes of a line.
_LONGEST = 1000
_SILENT = "its machine does not answer: it is down, or the network between is"


def listener(place: Place, port: int = 0) -> socket.socket:
    """A socket that listens where all ranks of `place` can reach it; on one machine, no other machine.

    `port`: 0 for one that the system chooses. Raises EngineError.
    """
    try:
        if not place.spans_nodes:
            return socket.create_server(("127.0.0.1", port), backlog=place.size)
        if socket.has_dualstack_ipv6():
            address = ("::", port)
            return socket.create_server(
                address, family=socket.AF_INET6, backlog=place.size, dualstack_ipv6=True
            )
        return socket.create_server(("", port), backlog=place.size)
    except OSError as error:
        taken = "; MASTER_PORT=… names another" if error.errno == errno.EADDRINUSE else ""
        raise EngineError(
            f"{place.launcher}: cannot listen on port {port}: {error.strerror}{taken}"
        ) from None


@dataclass(frozen=True)
class Peer:
    """What a rank says of itself when it connects: its machine's name, and its place there."""

    host: str
    node: int
    local: int


class Connection:
    """A socket by which lines come; `rank`: who has said so at its other end.

    - `ending`: what happened, when nothing comes any more.
    """

    def __init__(self, connected: socket.socket):
        self._socket, self._buffer = connected, b""
        self.rank: int | None = None
        self.ending = "its process was ended, as a system out of memory does"
        self._socket.settimeout(_FIRST)
        _keep_alive(connected)

    def fileno(self) -> int:
        return self._socket.fileno()

    def say(self, line: bytes) -> None:
        """Sends a line. One that doesn't arrive is no matter: its reader is gone."""
        with suppress(OSError):
            self._socket.sendall(line)

    def receive(self) -> bool:
        """Waits for bytes; returns False where none will come any more, or too many of a line."""
        while True:
            try:
                data = self._socket.recv(_LONGEST)
                break
            except TimeoutError as error:
                if error.errno == errno.ETIMEDOUT:
                    self.ending = _SILENT
                    return False
            except OSError as error:
                if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
                    self.ending = _SILENT
                return False
        self._buffer += data
        return bool(data) and len(self._buffer) <= _LONGEST

    def first(self) -> dict[str, Any] | None:
        """The JSON object that comes first; None for what is none. Raises OSError where none comes."""
        while b"\n" not in self._buffer:
            data = self._socket.recv(_LONGEST)
            if not data or len(self._buffer) > _LONGEST:
                # It may listen, and have ended since.
                raise ConnectionResetError(errno.ECONNRESET, "Connection closed")
            self._buffer += data
        try:
            said = json.loads(self.line() or b"")
        except ValueError:
            return None
        return said if isinstance(said, dict) else None

    def line(self) -> bytes | None:
        """The next whole line that has come."""
        line, end, rest = self._buffer.partition(b"\n")
        if not end:
            return None
        self._buffer = rest
        return line

    def close(self) -> None:
        self._socket.close()


def _keep_alive(connected: socket.socket) -> None:
    """Has the system notice within 20 seconds that nobody answers any more."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # By the names that Linux and macOS have for them.
    for name, value in {
        "TCP_KEEPIDLE": _IDLE,
        "TCP_KEEPALIVE": _IDLE,
        "TCP_KEEPINTVL": _INTERVAL,
        "TCP_KEEPCNT": _PROBES,
        # Milliseconds.
        "TCP_USER_TIMEOUT": 1000 * UNANSWERED,
    }.items():
        if (option := getattr(socket, name, None)) is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
