"""Ranks of the tests' own process, a thread each."""

import ast
import socket
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from scoremode.engines.torch.ranks.messages import Ranks
from scoremode.engines.torch.ranks.places import Place
from scoremode.errors import ScoremodeError

_literal, _ONE = ast.literal_eval, threading.Lock()


def _literal_of_one(text: Any) -> Any:
    """`ast.literal_eval` in one thread at a time, by which numpy reads an array's header.

    In two at once Python 3.11's raises SystemError, "AST constructor recursion depth mismatch". Real
    ranks are processes.
    """
    with _ONE:
        return _literal(text)


def join(size: int) -> list[Ranks]:
    """Ranks of this very process, to be used by a thread each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        Ranks(Place(rank, size, "--devices", local=rank, here=size, port=port, key="key"))
        for rank in range(size)
    ]


def together(work: Callable[[Ranks], object], ranks: list[Ranks]) -> list[object]:
    """What `work` returns or raises on each rank, in threads of their own."""
    results: list[object] = [None] * len(ranks)

    def run(i: int) -> None:
        try:
            results[i] = work(ranks[i])
        except ScoremodeError as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(ranks))]
    with patch.object(ast, "literal_eval", _literal_of_one):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            # Who waits for a rank that has failed waits for ever.
            assert not thread.is_alive(), results
    return results
