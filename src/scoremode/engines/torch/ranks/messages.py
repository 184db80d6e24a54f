"""Messages between ranks: through torch.distributed's store, and nothing else.

What travels is small (a hundred bytes a scored token), so there is no process group. A collective
blocks in C++ until its peers answer or die, and nobody could interrupt it; a look into the store
returns at once, so that a Ctrl-C, a signal, or another rank's error is seen while waiting. Nor does
anybody wait for the first rank: the others leave their scores and go on. Values are numbers and JSON,
never pickled objects.
"""

import io
import json
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import numpy as np
import torch
from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)
from torch.distributed.rendezvous import rendezvous

from scoremode import errors
from scoremode.engines.torch.ranks.commands import Command, End, command_of, json_of
from scoremode.engines.torch.ranks.launch import Others, Place
from scoremode.errors import EngineError, ScoremodeError, UsageError, line_of

__all__ = ["Columns", "Ranks"]

Columns = dict[str, np.ndarray]

# The store takes 8 MiB at a time.
_PIECE = 4 << 20
# Seconds between looks for something that is not there yet.
_LOOK = 0.002
# Seconds for a connection: the first rank serves it when it has imported torch.
_CONNECT = timedelta(seconds=600)
# Seconds in which the first rank may find for itself what another did before they agreed.
_ALIKE = 10.0


class Ranks:
    """The ranks of a run, seen from one of them.

    - `place`: which one; `others`: the processes that the first one has started, if it did.
    - `current`: the command that is being done, and `number`: its place among all, from 1 on.

    Raises EngineError, UsageError, and on the first rank whatever another one has failed of.
    """

    def __init__(self, place: Place, others: Others | None = None):
        self.place, self.size, self.is_first = place, place.size, place.is_first
        # Known when it is taken.
        self.device = ""
        self._others = others
        self._own: Store | None = None
        self._has_agreed = False
        self.current: Command | None = None
        self.number = 0

    def take_device(self, name: str | None) -> str:
        """The device of this rank, of the kind that a user called `name`; the process's default then.

        CUDA devices are taken in order, a CPU's threads are shared out.
        """
        kind = name or ("cuda" if torch.cuda.is_available() else "cpu")
        if kind == "cuda":
            count = torch.cuda.device_count()
            if count < self.size:
                raise UsageError(f"{self._asked}: this machine has {count} CUDA devices")
            self.device = f"cuda:{self.place.rank}"
            torch.cuda.set_device(self.place.rank)
        else:
            if name is None:
                raise UsageError(
                    f"{self._asked}: this machine has no CUDA device; --device cpu shares out its cores"
                )
            # torchrun sets the number of threads itself.
            if not self.place.by_torchrun:
                torch.set_num_threads(max(1, torch.get_num_threads() // self.size))
            self.device = kind
        # Served from now on: an error of another rank's start is told while this one loads.
        _ = self._store
        return self.device

    def agree(self, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Returns, on the first rank, what every rank calls this with, as JSON has it, in their
        order."""
        self.leave(f"agree/{self.place.rank}", {"pid": os.getpid(), "facts": facts})
        self._has_agreed = True
        if not self.is_first:
            return []
        found = []
        for rank in range(self.size):
            said, _ = self.take(f"agree/{rank}")
            if "error" in said:
                raise _error_of(said["error"])
            found.append(said["facts"])
            self._store.set(f"process/{rank}", str(said["pid"]))
        return found

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
                time.sleep(_LOOK)
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
                time.sleep(_LOOK)
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

    def excuse(self) -> None:
        """Records, on the other ranks, that this one was told to end, and is nobody's reason to."""
        if self._own is not None:
            self._own.set(f"excused/{self.place.rank}", "1")

    def failure(self) -> ScoremodeError | None:
        """Returns, on the first rank, why another one has ended, None where none has by itself."""
        try:
            # It may have been asked to end before it was connected.
            store = self._own
            if store is not None and store.check(["failed"]):
                return _error_of(json.loads(store.get("failed")))
            if self._others is not None and self._others.ended is not None:
                rank, what = self._others.ended
                return EngineError(f"{self.title(rank)}: {what}")
            if store is not None and self.place.by_torchrun:
                return self._gone(store)
        except RuntimeError as error:
            return EngineError(f"the ranks' store does not answer any more: {_words(error)}")
        return None

    def title(self, rank: int) -> str:
        """The name that an error gives a rank."""
        device = f"cuda:{rank}" if self.device.startswith("cuda") else self.device
        return f"rank {rank} ({device})" if device else f"rank {rank}"

    def _gone(self, store: Store) -> EngineError | None:
        """Under torchrun, which ends all when one has ended: the one that nobody ended."""
        for rank in range(1, self.size):
            if not store.check([f"process/{rank}"]) or store.check([f"excused/{rank}"]):
                continue
            try:
                os.kill(int(store.get(f"process/{rank}")), 0)
            except ProcessLookupError:
                return EngineError(
                    f"{self.title(rank)}: its process was ended, as a system out of memory does"
                )
        return None

    @property
    def _store(self) -> Store:
        if self._own is None:
            try:
                self._own = self._connected()
            except RuntimeError as error:
                raise EngineError(f"{self._asked}: no connection: {_words(error)}") from None
        return self._own

    def _connected(self) -> Store:
        if self.place.by_torchrun:
            return next(iter(rendezvous("env://", timeout=_CONNECT)))[0]
        assert self.place.port is not None
        listener = None if self._others is None else self._others.listener.detach()
        store = TCPStore(
            "127.0.0.1",
            self.place.port,
            is_master=self.is_first,
            timeout=_CONNECT,
            wait_for_workers=False,
            master_listen_fd=listener,
        )
        return PrefixStore(self.place.key, store)

    @property
    def _asked(self) -> str:
        return (
            f"torchrun: {self.size} ranks" if self.place.by_torchrun else f"--devices {self.size}"
        )

    def _look_for_failures(self, store: Store) -> None:
        if self.is_first and (
            store.check(["failed"]) or (self._others is not None and self._others.ended)
        ):
            failure = self.failure()
            assert failure is not None
            raise failure


def _words(error: BaseException) -> str:
    return line_of(error) if isinstance(error, Exception) else type(error).__name__


def _error_of(said: list[str]) -> ScoremodeError:
    name, text = said
    # One that is not among them is an engine's own.
    return getattr(errors, name, EngineError)(text)
