"""Charts of the report's data: axes, bins, series, and frontiers of size against quality.

A chart is one `Chart` whatever it shows; `x.scale` and `bins` tell how to draw it, `series` what.
All arrays of a series have the same length, and with `bins` that of `bins`. Numbers are rounded to
7 significant digits.
"""

from typing import Literal, TypedDict

__all__ = ["Axis", "Bin", "Chart", "Frontier", "Point", "Series", "Standing", "Tail"]

Standing = Literal["frontier", "beaten", "not distinguishable", "not known"]


class Axis(TypedDict):
    """`label` for people, `unit` behind it ("nats", "bytes", …; "" for none). `scale`: of
    "category" the bins' names stand on the axis. `least`, `most`: what to show, where a fixed range
    is right."""

    label: str
    unit: str
    scale: Literal["linear", "log", "category"]
    least: float | None
    most: float | None


class Bin(TypedDict):
    """A bin of x: its `name`; `lower` ≤ x < `upper`, both None for a category; `share` of all
    targets in it, None where it differs from run to run (a histogram's, whose shares are the
    series' y)."""

    name: str
    lower: float | None
    upper: float | None
    share: float | None


class Series(TypedDict):
    """One run's: `run` is its id. `x`: in the middle of the bin where there are bins, its number
    where they are categories. `lower`, `upper`: 95 % of `y`, None where there is no interval. `n`:
    targets behind each y. A y is None where a bin is empty."""

    run: str
    x: list[float]
    y: list[float | None]
    lower: list[float | None]
    upper: list[float | None]
    n: list[int]


class Chart(TypedDict):
    """A chart of all runs. `id`: `tail`, `histogram`, `confidence`, `target_probability`,
    `position`, or `group:` and one of the record's groupings (`confidence`, `position`,
    `token_class`, `label`, `turn`), of which `group:token_class` is the kinds of tokens; of
    `group:label` further ones with `:` and a metric other than KLD behind.

    - `title`, `words`: what it shows, and in one or two sentences how to read it.
    - `kind`: `line` (points joined, with a band), `bars` (a bar a bin and run, or a step line).
    - `bins`: None for a line over plain x.
    """

    id: str
    title: str
    words: str
    kind: Literal["line", "bars"]
    x: Axis
    y: Axis
    bins: list[Bin] | None
    series: list[Series]


class Tail(Series):
    """The share of a run's targets (y) whose KLD is x (nats) or more: a step curve whose points are
    chosen so that straight lines between them on logarithmic axes are off by at most `error`
    decades.

    - `lower`, `upper`: None but at every few points, where the band has its corners; `n`:
      those targets.
    - `below`: targets whose KLD is below the first x, most of them rounding's or exactly 0.
    """

    error: float
    below: int


class Point(TypedDict):
    """A run of a frontier chart: `x`, `y` with its interval.

    - `standing`: `frontier` (no run is at most as large and at most as far, and one of both less);
      `beaten` by `by` (ids of all such runs, smallest first); `not distinguishable` where it is
      beaten by value, and the paired difference from none of `by` holds after Holm's correction (of
      a percentile: their intervals meet); `not known` where a paired test isn't there to tell, and
      it is beaten by value.
    - `same_as`: ids of no larger runs from which it can't be told apart, whatever its standing: on
      the frontier, its further bytes buy nothing that this text shows. None where not known.
    """

    run: str
    x: float
    y: float
    lower: float | None
    upper: float | None
    standing: Standing
    by: list[str]
    same_as: list[str] | None


class Frontier(TypedDict):
    """A chart of size against quality. `id` is `X/Y` of the keys of Run: X `bytes`, `bits_body` or
    `bits_file`; Y `kld`, `ppl_ratio` or `kld_p999`, and in a section without a base `ppl`.

    - `points`: of the runs that have both; runs of the base itself are left out. By x, then y.
    - `line`: ids of the frontier's runs, by x: a step line goes right, then down through them.
    - `base`: the base's place, None where its size isn't known; its y is 0, which isn't on a
      logarithmic axis, a ratio's 1.
    - `tested`: the matrix (`kld` or `nll`) whose tests `standing` uses; None for a percentile.
    """

    id: str
    x: Axis
    y: Axis
    points: list[Point]
    line: list[str]
    base: tuple[float, float] | None
    tested: Literal["kld", "nll"] | None
