"""JSON as scoremode writes it: one form for people, and one that hashes are taken of.

`checkpoint.config` reads what checkpoints have, `results.folders.store` what records have.
"""

import json
import sys
from hashlib import sha256
from typing import Any

__all__ = ["canonical", "json_digest", "json_text", "print_json"]


def json_text(value: Any, *, ascii_only: bool = False) -> str:
    """The text of a file or of `--json`: indented, in the order of `value`, with a newline at its end.

    `ascii_only`: all else escaped. Raises ValueError for NaN and infinity, which JSON doesn't have.
    """
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=ascii_only) + "\n"


def print_json(value: Any) -> None:
    """Writes the text of `value` to stdout."""
    sys.stdout.write(json_text(value))


def canonical(value: Any) -> str:
    """The text that is the same for the same values, whatever the order of an object's keys.

    A NaN, which a config of Python's may hold, is written as Python does.
    """
    return json.dumps(value, sort_keys=True)


def json_digest(value: Any) -> str:
    """sha256 of a value's canonical text."""
    return sha256(canonical(value).encode()).hexdigest()
