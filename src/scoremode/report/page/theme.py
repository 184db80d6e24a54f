"""Colours and letters of the report's page and plots.

Series have the hues of Okabe and Ito's palette (jfly.uni-koeln.de/color, 2008), which people of every
kind of colour vision tell apart, darker on white and lighter on black where their contrast asks for it;
shapes are the second channel. Quantities have one hue, from pale to deep.
"""

from typing import Any

__all__ = ["COLOURS", "SHAPES", "TINTS", "colour_variables", "page_config", "plot_config"]

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


def colour_variables() -> str:
    """CSS that defines each colour as a variable of both themes."""
    lines = [f"--{name}: light-dark({light}, {dark});" for name, (light, dark) in COLOURS.items()]
    return f":root {{ {' '.join(lines)} }}\n"


def page_config() -> dict[str, Any]:
    """Vega-Lite's config in the page: CSS variables, so that a theme's change draws nothing anew."""
    config = _config({name: f"var(--{name})" for name in COLOURS})
    config["background"] = None
    return config


def plot_config() -> dict[str, Any]:
    """Vega-Lite's config of plots in files: the light theme, in a font that is always there."""
    config = _config({name: light for name, (light, _) in COLOURS.items()})
    return config | {"background": "#ffffff", "font": _LETTERS, "padding": 8}


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
        },
        "text": {"color": colour["ink"], "fontSize": 11},
        "title": {"color": colour["ink"], "fontSize": 13, "anchor": "start", "fontWeight": 600},
        "view": {"stroke": None},
    }
