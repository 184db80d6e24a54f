"""The page's charts as files for a paper: SVG, and PNG at twice the size; the light theme."""

import json
import re
from pathlib import Path
from typing import Any

from scoremode.errors import RunFolderError
from scoremode.lib.files import atomic
from scoremode.report.page.bundle import plotting
from scoremode.report.page.chart_rows import identities, lines, own_rows, quants
from scoremode.report.page.charts import Chart
from scoremode.report.page.definition import ReportData
from scoremode.report.page.figures import figures
from scoremode.report.page.markup import visible
from scoremode.report.page.theme import SHAPES, TINTS, plot_config

__all__ = ["write_plots"]

_WIDTH = 520
_SCALE = 2.0


def write_plots(report: ReportData, folder: Path) -> list[Path]:
    """Writes each chart of each section into `folder`, made where it is missing; returns the files.

    A file is there whole or not at all. Raises UsageError where the extra is missing, RunFolderError
    for a folder that can't be written.
    """
    renderer = plotting()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be written: {error.strerror}") from None
    written = []
    for name, spec in _plots(visible(report)):
        svg, png = folder / f"{name}.svg", folder / f"{name}.png"
        with atomic(svg) as tmp:
            tmp.write_text(renderer.vegalite_to_svg(spec), encoding="utf-8")
        with atomic(png) as tmp:
            tmp.write_bytes(renderer.vegalite_to_png(spec, scale=_SCALE))
        written += [svg, png]
    return written


def _plots(report: ReportData) -> list[tuple[str, str]]:
    """A file's name without its end → the spec with its data, as JSON."""
    found = []
    for section in report["sections"]:
        who = identities(section)
        own = own_rows(section, who)
        legend = [who[run["id"]] for run in quants(section)]
        for figure in figures(section, own):
            for choice, spec in figure.choices.items():
                data = spec["data"]["name"]
                rows = own[data] if data in own else lines(section, data, who)
                whole = _whole(spec, rows, legend, named="text" in json.dumps(spec["layer"]))
                words = [figure.name, choice] if len(figure.choices) > 1 else [figure.name]
                if len(report["sections"]) > 1:
                    words.insert(0, section["id"])
                name = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(words)).strip("-").lower()
                found.append((name, json.dumps(whole)))
    return found


def _whole(spec: Chart, rows: list[Any], legend: list[Any], *, named: bool) -> Chart:
    """A spec with its data, of a fixed width; with a legend where names don't stand in it."""
    whole = spec | {
        "width": _WIDTH,
        "autosize": {"type": "pad"},
        "datasets": {spec["data"]["name"]: rows},
        "config": plot_config(),
    }
    if named or spec["data"]["name"] == "percentiles":
        return whole
    tinted = [one for one in legend if one["tint"] < len(TINTS) - 1]
    names = {str(one["tint"]): one["short"] for one in tinted}
    words = f"({json.dumps(names)})[datum.label] || 'others'"
    values = [one["tint"] for one in tinted]
    if len(tinted) < len(legend):
        values.append(len(TINTS) - 1)
    shapes = [SHAPES[tint] for tint in values]
    colours = [plot_config()["range"]["category"][tint] for tint in values]
    told = {"values": values, "labelExpr": words, "title": None}
    layers = json.loads(json.dumps(whole["layer"]))
    for layer in layers:
        for channel, of in (("shape", shapes), ("color", colours)):
            if channel in layer["encoding"]:
                layer["encoding"][channel] |= {
                    "legend": told,
                    "scale": {"domain": values, "range": of},
                }
    return whole | {"layer": layers}
