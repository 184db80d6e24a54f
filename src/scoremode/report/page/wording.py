"""Numbers as people read them: rounded for the page, whole behind it."""

from collections.abc import Callable
from typing import Any

from scoremode.report.page.definition import Measured

__all__ = ["bits_words", "interval_words", "kld_words", "percent", "ppl_words", "rate_words",
           "ratio_words", "size_unit", "size_words"]  # fmt: skip

MIB, GIB = 2**20, 2**30
NONE = "–"


def kld_words(value: float | None) -> str:
    """A divergence in nats, to three digits: `0.0232`."""
    if value is None:
        return NONE
    return f"{value:.3g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.2e}"


def ratio_words(value: float | None) -> str:
    """A ratio near 1 as what it is above or below it, a large one as a factor: `+1.72 %`, `×12.3`."""
    if value is None:
        return NONE
    if value >= 2:
        return f"×{value:,.2f}" if value < 1e5 else f"×{value:.2e}"
    return f"{100 * (value - 1):+.2f} %".replace("-", "−")


def ppl_words(value: float | None) -> str:
    """A perplexity: `6.123`, `46.95`, `1,903.5`."""
    if value is None:
        return NONE
    digits = 3 if value < 10 else 2 if value < 1000 else 1
    return f"{value:,.{digits}f}" if value < 1e7 else f"{value:.3e}"


def percent(value: float | None, digits: int = 2) -> str:
    """A share: `98.45 %`."""
    return NONE if value is None else f"{100 * value:.{digits}f} %"


def rate_words(value: float | None) -> str:
    """A share of what is rare, in 10,000: `12.3`."""
    return NONE if value is None else f"{1e4 * value:,.1f}"


def bits_words(value: float | None) -> str:
    """Bits per weight: `4.500`."""
    return NONE if value is None else f"{value:.3f}"


def interval_words(metric: Measured | None, words: Callable[[float], str]) -> str:
    """The 95 % interval by the same rule as its value; nothing where there is none."""
    if metric is None or metric["lower"] is None or metric["upper"] is None:
        return ""
    ends = [words(metric["lower"]), words(metric["upper"])]
    # The unit stands behind the value.
    return f"[{', '.join(end.removesuffix(' %') for end in ends)}]"


def size_unit(sizes: list[Any]) -> tuple[int, str]:
    """The unit for an axis of sizes in bytes: GiB, but MiB where none is a tenth of one."""
    return (MIB, "MiB") if max(sizes) < GIB / 10 else (GIB, "GiB")


def size_words(size: int | None) -> str:
    """Bytes as GiB; as MiB below a tenth of one, which GiB would show as 0.0something."""
    if size is None:
        return NONE
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / MIB:.2f} MiB"
