"""Opening whatever can serve as a reference and lies under a path."""

from pathlib import Path

from scoremode.reference.base import OnDisk
from scoremode.reference.stored import StoredReference

__all__ = ["open_reference"]


def open_reference(path: Path) -> OnDisk:
    """Raises ReferenceUnusable, RunFolderError."""
    return StoredReference(path)
