"""The store through which ranks talk: torch.distributed's, and how each of them comes to it.

- `--devices`: the first rank serves it, on this machine only.
- torchrun: the launcher's own. What the lifelines' address is, is said there.
- srun: the first rank serves it; its port is said on the lifelines, whose own SLURM's variables give.
"""

import json
import socket
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)
from torch.distributed.rendezvous import rendezvous

from scoremode.engines.torch.ranks.lifeline import PATIENCE, Lifeline, Lifelines
from scoremode.engines.torch.ranks.places import Place
from scoremode.errors import EngineError

__all__ = ["connected"]

# Seconds for a connection: the first rank serves it when it has imported torch.
_CONNECT = timedelta(seconds=600)
_LIFELINES = "lifelines"
_LOOK = 0.05


def connected(
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
            said = _said(store)
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


def _said(store: Store) -> dict[str, Any]:
    """What the first rank has said of its lifelines, when it has. Raises EngineError."""
    deadline = time.monotonic() + PATIENCE
    while not store.check([_LIFELINES]):
        if time.monotonic() > deadline:
            raise EngineError(f"torchrun: rank 0 has not come in {PATIENCE:.0f} s")
        time.sleep(_LOOK)
    return json.loads(store.get(_LIFELINES))
