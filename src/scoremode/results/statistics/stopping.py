"""The decision to end a run by its rule, made from its scores alone, and made again from them later.

After each of the plan's looks the rule is held against the interval of what all windows would give
(`windows.of_drawn`); the first look that it allows ends the run. Conversations are drawn whole: looks
come after as many of them as of a text's windows.
"""

from dataclasses import dataclass
from typing import Any

from scoremode.results.statistics.windows import WindowSums, of_drawn
from scoremode.text.stopping import looks_of, stop_rule

__all__ = ["METHOD", "METHOD_CONVERSATIONS", "Look", "look_at", "stopping_section"]

# Named in a record; another rule for looks or for intervals would have another name.
METHOD = "random windows, Student's interval, looks from 32 by 1.25"
METHOD_CONVERSATIONS = METHOD.replace("windows", "conversations")


@dataclass(frozen=True)
class Look:
    """The rule's metric after `windows` windows, its interval, and whether that `met` the rule."""

    windows: int
    value: float
    interval: tuple[float, float] | None
    met: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "windows": self.windows,
            "value": self.value,
            "ci95": None if self.interval is None else list(self.interval),
            "met": self.met,
        }


def look_at(sums: WindowSums, drawn_from: int, rule: str) -> Look:
    """The look at the windows done, of so many windows, or conversations, in all. Raises ProtocolError
    for what is no rule."""
    wanted = stop_rule(rule)
    found = of_drawn(sums, drawn_from)[wanted.metric]
    met = found.interval is not None and wanted.allows(found.value, *found.interval)
    return Look(len(sums), found.value, found.interval, met)


def stopping_section(
    sums: WindowSums, windows: int, rule: str, seed: int, conversations: int | None = None
) -> dict[str, Any]:
    """The record's section `stopping` of a run of those windows, drawn from so many; of conversations
    drawn whole, from so many of these.

    `after` is where the rule ends a run of these scores: at the number of windows there are, or the run
    was ended by something else.
    """
    looks, drawn_from = [], windows if conversations is None else conversations
    for draws in looks_of(drawn_from):
        if (n := sums.windows_of(draws)) is None:
            break
        looks.append(look_at(sums.first(n), drawn_from, rule))
        if looks[-1].met:
            break
    return {
        "rule": rule,
        "seed": seed,
        "method": METHOD if conversations is None else METHOD_CONVERSATIONS,
        "after": looks[-1].windows if looks else 0,
        "of": windows,
        "met": bool(looks) and looks[-1].met,
        "looks": [look.to_json() for look in looks],
    }
