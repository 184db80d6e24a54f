"""Places of ranks that a launcher has started on several machines, which all are this one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from scoremode.engines.torch.ranks import lifeline
from scoremode.engines.torch.ranks.lifeline import Lifeline, Lifelines
from scoremode.engines.torch.ranks.places import Place


def far_place(rank: int, size: int = 2, launcher: str = "torchrun") -> Place:
    """A rank with a machine of its own."""
    assert launcher in ("torchrun", "srun")
    return Place(rank, size, launcher, local=0, here=1, node=rank, key="scoremode/1.0")


@contextmanager
def nobody_ended() -> Iterator[list[str]]:
    """Has no lifeline end this process in the block; yields what would have been said."""
    said: list[str] = []
    with patch.object(lifeline, "_die", said.append), patch.object(lifeline, "_LAUNCHER", 0.0):
        yield said
        for thread in threading.enumerate():
            if thread.name == "lifeline":
                thread.join(30)
                assert not thread.is_alive()


def joined_lines(size: int = 2) -> tuple[Lifelines, list[Lifeline]]:
    """The first rank's lifelines, and those of the others, which have joined."""
    first = Lifelines(far_place(0, size), store=7)
    others = [Lifeline(far_place(rank, size)) for rank in range(1, size)]
    for line in others:
        line.join("127.0.0.1", first.port, first.key)
    return first, others
