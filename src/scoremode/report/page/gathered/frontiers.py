"""Size against quality: which runs no other one beats, and which of that the text can tell."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from scoremode.report.page.definition import Base, Matrix, Run
from scoremode.report.page.drawn import Axis, Frontier, Point, Standing

__all__ = ["frontiers"]

_SIZES = {
    "bytes": ("size of the model's files", "bytes"),
    "bits_body": ("bits per quantized weight", "bits"),
    "bits_file": ("bits per weight, of all bytes", "bits"),
}
# Key → label, unit, the base's own, the matrix that tests it.
_QUALITIES: dict[str, tuple[str, str, float | None, Literal["kld", "nll"] | None]] = {
    "kld": ("mean KLD", "nats", 0.0, "kld"),
    "ppl_ratio": ("PPL / base's PPL", "", 1.0, "nll"),
    "kld_p999": ("KLD that 1 target in 1,000 exceeds", "nats", 0.0, None),
    "ppl": ("PPL", "", None, "nll"),
}

# a, b → verdict on a.
Tests = Mapping[tuple[str, str], str]


def frontiers(runs: Sequence[Run], base: Base | None, matrices: Sequence[Matrix]) -> list[Frontier]:
    """A chart for each size and each quality that any run has."""
    tests: dict[str, dict[tuple[str, str], str]] = {}
    for matrix in matrices:
        known = tests.setdefault(matrix["of"], {})
        for pair in matrix["pairs"]:
            other = {"lower": "higher", "higher": "lower"}
            known[pair["a"], pair["b"]] = pair["verdict"]
            known[pair["b"], pair["a"]] = other.get(pair["verdict"], pair["verdict"])
    qualities = ("kld", "ppl_ratio", "kld_p999") if base else ("ppl",)
    found = []
    for quality in qualities:
        for size in _SIZES:
            compared = [run for run in runs if not run["is_base"]]
            both = [run for run in compared if run[size] is not None and run[quality] is not None]
            if both:
                tested = _QUALITIES[quality][3]
                known = tests.get(tested, {}) if tested else _by_intervals(both, quality)
                found.append(_frontier(both, base, size, quality, known))
    return found


def _frontier(
    runs: Sequence[Run], base: Base | None, size: str, quality: str, tests: Tests
) -> Frontier:
    values: dict[str, tuple[float, float]] = {
        run["id"]: (run[size], run[quality]["value"]) for run in runs
    }
    points = [_point(run, quality, values, tests) for run in runs]
    points.sort(key=lambda point: (point["x"], point["y"]))
    label, unit, own, tested = _QUALITIES[quality]
    at = base[size] if base else None
    # Divergences span decades; 0, which is the base's own, has no place on such an axis.
    is_log = own == 0 and all(point["y"] > 0 for point in points)
    return {
        "id": f"{size}/{quality}",
        "x": _axis(*_SIZES[size]),
        "y": _axis(label, unit, "log" if is_log else "linear"),
        "points": points,
        "line": [point["run"] for point in points if point["standing"] == "frontier"],
        "base": None if at is None or own is None else (at, own),
        "tested": tested,
    }


def _point(
    run: Run, quality: str, values: Mapping[str, tuple[float, float]], tests: Tests
) -> Point:
    own = run["id"]
    x, y = values[own]
    smaller = sorted((other for other in values if other != own and values[other][0] <= x),
                     key=lambda other: values[other])  # fmt: skip
    by = [o for o in smaller if values[o][1] <= y and values[o] != (x, y)]
    verdicts = {other: tests.get((own, other), "not known") for other in smaller}
    standing: Standing = "frontier"
    if by:
        told = {verdicts[other] for other in by}
        if "higher" in told:
            standing = "beaten"
        else:
            standing = "not distinguishable" if "not distinguishable" in told else "not known"
    known = all(verdict != "not known" for verdict in verdicts.values())
    measured: Any = run[quality]
    return {
        "run": own,
        "x": x,
        "y": y,
        "lower": measured["lower"],
        "upper": measured["upper"],
        "standing": standing,
        "by": by,
        "same_as": [o for o in smaller if verdicts[o] == "not distinguishable"] if known else None,
    }


def _by_intervals(runs: Sequence[Run], quality: str) -> Tests:
    """Verdicts on values without a paired test: told apart where their intervals don't meet."""
    found = {}
    for a in runs:
        for b in runs:
            one: Any = a[quality]
            other: Any = b[quality]
            if one["lower"] is None or other["lower"] is None:
                verdict = "not known"
            elif one["upper"] < other["lower"]:
                verdict = "lower"
            else:
                verdict = "higher" if one["lower"] > other["upper"] else "not distinguishable"
            found[a["id"], b["id"]] = verdict
    return found


def _axis(label: str, unit: str, scale: Literal["linear", "log"] = "linear") -> Axis:
    return {"label": label, "unit": unit, "scale": scale, "least": None, "most": None}
