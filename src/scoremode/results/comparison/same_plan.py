"""Tells whether two runs are of one plan: the same token ids, cut and scored by the same protocol.

A plan's sha256 decides. Where two differ, what differs is named by the first thing that makes the
difference: a field of the protocol, the text, the tokenizer, the windows.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from scoremode.errors import ReferenceUnusable

__all__ = ["check_same_plan", "first_difference"]

# A record's value under keys joined by dots.
At = Callable[[str], Any]
_PLAN = "plan.sha256"
_CAUSES = {
    "text sha256": "corpus.text.sha256",
    "tokenizer sha256": "tokenizer.sha256",
    "token ids sha256": "plan.tokens_sha256",
    "BOS of windows": "plan.window_bos",
    "number of windows": "plan.windows",
    "plan sha256": _PLAN,
}


def first_difference(ours: At, theirs: At) -> tuple[str, Any, Any] | None:
    """The first difference between two records' plans: its name and both values, None if none."""
    if ours(_PLAN) == theirs(_PLAN):
        return None
    one, two = ours("protocol"), theirs("protocol")
    # Two names of one procedure are one.
    for key in [*one, *(key for key in two if key not in one)]:
        if key not in ("name", "sha256") and one.get(key) != two.get(key):
            return f"protocol's {key}", one.get(key), two.get(key)
    values = ((name, ours(path), theirs(path)) for name, path in _CAUSES.items())
    return next(v for v in values if v[1] != v[2])


def check_same_plan(ours: Mapping[str, Any], theirs: Mapping[str, Any], what: str) -> None:
    """Raises ReferenceUnusable where `theirs`, which `what` names, is of another plan than `ours`."""
    found = first_difference(_at(ours), _at(theirs))
    if found is not None:
        name, own, other = found
        raise ReferenceUnusable(
            f"{what}: is of another plan: its {name} is {_short(other)}, this run's {_short(own)}"
        )


def _at(record: Mapping[str, Any]) -> At:
    return lambda path: reduce(lambda value, key: value[key], path.split("."), record)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:16]}…"
