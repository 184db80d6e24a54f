"""Plain reads of large files, beside their memory-mapped views."""

import os

__all__ = ["read_at"]


def read_at(descriptor: int, memory: memoryview, offset: int) -> bool:
    """Fills `memory` with a file's bytes from `offset` on; False if it ends before. Raises OSError."""
    done = 0
    while done < len(memory):
        count = os.preadv(descriptor, [memory[done:]], offset + done)
        if count == 0:
            return False
        done += count
    return True
