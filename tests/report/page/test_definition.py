"""An instance of the report's data against the types that say what it is."""

import itertools
import types
from typing import (
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import pytest

from scoremode.report.page.charts import CHARTS
from scoremode.report.page.definition import ReportData


def misfits(value: Any, shape: Any, place: str = "") -> list[str]:
    """Places in `value` that aren't as its type says."""
    if is_typeddict(shape):
        hints = get_type_hints(shape, include_extras=True)
        if not isinstance(value, dict):
            return [f"{place}: no object"]
        needed = {name for name, hint in hints.items() if get_origin(hint) is not NotRequired}
        wrong = [f"{place}.{name}: missing" for name in needed - value.keys()]
        wrong += [f"{place}.{name}: unknown" for name in value.keys() - hints.keys()]
        inside = get_type_hints(shape)
        for name in value.keys() & hints.keys():
            wrong += misfits(value[name], inside[name], f"{place}.{name}")
        return wrong
    origin, inner = get_origin(shape), get_args(shape)
    if shape is Any:
        return []
    if origin in (Union, types.UnionType):
        found = [misfits(value, one, place) for one in inner]
        return [] if [] in found else min(found, key=len)
    if origin is Literal:
        return [] if value in inner else [f"{place}: {value!r}"]
    if origin is list:
        if not isinstance(value, list):
            return [f"{place}: no list"]
        return [w for i, one in enumerate(value) for w in misfits(one, inner[0], f"{place}.{i}")]
    if origin is tuple:
        if not isinstance(value, tuple) or len(value) != len(inner):
            return [f"{place}: no tuple of {len(inner)}"]
        return [w for i, t in enumerate(inner) for w in misfits(value[i], t, f"{place}.{i}")]
    if origin is dict:
        return [w for k, one in value.items() for w in misfits(one, inner[1], f"{place}.{k}")]
    fits = type(value) is shape or (shape is float and type(value) is int)
    return [] if fits else [f"{place}: {type(value).__name__} is no {shape}"]


def test_every_field_is_what_its_type_says(made_report):
    assert misfits(made_report.report, ReportData) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda report: report.pop("title"), ".title: missing"),
        (lambda report: report.update(more=1), ".more: unknown"),
        (lambda report: report.update(schema_version="1"), ".schema_version: str is no"),
        (lambda report: report.update(sections=[1]), ".sections.0: no object"),
    ],
)
def test_what_is_not_is_found(made_report, change, words):
    changed = dict(made_report.report)
    change(changed)
    assert any(found.startswith(words) for found in misfits(changed, ReportData))


def test_arrays_are_as_long_as_their_chart(made_report):
    section = made_report.section
    for chart in section["charts"]:
        assert {s["run"] for s in chart["series"]} == {made_report.id_of(n) for n in "abcde"}
        for series in chart["series"]:
            lengths = {len(series[name]) for name in ("x", "y", "lower", "upper", "n")}
            assert lengths == {len(chart["bins"] or series["x"])}
    for tail in section["tail"]:
        lengths = {len(tail[name]) for name in ("x", "y", "lower", "upper", "n")}
        assert len(lengths) == 1 and lengths.pop() <= 200


def test_an_interval_holds_its_value(made_report):
    section = made_report.section
    series = [s for chart in section["charts"] for s in chart["series"]] + section["tail"]
    points = [p for s in series for p in zip(s["lower"], s["y"], s["upper"], strict=True)]
    known = [p for p in points if None not in p]
    assert len(known) > 100
    assert all(
        low <= value * (1 + 1e-6) and value <= high * (1 + 1e-6) for low, value, high in known
    )


def test_ids_name_runs_and_charts_once(made_report):
    section = made_report.section
    runs = {run["id"] for run in section["runs"]}
    named = [p["run"] for f in section["frontiers"] for p in f["points"]]
    named += [id_ for f in section["frontiers"] for p in f["points"] for id_ in p["by"]]
    named += [id_ for matrix in section["matrices"] for id_ in matrix["order"]]
    named += list(itertools.chain(*(target["runs"] for target in section["worst"])))
    assert set(named) <= runs
    ids = [chart["id"] for chart in (*section["charts"], *section["frontiers"])]
    # Without ladders, groups of a text, turns, kinds of tokens and recipes.
    assert len(set(ids)) == len(ids) == len(CHARTS) - 5 + 9
