"""Hashes of a checkpoint's files, made beside the run."""

import threading

from scoremode.checkpoint.files import Checkpoint
from scoremode.errors import CheckpointError

__all__ = ["HashingThread"]


class HashingThread:
    """Hashes the checkpoint's files beside the run; hashing lets other threads compute."""

    def __init__(self, checkpoint: Checkpoint):
        self._files: dict[str, str] = {}
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, args=(checkpoint,), daemon=True)
        self._thread.start()

    def _run(self, checkpoint: Checkpoint) -> None:
        try:
            self._files = checkpoint.hash_files()
        except OSError as error:
            self._error = error

    def result(self) -> dict[str, str]:
        """File name → sha256, when it is done."""
        self._thread.join()
        if self._error is not None:
            raise CheckpointError(f"{self._error.filename}: {self._error.strerror}")
        return self._files
