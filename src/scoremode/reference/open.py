"""Opening whatever can serve as a reference and lies under a path."""

from pathlib import Path

from scoremode.llama_cpp.reference import LlamaCppReference
from scoremode.reference.stored import StoredReference

__all__ = ["open_reference"]


def open_reference(path: Path) -> StoredReference | LlamaCppReference:
    """A reference's folder, or a llama.cpp file. Raises ReferenceUnusable, RunFolderError."""
    return LlamaCppReference(path) if path.is_file() else StoredReference(path)
