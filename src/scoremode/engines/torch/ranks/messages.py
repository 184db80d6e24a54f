"""Messages between ranks: through torch.distributed's store, and nothing else.

What travels is small (a hundred bytes a scored token), so there is no process group. A collective
blocks in C++ until its peers answer or die, and nobody could interrupt it; a look into the store
returns at once, so that a Ctrl-C, a signal, or another rank's error is seen while waiting. Nor does
anybody wait for the first rank: the others leave their scores and go on. Values are numbers and JSON,
never pickled objects.

How a rank comes to the store:

- `--devices`: the first rank serves it, on this machine only.
- torchrun: the launcher's own; the address of the lifelines is said there.
- srun: the first rank serves it; its port is said on the lifelines, whose own SLURM's variables give.
"""

import io
import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, cast, get_args

import numpy as np
from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)
from torch.distributed.rendezvous import rendezvous

from scoremode import errors
from scoremode.engines.base import Schedule
from scoremode.engines.torch.ranks.lifeline import PATIENCE, Lifeline, Lifelines
from scoremode.engines.torch.ranks.places import (
    Others,
    Place,
    asked_for,
    gpu_of,
    same_gpu,
    take_device,
)
from scoremode.errors import EngineError, ScoremodeError, UsageError, line_of

# Seconds for a connection: the first rank serves it when it has imported torch.
_CONNECT = timedelta(seconds=600)
_LIFELINES = "lifelines"
_CONNECT_LOOK = 0.05
Columns = dict[str, np.ndarray]
# The store takes 8 MiB at a time.
_PIECE = 4 << 20
# Seconds between looks for something that is not there yet, on one machine and over a network.
_LOOK, _FAR_LOOK = 0.002, 0.02
# Seconds in which the first rank may find for itself what another did before they agreed.
_ALIKE = 10.0


def open_store(
    place: Place, served: socket.socket | None, line: Lifelines | Lifeline | None
) -> Store:
    """The store, when it is there.

    - `served`: the socket by which this rank serves it; it goes to the store.
    - `line`: this rank's end of the lifelines; None with `--devices`.

    Raises EngineError, and torch's RuntimeError.
    """
    if place.launcher == "torchrun":
        store = PrefixStore(place.key, next(iter(rendezvous("env://", timeout=_CONNECT)))[0])
        if isinstance(line, Lifelines):
            said = {"host": _reached(place), "port": line.port, "key": line.key}
            store.set(_LIFELINES, json.dumps(said))
        elif isinstance(line, Lifeline):
            deadline = time.monotonic() + PATIENCE
            while not store.check([_LIFELINES]):
                if time.monotonic() > deadline:
                    raise EngineError(f"torchrun: rank 0 has not come in {PATIENCE:.0f} s")
                time.sleep(_CONNECT_LOOK)
            said = json.loads(store.get(_LIFELINES))
            line.join(said["host"], said["port"], said["key"])
        return store
    host, port = place.host, place.port
    if isinstance(line, Lifeline):
        host, port = line.store
    elif served is not None:
        host, port = "127.0.0.1", served.getsockname()[1]
    store = TCPStore(
        host,
        port,
        is_master=place.is_first,
        timeout=_CONNECT,
        wait_for_workers=False,
        master_listen_fd=None if served is None else served.detach(),
    )
    return PrefixStore(place.key, store)


def _reached(place: Place) -> str:
    """The address at which the others reach this machine: torchrun's, which they have reached, where it
    is this one's; else that by which this one reaches it."""
    if not place.spans_nodes:
        return place.host
    found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_DGRAM)
    for family, kind, _, _, (host, *_) in found:
        with socket.socket(family, kind) as probe, suppress(OSError):
            # No other machine's address can be bound to.
            probe.bind((host, 0))
            return place.host
    family, kind, _, _, address = found[0]
    with socket.socket(family, kind) as probe:
        # Sends nothing.
        probe.connect(address)
        return probe.getsockname()[0]


@dataclass(frozen=True)
class ScorePasses:
    """The command to score each pass of a plan's first `windows` windows from `first_pass` on.

    `keeps`: whether the first rank says of each pass which file its final states go to.
    """

    schedule: Schedule
    first_pass: int
    keeps: bool
    windows: int


@dataclass(frozen=True)
class ScoreVariant:
    """The command to make the engine of the noise floor's variant `index`, for the command after it."""

    index: int


@dataclass(frozen=True)
class LookFor:
    """The command to say whether there is a file at `path` with this `content`."""

    path: str
    content: str


@dataclass(frozen=True)
class End:
    """The last command."""


Command = ScorePasses | ScoreVariant | LookFor | End


def json_of(command: Command) -> dict[str, Any]:
    return {"do": type(command).__name__} | asdict(command)


def command_of(said: Mapping[str, Any]) -> Command:
    """The command that `json_of` made this of."""
    fields = dict(said)
    kind = {c.__name__: c for c in get_args(Command)}[fields.pop("do")]
    if kind is ScorePasses:
        fields["schedule"] = Schedule(**fields["schedule"])
    return kind(**fields)


class Ranks:
    """The ranks of a run, seen from one of them.

    - `place`: which one; `others`: the processes that the first one has started, if it did.
    - `line`: this one's end of the lifelines, where a launcher has started all.
    - `served`: the socket by which the first one serves the store, where nobody else does.
    - `current`: the command that is being done, and `number`: its place among all, from 1 on.

    Raises EngineError, UsageError, and on the first rank whatever another one has failed of.
    """

    def __init__(
        self,
        place: Place,
        others: Others | None = None,
        line: Lifelines | Lifeline | None = None,
        served: socket.socket | None = None,
    ):
        self.place, self.size, self.is_first = place, place.size, place.is_first
        # Known when it is taken.
        self.device = ""
        self._others, self._line, self._served = others, line, served
        self._own: Store | None = None
        self._look = _FAR_LOOK if place.spans_nodes else _LOOK
        self._has_agreed = False
        self._files: dict[int, dict[str, Any]] = {}
        self.current: Command | None = None
        self.number = 0
        # Raises where this rank's scores are not to be believed: called before they are left.
        self.check: Callable[[], None] = lambda: None

    def take_device(self, name: str | None) -> str:
        """The device of this rank, of the kind that a user called `name`. Raises UsageError."""
        self.device = take_device(self.place, name)
        # Served from now on: an error of another rank's start is told while this one loads.
        _ = self._store
        return self.device

    def agree(self, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Tells the first rank these facts; returns there those of all ranks, by rank, as JSON has
        them. Raises UsageError where two have the same GPU."""
        gpu = None if self.place.starts_others else gpu_of(self.device)
        self.leave(f"agree/{self.place.rank}", {"gpu": gpu, "facts": facts})
        self._has_agreed = True
        if not self.is_first:
            return []
        found, gpus = [], {}
        for rank in range(self.size):
            said, _ = self.take(f"agree/{rank}")
            if "error" in said:
                raise _error_of(said["error"])
            found.append(said["facts"])
            gpus[rank] = said["gpu"]
        if same := same_gpu(gpus):
            raise UsageError(
                f"{' and '.join(map(self.title, same))} have the same GPU: each needs one of its own"
            )
        return found

    def files_of(self, rank: int) -> dict[str, Any]:
        """The files of another rank, as it has left them or will, on the first rank."""
        if rank not in self._files:
            self._files[rank], _ = self.take(f"files/{rank}")
        return self._files[rank]

    def tell(self, command: Command) -> int:
        """Gives all others a command, on the first rank; returns its number."""
        self.current = command
        self.number += 1
        for rank in range(1, self.size):
            self.leave(f"command/{self.number}/{rank}", json_of(command))
        return self.number

    def command(self) -> Command:
        """Returns, on the other ranks, the next command."""
        self.number += 1
        said, _ = self.take(f"command/{self.number}/{self.place.rank}")
        self.current = command_of(said)
        return self.current

    def end(self) -> None:
        """Tells all others, on the first rank, that nothing more will come."""
        if self._own is not None:
            self.tell(End())

    def abandon(self, number: int) -> None:
        """Tells all others, on the first rank, that nothing more is wanted of a command."""
        self._store.set(f"abandoned/{number}", "1")

    def is_abandoned(self, number: int) -> bool:
        return self._store.check([f"abandoned/{number}"])

    def comes(self, name: str, number: int) -> bool:
        """Waits for what another rank leaves for a command; False where that is abandoned before."""
        try:
            while not self._store.check([name]):
                if self.is_abandoned(number):
                    return False
                time.sleep(self._look)
        except RuntimeError as error:
            raise EngineError(f"the ranks' store does not answer: {_words(error)}") from None
        return True

    def leave(self, name: str, facts: Mapping[str, Any], columns: Columns | None = None) -> None:
        """Leaves facts and columns for the one rank that takes them by their name."""
        file = io.BytesIO()
        said = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        named = {f"c/{k}": v for k, v in (columns or {}).items()}
        np.savez(file, allow_pickle=False, **named, facts=said)
        data, store = file.getvalue(), self._store
        pieces = range(0, len(data), _PIECE)
        for number, begin in enumerate(pieces):
            # It takes bytes, whatever its stub says. A queue's stub says so, but the store that
            # torchrun makes with USE_LIBUV=0 has no queues.
            store.set(f"{name}/{number}", cast("str", data[begin : begin + _PIECE]))
        # The name itself comes last: who sees it finds all pieces.
        store.set(name, str(len(pieces)))

    def take(self, name: str) -> tuple[dict[str, Any], Columns]:
        """Facts and columns that another rank has left, or will have."""
        store = self._store
        try:
            while not store.check([name]):
                self._look_for_failures(store)
                time.sleep(self._look)
            pieces = [f"{name}/{number}" for number in range(int(store.get(name)))]
            data = b"".join(store.get(piece) for piece in pieces)
            for key in (name, *pieces):
                store.delete_key(key)
        except RuntimeError as error:
            raise EngineError(f"the ranks' store does not answer: {_words(error)}") from None
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            columns = {k[2:]: arrays[k] for k in arrays.files if k != "facts"}
            return json.loads(arrays["facts"].tobytes()), columns

    def fail(self, error: BaseException) -> bool:
        """Lets the first rank know, on the others, why this one ends; returns whether it could be told.

        Before they agreed, the first rank may be failing alike, and what it says then is enough: it has
        some seconds for that.
        """
        kind = type(error).__name__ if isinstance(error, ScoremodeError) else "EngineError"
        text = str(error) if isinstance(error, ScoremodeError) else _words(error)
        said = [kind, f"{self.title(self.place.rank)}: {text}"]
        try:
            if not self._has_agreed:
                self.leave(f"agree/{self.place.rank}", {"error": said})
                time.sleep(_ALIKE)
            self._store.compare_set("failed", "", json.dumps(said))
        except (RuntimeError, ScoremodeError):
            return False
        return True

    def depart(self, *, excused: bool = False) -> None:
        """Says, on the other ranks, that this one ends and is nobody's reason to: it is done, or
        `excused`, which was told to end."""
        if isinstance(self._line, Lifeline):
            self._line.leave(excused=excused)

    def failure(self) -> ScoremodeError | None:
        """The error that another rank has ended with, on the first one; None where none has."""
        failure = self._failure()
        if failure is not None and isinstance(self._line, Lifelines):
            self._line.is_told = True
        return failure

    def _failure(self) -> ScoremodeError | None:
        lost = None
        try:
            # It may have been asked to end before it was connected.
            store = self._own
            if store is not None and store.check(["failed"]):
                return _error_of(json.loads(store.get("failed")))
        except RuntimeError as error:
            lost = EngineError(f"the ranks' store does not answer any more: {_words(error)}")
        if self._others is not None and self._others.ended is not None:
            rank, what = self._others.ended
            return EngineError(f"{self.title(rank)}: {what}")
        if isinstance(self._line, Lifelines) and (failure := self._line.failure(self.title)):
            return failure
        return lost

    def title(self, rank: int) -> str:
        """The name that an error gives a rank: its number, its device and, of several, its machine."""
        local, host = rank, ""
        if rank == self.place.rank:
            local, host = self.place.local, socket.gethostname()
        elif isinstance(self._line, Lifelines) and (peer := self._line.peers.get(rank)):
            local, host = peer.local, peer.host
        device = f"cuda:{local}" if self.device.startswith("cuda") else self.device
        where = " on ".join(filter(None, (device, host if self.place.spans_nodes else "")))
        return f"rank {rank} ({where})" if where else f"rank {rank}"

    @property
    def leaders(self) -> list[int]:
        """One rank of each other machine, on the first rank when all have come."""
        if not isinstance(self._line, Lifelines):
            return []
        return sorted(r for r, p in self._line.peers.items() if p.local == 0 and p.node > 0)

    @property
    def _store(self) -> Store:
        if self._own is None:
            try:
                served = self._served if self._others is None else self._others.listener
                self._own = open_store(self.place, served, self._line)
            except RuntimeError as error:
                asked = asked_for(self.place)
                raise EngineError(f"{asked}: no connection: {_words(error)}") from None
        return self._own

    def _look_for_failures(self, store: Store) -> None:
        ended = self._line if isinstance(self._line, Lifelines) else self._others
        if self.is_first and (store.check(["failed"]) or (ended is not None and ended.ended)):
            failure = self.failure()
            assert failure is not None
            raise failure


def _words(error: BaseException) -> str:
    return line_of(error) if isinstance(error, Exception) else type(error).__name__


def _error_of(said: list[str]) -> ScoremodeError:
    name, text = said
    # One that is not among them is an engine's own.
    return getattr(errors, name, EngineError)(text)
