"""The style of the page and its plots: colours, letters, marks, and numbers as people read them.

Series have the hues of Okabe and Ito's palette (jfly.uni-koeln.de/color, 2008), which people of every
kind of colour vision tell apart, darker on white and lighter on black where their contrast asks for
it; shapes are the second channel. Quantities have one hue, from pale to deep.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from scoremode.errors import escaped
from scoremode.report.document import rate
from scoremode.report.page.definition import Measured
from scoremode.results.metrics import Kind

# Name → colour in the light theme, and in the dark one.
COLOURS = {
    "paper": ("#ffffff", "#14171a"),
    "ink": ("#1b1f23", "#e3e6e8"),
    "soft": ("#5b636b", "#a0a8af"),
    "line": ("#d5d9dd", "#3a4147"),
    "faint": ("#eceef0", "#262b30"),
    "wash": ("#f3f5f7", "#1e2328"),
    "link": ("#0b5c92", "#7cc0ef"),
    "better": ("#cfe4f3", "#173b54"),
    "worse": ("#f8dcc6", "#56341b"),
    "c0": ("#0072b2", "#56b4e9"),
    "c1": ("#d55e00", "#ec7a3c"),
    "c2": ("#009e73", "#22b98d"),
    "c3": ("#b65d91", "#d694ba"),
    "c4": ("#c98500", "#e6a417"),
    "c5": ("#3f9bd1", "#f0e442"),
    "c6": ("#4d4d4d", "#d0d4d8"),
    "rest": ("#9aa1a8", "#717981"),
    "h0": ("#f4f7fa", "#1c2227"),
    "h1": ("#dce8f1", "#1e2f3c"),
    "h2": ("#b9d3e6", "#20425a"),
    "h3": ("#86b4d4", "#225a80"),
    "h4": ("#357fb0", "#2a78ad"),
    "h5": ("#1a5a8a", "#5aaee3"),
}

# A run's tint is a place in these; the last one is of all runs that have none of their own.
TINTS = ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "rest")
SHAPES = (
    *("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"),
    "circle",
)

# vl-convert carries Liberation Sans, so a plot has the same letters everywhere.
_LETTERS = "Liberation Sans, Arial, Helvetica, sans-serif"
MIB, GIB = 2**20, 2**30
NONE = "–"


def colour_variables() -> str:
    """CSS that defines each colour as a variable of both themes."""
    lines = [f"--{name}: light-dark({light}, {dark});" for name, (light, dark) in COLOURS.items()]
    return f":root {{ {' '.join(lines)} }}\n"


def page_config() -> dict[str, Any]:
    """Vega-Lite's config in the page: CSS variables, so that a theme's change draws nothing anew."""
    config = _config({name: f"var(--{name})" for name in COLOURS})
    config["background"] = None
    return config


def plot_config(*, dark: bool = False) -> dict[str, Any]:
    """Vega-Lite's config of plots in files: one theme, in a font that is always there."""
    colours = {name: own[dark] for name, own in COLOURS.items()}
    return _config(colours) | {"background": colours["paper"], "font": _LETTERS, "padding": 8}


def _config(colour: dict[str, str]) -> dict[str, Any]:
    return {
        "axis": {
            "domainColor": colour["soft"],
            "gridColor": colour["faint"],
            "labelColor": colour["soft"],
            "labelFontSize": 11,
            "tickColor": colour["line"],
            "tickSize": 4,
            "titleColor": colour["ink"],
            "titleFontSize": 11.5,
            "titleFontWeight": 500,
            "titlePadding": 6,
        },
        "legend": {
            "labelColor": colour["ink"],
            "labelFontSize": 11,
            "labelLimit": 260,
            "orient": "bottom",
            "columns": 3,
            "title": None,
        },
        "range": {"category": [colour[name] for name in TINTS]},
        "style": {
            "frontier": {"color": colour["rest"], "strokeWidth": 1.2, "strokeDash": [4, 3]},
            "base": {"color": colour["soft"], "strokeWidth": 1, "strokeDash": [1, 3]},
            "zero": {"color": colour["soft"], "strokeWidth": 1},
            "aside": {"color": colour["soft"], "fontStyle": "italic"},
            "leader": {"color": colour["rest"], "strokeWidth": 0.8},
            "outline": {"stroke": colour["paper"], "strokeWidth": 6, "strokeJoin": "round"},
        },
        "text": {"color": colour["ink"], "fontSize": 11},
        "title": {
            **{"color": colour["ink"], "fontSize": 13, "anchor": "start", "fontWeight": 600},
            **{"frame": "bounds", "offset": 14, "subtitlePadding": 5},
            **{"subtitleColor": colour["soft"], "subtitleFontSize": 11},
        },
        "view": {"stroke": None},
    }


def kld_words(value: float | None) -> str:
    """A divergence in nats, to three digits: `0.0232`."""
    if value is None:
        return NONE
    return f"{value:.3g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.2e}"


def ratio_words(value: float | None) -> str:
    """A ratio as a factor: `×1.0172`, `×12.35`."""
    if value is None:
        return NONE
    return f"×{value:,.{4 if value < 2 else 2}f}" if value < 1e5 else f"×{value:.2e}"


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
    return NONE if value is None else rate(value)


def bits_words(value: float | None) -> str:
    """Bits per weight: `4.500`."""
    return NONE if value is None else f"{value:.3f}"


# How the page says a metric of each kind.
SAID: dict[Kind, Callable[[float | None], str]] = {
    "perplexity": ppl_words,
    "ratio": ratio_words,
    "nats": kld_words,
    "bits": bits_words,
    "share": percent,
    "rate": rate_words,
}


def interval_words(metric: Measured | None, words: Callable[[float], str]) -> str:
    """The 95 % interval by the same rule as its value; nothing where there is none."""
    if metric is None or metric["lower"] is None or metric["upper"] is None:
        return ""
    ends = [words(metric["lower"]), words(metric["upper"])]
    # Unit and sign stand beside the value.
    return f"[{', '.join(end.removesuffix(' %').removeprefix('×') for end in ends)}]"


def size_unit(sizes: list[Any]) -> tuple[int, str]:
    """The unit for an axis of sizes in bytes: GiB, but MiB where none is a tenth of one."""
    return (MIB, "MiB") if max(sizes) < GIB / 10 else (GIB, "GiB")


def size_words(size: int | None) -> str:
    """Bytes as GiB; as MiB below a tenth of one, which GiB would show as 0.0something."""
    if size is None:
        return NONE
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / MIB:.2f} MiB"


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


def script_json(value: Any) -> str:
    """JSON that may stand in a script element: ASCII, and without what could end it or begin another.

    Raises ValueError for NaN and infinity, which JSON doesn't have.
    """
    plain = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return "".join({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}.get(c, c) for c in plain)
