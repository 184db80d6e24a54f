"""Attributions of a section's runs: heat maps of layer × kind, and curves of recipes."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from scoremode.errors import RunFolderError
from scoremode.report.page.definition import Attribution, Measured
from scoremode.report.page.drawn import Axis, Chart, Series
from scoremode.report.page.gathered.numbers import measured_at, rounded
from scoremode.results.attribution import read_attribution
from scoremode.results.folders.store import read_json, seal_of
from scoremode.results.record.shape import COUNT, NUMBER, misfit

__all__ = ["attributions", "recipe_curves"]

# Attributions of one run, the finest first: of several the first one is shown.
_BY = ("module", "layer", "kind")
_REST = "all of it"


def attributions(folders: Mapping[str, Path]) -> list[Attribution]:
    """A heat map of each run that was attributed, by its id. Raises RunFolderError for one that is not
    as it was written."""
    found = []
    for run, folder in folders.items():
        paths = (folder / f"attribution-{by}.json" for by in _BY)
        path = next((path for path in paths if os.path.lexists(path)), None)
        if path is not None:
            found.append(_map(run, read_attribution(path)))
    return found


def _map(run: str, value: Mapping[str, Any]) -> Attribution:
    """Rows of layers and columns of kinds; of what lies in no layer a row by itself."""
    rows: dict[str, dict[str, Measured | None]] = {}
    heads: dict[str, None] = {}
    for unit in value["units"]:
        if value["by"] == "kind":
            row, head = "all layers", unit["name"]
        elif value["by"] == "layer" or unit["layer"] is None:
            row, head = unit["name"], _REST
        else:
            row, head = f"layer {unit['layer']}", unit["name"].rpartition(".")[2]
        heads[head] = None
        rows.setdefault(row, {})[head] = measured_at(unit, "alone")
    whole = measured_at(value, "kld")
    assert whole is not None
    return {
        "run": run,
        "by": value["by"],
        "heads": list(heads),
        "rows": [
            {"name": name, "cells": [cells.get(head) for head in heads]}
            for name, cells in rows.items()
        ],
        "whole": whole,
        "sum_share": value["additivity"]["alone"]["share"],
        "unfit": value["unfit"],
    }


def _axis(label: str, unit: str, scale: Literal["linear", "log"]) -> Axis:
    return {"label": label, "unit": unit, "scale": scale, "least": None, "most": None}


def _read_recipe(path: Path) -> dict[str, Any]:
    """A recipe's search in a run's folder. Raises RunFolderError for what isn't as it was written."""
    value = read_json(path)
    point = {"predicted": NUMBER, "bits_per_weight": NUMBER}
    if not isinstance(value, dict) or misfit(value, {"curve": [point], "measured": {"n": COUNT}}):
        raise RunFolderError(f"{path}: is no recipe's search of scoremode's")
    if value.get("sha256") != seal_of(value):
        raise RunFolderError(f"{path}: was changed after it was written: its sha256 is another")
    return value


def recipe_curves(folders: Mapping[str, Path]) -> list[Chart]:
    """The curve of each recipe's search: predicted KLD against bits, all in one chart; none without.
    Raises RunFolderError."""
    series: list[Series] = []
    for run, folder in folders.items():
        if not os.path.lexists(path := folder / "recipe.json"):
            continue
        value = _read_recipe(path)
        # A choice of the base alone is at 0, which a logarithmic axis has no place for.
        points = [point for point in value["curve"] if point["predicted"] > 0]
        nothing: list[float | None] = [None] * len(points)
        series.append(
            {
                "run": run,
                "x": [rounded(point["bits_per_weight"]) for point in points],
                "y": [rounded(point["predicted"]) for point in points],
                "lower": nothing,
                "upper": nothing,
                "n": [value["measured"]["n"]] * len(points),
            }
        )
    if not series:
        return []
    return [
        {
            "id": "recipe",
            "title": "The best choice of formats for every size",
            "words": "Predicted KLD of the best choice of a format for each part, from the quants that "
            "a recipe was searched in: the sum of what the parts do alone. The choice that was "
            "measured is a run of its own.",
            "kind": "line",
            "x": _axis("bits per weight", "", "linear"),
            "y": _axis("predicted KLD", "nats", "log"),
            "bins": None,
            "series": series,
        }
    ]
