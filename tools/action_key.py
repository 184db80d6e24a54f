"""Prints a sha256 of all that moves a byte of a base's predictions: the key of the action's cache.

The base, its text and its windows are in the environment, under the names that action.yml gives them.
"""

import os
from pathlib import Path

import scoremode
from scoremode.checkpoint.bulk_io import hash_file
from scoremode.checkpoint.gguf.header import parts_of
from scoremode.engines.torch.device import choose_device
from scoremode.lib.json import json_digest
from scoremode.results.record.sections import versions

# Not its memory, which is never quite the same on two runners of a kind, and groups windows alone.
_OF_DEVICE = ("type", "name", "threads")


def key() -> str:
    """The key of the base that the environment describes."""
    device = choose_device(None, None, None).to_json()
    settings = {name: os.environ[name] for name in ("PROTOCOL", "CONTEXT_LENGTH", "DTYPE")}
    return json_digest(
        {
            "versions": versions(),
            "source": _files(str(Path(scoremode.__file__).parent), "*.py"),
            "device": {name: device[name] for name in _OF_DEVICE},
            "text": _files(os.environ["TEXT"]),
            "reference": _files(os.environ["REFERENCE"]),
            **settings,
        }
    )


def _files(name: str, pattern: str = "*") -> dict[str, str] | str:
    """The sha256 of each file of a folder, or of a file with the other parts of its split. What isn't
    here is the hub's, whose name stands for itself: its kept predictions are of one commit, which their
    record names."""
    path = Path(name)
    if path.is_dir():
        files = [file for file in sorted(path.rglob(pattern)) if file.is_file()]
        return {str(file.relative_to(path)): hash_file(file) for file in files}
    parts = [path.with_name(part) for part in parts_of(path.name)]
    return {part.name: hash_file(part) for part in parts if part.exists()} or name


if __name__ == "__main__":
    print(key())
