"""JSON as checkpoints have it: UTF-8, every name once, nothing nested beyond reason.

Python's reader takes more: another encoding, a name written twice, of which the last counts here and
the first elsewhere, half a surrogate pair that nothing can print.
"""

import json
import re
from pathlib import Path
from typing import Any

from scoremode.errors import CheckpointError
from scoremode.lib.files import MOST_JSON, read_regular

__all__ = ["is_deep", "parse_json", "read_json"]

_DEEPEST = 64
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(content: bytes, *, has_constants: bool) -> Any:
    """The value that `content` holds; with `has_constants`, NaN and Infinity may be in it.

    Raises ValueError with what is wrong, in one line.
    """
    try:
        value = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=float if has_constants else _no_constant,
        )
    except UnicodeDecodeError:
        raise ValueError("not in UTF-8") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if _SURROGATE.search(content):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("holds half a surrogate pair") from None
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError."""
    try:
        # Python writes them, and models' limits are written by Python.
        value = parse_json(read_regular(path, MOST_JSON), has_constants=True)
        # Whoever writes it anew, or looks through it, would run into Python's own limit.
        if is_deep(value):
            raise ValueError("nested too deeply")
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}, not an object")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"{twice[:200]!r} is written twice")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def is_deep(value: Any) -> bool:
    """Tells whether `value` is nested beyond what anybody means."""
    level = [value]
    for _ in range(_DEEPEST):
        nodes = [node for node in level if isinstance(node, (dict, list))]
        level = [c for n in nodes for c in (n.values() if isinstance(n, dict) else n)]
        if not level:
            return False
    return True
