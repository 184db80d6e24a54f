"""The rule of `--stop-when`: which metric must be known how well, and after how many windows the run
looks at it.

Windows are drawn in an order that the seed alone decides, so that those done are a random sample of
all. Looks come after fixed numbers of windows, whatever the device, its memory or an interruption: the
same scores end the same run at the same window.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from typing import Literal

from scoremode.errors import ProtocolError

__all__ = [
    "FIRST_LOOK",
    "StopRule",
    "drawn_order",
    "looks_of",
    "stop_rule",
]


# The first look, and how many windows more each further one has: 32, 40, 56, 72, 96, 120 … so few
# looks that their number hardly moves the coverage (docs/statistics.md), and eights of windows between.
FIRST_LOOK = 32
_GROWTH, _MULTIPLE = 5 / 4, 8

_RULE = re.compile(
    r"\s*(ppl|kld)\s*(?:±|\+/?-)\s*([0-9]*\.?[0-9]+(?:e-?[0-9]{1,3})?)\s*(%?)\s*", re.IGNORECASE
)


@dataclass(frozen=True)
class StopRule:
    """The half-width that the 95 % interval of a metric may have: of the metric itself where it
    `is_relative`, else in the metric's own unit."""

    metric: Literal["ppl", "kld"]
    half_width: Decimal
    is_relative: bool

    def __str__(self) -> str:
        """The one way to write it, such as `ppl±0.5%`."""
        percent = self.half_width * 100 if self.is_relative else self.half_width
        return f"{self.metric}±{percent.normalize():f}{'%' * self.is_relative}"

    def allows(self, value: float, low: float, high: float) -> bool:
        """Tells whether neither end of an interval is further from the value than it says."""
        width = float(self.half_width) * (abs(value) if self.is_relative else 1)
        return max(high - value, value - low) <= width


def stop_rule(text: str) -> StopRule:
    """`ppl ±0.5 %`, `kld ±0.001`, `ppl +-0.05` → the rule. Raises ProtocolError."""
    match = _RULE.fullmatch(text)
    if match is None:
        raise ProtocolError(
            f"{text!r} is no rule to stop by such as 'ppl ±0.5 %', 'kld ±2 %' or 'kld ±0.001'"
        )
    name, number, percent = match.groups()
    width = Decimal(number) / (100 if percent else 1)
    if not 0 < width < (1 if percent else 1000):
        most = "100 %" if percent else "1000"
        raise ProtocolError(f"{text!r}: the width must be above 0 and below {most}")
    return StopRule("ppl" if name.lower() == "ppl" else "kld", width, bool(percent))


def drawn_order(windows: int, seed: int) -> list[int]:
    """Windows 0 … windows - 1 in the order that `seed` draws them: by the sha256 of `seed:window`.

    No library's generator of random numbers is asked, whose next release might draw others.
    """
    return sorted(range(windows), key=lambda w: sha256(f"{seed}:{w}".encode()).digest())


def looks_of(windows: int) -> Sequence[int]:
    """The numbers of windows, of so many in all, after which the rule is looked at; `windows` last.

    The first looks of a longer text are those of a shorter one.
    """
    found, look = [], FIRST_LOOK
    while look < windows:
        found.append(look)
        look = _MULTIPLE * math.ceil(look * _GROWTH / _MULTIPLE)
    return [*found, windows]
