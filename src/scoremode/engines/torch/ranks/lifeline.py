"""Lifelines: a TCP connection from every other rank to the first one, which lasts as long as both do.

`--devices` watches the processes that it starts. Those of torchrun and srun are nobody's children here,
and may be on other machines; nobody ends the tasks of a srun when one has ended. So a connection that
closes without a word is a process that was ended, at either end of it: its system closes it. Where
the machine or the link is gone nothing arrives at all, and the systems' own probes find that out in 20
seconds. They answer for a process that is stopped or busy, and over a slow link, so that neither is
taken for dead; messages of our own between threads would be.

A word before the end makes it no failure. All is said in lines of ASCII: a JSON object from each side
at first, then `bye` (done), `excused` (told to end, by a signal) from the others, `over` (all is done)
or `failed` (the first rank says why itself) to them. Nothing of torch is imported here.
"""

import errno
import json
import os
import secrets
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from scoremode.engines.torch.ranks.places import Place
from scoremode.errors import EngineError, ScoremodeError, escaped

# Seconds for an answer, of which none may come.
UNANSWERED = 20
# Seconds of silence until the systems ask, between their questions, and how many of those.
_IDLE, _INTERVAL, _PROBES = 4, 2, 8
# Seconds for the first line of the other side, whose process may be at other work.
_FIRST = 60
# Bytes of a line.
_LONGEST = 1000
_SILENT = "its machine does not answer: it is down, or the network between is"
# Seconds until all ranks must have come, from when the first one listens.
PATIENCE = 300.0
# Seconds in which a rank that was told to end is expected to be the end of all, whoever told it.
_EXCUSED = 5.0
# Seconds at the end in which the others may say that they are done.
_GRACE = 10.0
# Seconds until a thread ends a process whose main thread is in something that no signal interrupts.
_STUCK = 10.0
# Seconds for a launcher that ends its ranks when one has failed.
_LAUNCHER = 3.0
_LOOK = 0.05


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
    """A rank's words on itself when it connects: its machine's name, and its place there."""

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
        # The system notices within 20 seconds that nobody answers any more.
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


class Lifelines:
    """The first rank's ends: a thread here sees one that closes, and stops this process's work.

    - `peers`: the ranks that have come, by their numbers.
    - `ended`: the rank for which the run can't go on, None for several, and why, of which SIGTERM tells
      the main thread; None while it can. `lost`: the same of a rank whose launcher also ends this one.
    - `is_told`: set by whoever raises that, or another rank's error.
    - `key`: what a rank must know; `store`: the port of the store, said to those who connect, where
      they have no other way to know it.

    Raises EngineError.
    """

    def __init__(self, place: Place, *, key: str = "", store: int = 0, patience: float = PATIENCE):
        self._place, self._patience = place, patience
        self.key, self._store = key or secrets.token_hex(16), store
        self.server = listener(place, place.port if place.launcher == "srun" else 0)
        self.port: int = self.server.getsockname()[1]
        self.peers: dict[int, Peer] = {}
        self.ended: tuple[int | None, str] | None = None
        self.lost: tuple[int, str] | None = None
        self.is_told = False
        self._open: dict[int, Connection] = {}
        self._done: set[int] = set()
        # When ranks were told to end, or were lost beside a launcher that ends this one for it.
        self._excused: dict[int, float] = {}
        self._since = 0.0
        self._begin = time.monotonic()
        self._is_over = self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="lifelines", daemon=True)
        self._thread.start()

    def failure(self, title: Callable[[int], str] | None = None) -> EngineError | None:
        """The reason why the run can't go on, or is about to be ended; `title` names a rank."""
        ended = self.ended or self.lost
        if ended is None:
            return None
        rank, why = ended
        return EngineError(why if rank is None else f"{(title or self.title)(rank)}: {why}")

    def title(self, rank: int) -> str:
        """The name of a rank before its device is known: with that of its machine, of several."""
        if (peer := self.peers.get(rank)) and self._place.spans_nodes:
            return f"rank {rank} ({peer.host})"
        return f"rank {rank}"

    def end(self, *, at_once: bool) -> None:
        """Ends them, when the others have said that they are done, or after 10 seconds; `at_once`: when
        they have come to hear that the run has failed."""
        self._is_over = self.is_told = True
        deadline = time.monotonic() + _GRACE
        word = b"failed\n" if at_once else b"over\n"
        told: set[int] = set()
        # Who comes late waits for minutes where nobody listens any more.
        awaited = set(range(1, self._place.size)) if self._place.launcher == "srun" else set()
        while time.monotonic() < deadline and self._thread.is_alive():
            for rank in [*self._open]:
                if rank not in told and (connection := self._open.get(rank)):
                    connection.say(word)
                    told.add(rank)
            left = awaited.difference(self.peers) if at_once else awaited.union(self._open)
            if not left - self._done:
                break
            time.sleep(_LOOK)
        self._is_closed = True
        self._thread.join()
        self.server.close()

    def _work(self) -> None:
        with selectors.DefaultSelector() as selector:
            self.server.setblocking(False)
            selector.register(self.server, selectors.EVENT_READ)
            while not self._is_closed:
                for key, _ in selector.select(_LOOK):
                    if key.data is None:
                        with suppress(OSError):
                            taken, _ = self.server.accept()
                            selector.register(taken, selectors.EVENT_READ, Connection(taken))
                    elif not self._read(key.data):
                        selector.unregister(key.fileobj)
                        key.data.close()
                if self.ended is None and not self._is_over and (why := self._reason()):
                    self.ended = why
                    self._stop()
            for key in [*selector.get_map().values()]:
                if key.data is not None:
                    key.data.close()

    def _reason(self) -> tuple[int | None, str] | None:
        """The silent reason why the run can't go on: time that has passed."""
        now = time.monotonic()
        if self.lost is not None and now - self._since > _EXCUSED:
            return self.lost
        for rank, since in self._excused.items():
            if now - since > _EXCUSED:
                return rank, "its process was told to end"
        missing = [str(r) for r in range(1, self._place.size) if r not in self.peers]
        if missing and now - self._begin > self._patience:
            return None, (
                f"{self._place.launcher}: {len(missing)} of {self._place.size} ranks have not come in "
                f"{self._patience:.0f} s: rank {', '.join(missing[:20])}"
            )
        return None

    def _read(self, connection: "Connection") -> bool:
        """Takes what has come by a connection; returns whether it goes on."""
        goes_on = connection.receive()
        while goes_on and (line := connection.line()) is not None:
            if connection.rank is None:
                goes_on = self._welcome(connection, line)
            elif line == b"bye":
                self._done.add(connection.rank)
            elif line == b"excused":
                self._excused[connection.rank] = time.monotonic()
        rank = connection.rank
        if goes_on or rank is None:
            return goes_on
        self._open.pop(rank, None)
        if rank in self._done or rank in self._excused or self._is_over:
            return False
        if self._place.launcher == "torchrun" and self.peers[rank].node == self._place.node:
            # It sends SIGTERM to all of a node; a second one would come in the middle of that.
            self.lost, self._since = self.lost or (rank, connection.ending), time.monotonic()
        else:
            self.ended = rank, connection.ending
            self._stop()
        return False

    def _welcome(self, connection: "Connection", line: bytes) -> bool:
        """Answers the first line of a connection, of which anybody may be the author."""
        try:
            said = json.loads(line)
            rank, known = said["rank"], said["key"] == self.key
            peer = Peer(str(said["host"])[:64], int(said["node"]), int(said["local"]))
        except (ValueError, KeyError, TypeError):
            return False
        if not known:
            # A rank of another run, which has to hear that it is wrong here.
            connection.say(b"{}\n")
            return False
        if type(rank) is not int or not 0 < rank < self._place.size or rank in self.peers:
            return False
        connection.rank, self._open[rank] = rank, connection
        self.peers[rank] = peer
        said = {"key": self.key, "store": self._store, "host": socket.gethostname()}
        connection.say(json.dumps(said).encode() + b"\n")
        return True

    def _stop(self) -> None:
        """Tells the main thread, or ends the process where that is stuck in a library's wait."""

        def end() -> None:
            time.sleep(_STUCK)
            if not self.is_told and (failure := self.failure()):
                _die(str(failure))

        threading.Thread(target=end, daemon=True).start()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


class Lifeline:
    """Another rank's end: when the first rank ends without a word, a thread here ends this process.

    - `is_over`: whether the first rank has said that all is done.
    - `store`: where its store is, once it has been joined, where it is not torchrun's.
    """

    def __init__(self, place: Place):
        self._place = place
        self.is_over = False
        self.store = "", 0
        self._first = "rank 0"
        self._has_failed = self._leaves = False
        self._connection: Connection | None = None

    def join(self, host: str, port: int, key: str, patience: float = PATIENCE) -> None:
        """Connects to the first rank, waiting until it listens. Raises EngineError."""
        place, deadline = self._place, time.monotonic() + patience
        hello = {"key": key, "rank": place.rank, "host": socket.gethostname()}
        hello |= {"node": place.node, "local": place.local}
        connected: socket.socket | None = None
        while True:
            try:
                connected = socket.create_connection((host, port), timeout=10)
                # The store is where this one is, by whatever name.
                address = connected.getpeername()[0]
                connection = Connection(connected)
                connection.say(json.dumps(hello).encode() + b"\n")
                said = connection.first()
                break
            except OSError as error:
                if connected is not None:
                    connected.close()
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"{place.launcher}: no connection to rank 0 at {host} port {port} within "
                        f"{patience:.0f} s: {error.strerror or error}"
                    ) from None
                time.sleep(4 * _LOOK)
        if said is None or said.get("key") != key:
            connection.close()
            raise EngineError(
                f"{place.launcher}: what answers at {host} port {port} is not rank 0 of this run: "
                "MASTER_ADDR and MASTER_PORT say where that is"
            )
        self._connection, self.store = connection, (address, said["store"])
        if place.spans_nodes:
            self._first = f"rank 0 ({said['host']})"
        watch = threading.Thread(
            target=self._watch, args=(connection,), name="lifeline", daemon=True
        )
        watch.start()

    def leave(self, *, excused: bool = False) -> None:
        """Says that this rank ends, and is nobody's reason to."""
        self._leaves = True
        if self._connection is not None:
            self._connection.say(b"excused\n" if excused else b"bye\n")

    def settle(self) -> None:
        """Waits, when the store is lost, for the first rank's own end to be known: it ends this process
        too, unless all is done."""
        deadline = time.monotonic() + UNANSWERED + _STUCK
        while self._connection is not None and not self.is_over and time.monotonic() < deadline:
            time.sleep(_LOOK)

    def _watch(self, connection: "Connection") -> None:
        while connection.receive():
            while (line := connection.line()) is not None:
                self.is_over |= line == b"over"
                self._has_failed |= line == b"failed"
        connection.close()
        if self.is_over or self._leaves:
            return
        if self._has_failed:
            time.sleep(_LAUNCHER)
        # What it has not said itself, one of each machine says.
        is_mine = not self._has_failed and self._place.local == 0
        _die(f"{self._first}: {connection.ending}" if is_mine else "")


def _die(why: str) -> None:
    """Ends this process at once, with a line that says why, if any."""
    if why:
        os.write(2, f"scoremode: error: {escaped(why)}\n".encode(errors="backslashreplace"))
    os._exit(ScoremodeError.exit_code)
