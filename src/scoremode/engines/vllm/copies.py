"""Copies of the checkpoint on other nodes, compared with the driver's while the model scores.

vLLM's workers read the files of their own node, under the same path. What is scored before it is known
that they are the same is held back: a part on disk never comes from weights that the record does not
name.
"""

import time
from collections.abc import Callable
from typing import Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.vllm.workers.copy_files import view_of
from scoremode.errors import EngineError

__all__ = ["Copies"]

# Seconds between two looks, once there is nothing else to do.
_LOOK = 0.2


class Copies:
    """The files of `checkpoint` as the workers see them; hashing begins where they see others.

    - `ask`: a question to every worker, as `Started.ask`.
    """

    def __init__(self, checkpoint: Checkpoint, ask: Callable[..., list[Any]]):
        self._checkpoint, self._ask = checkpoint, ask
        self._paths = [
            str(p.absolute()) for p in (*checkpoint.files.beside, *checkpoint.weight_files)
        ]
        mine, views = view_of(self._paths), ask("scoremode_view_files", self._paths)
        firsts: dict[str, int] = {}
        for worker, view in enumerate(views):
            if view != mine:
                firsts.setdefault(repr(view), worker)
        # One worker of each node, which hashes for the others.
        self._workers = sorted(firsts.values())
        if self._workers:
            ask("scoremode_hash_files", self._paths, self._workers)

    @property
    def count(self) -> int:
        """How many there are beside the driver's."""
        return len(self._workers)

    def are_known(self, *, wait: bool) -> bool:
        """Tells whether all have been found to be the driver's files, or waits until they are.

        Raises EngineError for one that is not.
        """
        while self._workers:
            answers = self._ask("scoremode_file_hashes")
            if all(answers[worker] is not None for worker in self._workers):
                self._compare(answers)
                self._workers = []
            elif not wait:
                return False
            else:
                time.sleep(_LOOK)
        return True

    def _compare(self, answers: list[Any]) -> None:
        mine = self._checkpoint.hash_files()
        for worker in self._workers:
            node, hashes = answers[worker]
            for (name, digest), theirs in zip(mine.items(), hashes, strict=True):
                if theirs == digest:
                    continue
                known = {"missing": "is not there", "changed": "changed while it was read"}
                what = known.get(theirs, f"has sha256 {theirs[:16]}…, and here {digest[:16]}…")
                raise EngineError(
                    f"{self._checkpoint.path}: on the node {node}, {name} {what}: "
                    "every node needs the same files"
                )
