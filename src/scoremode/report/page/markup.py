"""Text made fit for a page: nothing that a model, a text or a path holds is markup, or script."""

import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from scoremode.errors import escaped

__all__ = ["element", "script_json", "text", "visible"]


def visible(value: Any) -> Any:
    """Plain JSON with every character of a string that has no sign of its own written as Python does.

    Controls, marks that turn a line's direction, blanks of no width, lone surrogates and separators of
    lines would do something to a page, or to its reader, instead of being seen: `\\u202e`.
    """
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, Mapping):
        return {escaped(str(key)): visible(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [visible(item) for item in value]
    return value


def text(value: object) -> str:
    """A value as a page's text, or as an attribute's."""
    return escape(escaped(str(value)))


def element(name: str, content: str = "", **attributes: object) -> str:
    """An element of HTML with `content` (markup); attributes that are None or False are left out, and
    `_` in their names is `-`, but for one at the end."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{text(value)}"')
    return f"<{' '.join(words)}>{content}</{name}>"


def joined(parts: Iterable[str]) -> str:
    return "\n".join(part for part in parts if part)


def script_json(value: Any) -> str:
    """JSON that may stand in a script element: ASCII, and without what could end it or begin another.

    Raises ValueError for NaN and infinity, which JSON doesn't have.
    """
    plain = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return "".join({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}.get(c, c) for c in plain)
