"""Whether two runs are of one plan: the same token ids, cut and scored by the same protocol.

A plan's sha256 decides. Where two differ, what differs is named by the first thing that makes the
difference: a field of the protocol, the text, the tokenizer, the windows.
"""

from collections.abc import Mapping
from typing import Any

from scoremode.errors import ReferenceUnusable

__all__ = ["check_same_plan", "first_difference"]

# The name follows from the fields, and the hash from all.
_DERIVED = ("name", "sha256")


def first_difference(
    ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> tuple[str, Any, Any] | None:
    """What differs between two records' plans: its name and both values, None if nothing does.

    Both need the sections `corpus`, `tokenizer`, `protocol`, `plan`.
    """
    if ours["plan"]["sha256"] == theirs["plan"]["sha256"]:
        return None
    rules = ours["protocol"], theirs["protocol"]
    for field in sorted((rules[0].keys() | rules[1].keys()) - set(_DERIVED)):
        if rules[0].get(field) != rules[1].get(field):
            return f"protocol's {field}", rules[0].get(field), rules[1].get(field)
    for name, path in (
        ("text's sha256", ("corpus", "text", "sha256")),
        ("tokenizer's sha256", ("tokenizer", "sha256")),
        ("token ids' sha256", ("plan", "tokens_sha256")),
        ("BOS of every window", ("plan", "window_bos")),
        ("number of windows", ("plan", "windows")),
    ):
        values = []
        for value in (ours, theirs):
            for key in path:
                value = value[key]
            values.append(value)
        if values[0] != values[1]:
            return name, values[0], values[1]
    return "plan's sha256", ours["plan"]["sha256"], theirs["plan"]["sha256"]


def check_same_plan(ours: Mapping[str, Any], theirs: Mapping[str, Any], what: str) -> None:
    """Raises ReferenceUnusable where `theirs`, which `what` names, is of another plan than `ours`."""
    found = first_difference(ours, theirs)
    if found is not None:
        name, own, other = found
        raise ReferenceUnusable(
            f"{what}: is of another plan: its {name} is {_short(other)}, this run's {_short(own)}"
        )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:16]}…"
