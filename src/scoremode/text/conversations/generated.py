"""The record beside a file of conversations that `scoremode generate` wrote: which model said them.

It counts only for the very file that it is of, by that file's sha256.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from scoremode.errors import CorpusError
from scoremode.lib.files import MOST_JSON, read_regular

__all__ = ["KIND", "generated_by", "record_path"]

# What the record calls itself.
KIND = "scoremode generated conversations"
# Of its fields those that a run's record repeats.
_FIELDS = ("base", "engine", "sampling")


def record_path(path: Path) -> Path:
    """The path of the record of a file: `chats.jsonl` has `chats.jsonl.json`."""
    return path.with_name(f"{path.name}.json")


def generated_by(path: Path, digest: str) -> dict[str, Any] | None:
    """What a run's record says of the file whose sha256 is `digest`: its `base`, `engine` and
    `sampling`, and the sha256 of the record that says so; None where no record is there, or one of
    another file.

    Raises CorpusError for a record that can't be read, or lacks what it should have.
    """
    file = record_path(path)
    try:
        data = read_regular(file, MOST_JSON)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CorpusError(f"{file}: {error.strerror}") from None
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or record.get("kind") != KIND:
        return None
    output = record.get("output")
    if not isinstance(output, dict) or output.get("sha256") != digest:
        return None
    for name in _FIELDS:
        if not isinstance(record.get(name), dict):
            raise CorpusError(f"{file}: is a record of what a model said, without its {name}")
    return {**{n: record[n] for n in _FIELDS}, "record_sha256": sha256(data).hexdigest()}
