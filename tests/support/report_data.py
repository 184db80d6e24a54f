"""Made data of a report, as definition.py has it: quants of 2 to 8 bits, the smaller the worse."""

import itertools
import math
from typing import Any, cast

import numpy as np

from scoremode.report.page.charts import CHARTS, ChartKind, rounded
from scoremode.report.page.comparison import FRONTIERS
from scoremode.report.page.definition import ReportData

# The page's figures, in its order.
FIGURES = [
    *(quality for quality, kind in FRONTIERS.items() if kind.own is not None),
    *("percentiles", "tail"),
    *(kind.id for kind in CHARTS.values() if kind.draw),
]
SIZES = (("bytes", "bytes"), ("bits_body", "bits/weight"), ("bits_file", "bits/weight"))


def measured(value: float, spread: float, n: int = 22_716) -> dict[str, Any]:
    return {"value": value, "lower": value * (1 - spread), "upper": value * (1 + spread), "n": n,
            "note": None}  # fmt: skip


def provenance(name: str) -> dict[str, Any]:
    return {
        "command": ["scoremode", "kld", f"models/{name}", "--reference", "models/base"],
        "created": "2026-11-20T10:00:00Z",
        "finished": "2026-11-20T10:01:00Z",
        "versions": {"scoremode": "0.1.0", "torch": "2.13.0+cpu"},
        "hashes": {"record": "ab" * 32, "scores.parquet": "cd" * 32},
        "files": {"config.json": "ef" * 32},
        "more_files": 2,
        "seconds": {"score": 40.5, "total": 61.25},
        "facts": [{"label": "arithmetic", "value": "weights"}],
    }


def run(i: int, bits: float, name: str, noise: float) -> dict[str, Any]:
    kld = noise * 2.5 * 4.0 ** (1.5 - bits)
    size = int(135e6 * bits / 8) + 9_000_000
    ratio = 1 + kld * 0.9 - 0.0004
    ends = {"lower": ratio - 0.1 * kld - 0.0006, "upper": ratio + 0.1 * kld + 0.0006}
    return {
        "id": f"r{i}", "model": i, "name": name, "source": f"models/{name}",
        "folder": f"runs/{name}", "is_base": False, "format": f"W{bits:g}A16", "bytes": size,
        "gib": size / 2**30, "mib": size / 2**20, "parameters": 134_515_008, "bits_body": bits,
        "bits_file": bits + 0.7, "ppl": measured(34.1 * ratio, 0.08),
        "nll": measured(3.53 + math.log(ratio), 0.02), "bits_per_byte": measured(1.1, 0.02),
        "ppl_ratio": {**measured(ratio, 0), **ends}, "kld": measured(kld, 0.06),
        "kld_median": measured(kld * 0.6, 0.05), "kld_p90": measured(kld * 2.3, 0.05),
        "kld_p99": measured(kld * 5, 0.1), "kld_p999": measured(kld * 10, 0.2), "kld_max": kld * 40,
        "acceptance": measured(1 - min(0.5, kld**0.5 * 0.5), 0.003),
        "top1": measured(1 - min(0.6, kld**0.5 * 0.6), 0.004),
        "confident_flips": measured(min(0.01, kld * 0.1), 0.3),
        "flips": measured(min(0.6, kld**0.5 * 0.6), 0.02), "lost": measured(0.02, 0.1),
        "gained": measured(0.01, 0.1), "noise": None,
        "ranks": (i + 1, i + 1), "verdicts": [], "provenance": provenance(name),
    }  # fmt: skip


def base() -> dict[str, Any]:
    return {
        "name": "base", "source": "models/base", "kind": "stored", "sha256": "1f" * 32, "run": None,
        "bytes": 269_060_552, "gib": 269_060_552 / 2**30, "mib": 269_060_552 / 2**20,
        "bits_body": 16.0, "bits_file": 16.0, "dtype": "bfloat16", "ppl": measured(34.1, 0.08),
        "nll": measured(3.53, 0.02),
    }  # fmt: skip


def axis(label: str, unit: str, scale: str) -> dict[str, Any]:
    return {"label": label, "unit": unit, "scale": scale, "least": None, "most": None}


def frontier(x: str, unit: str, y: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    points = []
    for one in sorted(runs, key=lambda one: (one[x], one[y]["value"])):
        by = [
            other["id"] for other in runs
            if other is not one and other[x] <= one[x] and other[y]["value"] <= one[y]["value"]
        ]  # fmt: skip
        points.append({"run": one["id"], "x": one[x], "y": one[y]["value"], "lower": one[y]["lower"],
                       "upper": one[y]["upper"], "standing": "beaten" if by else "frontier", "by": by,
                       "same_as": []})  # fmt: skip
    return {
        "id": f"{x}/{y}", "x": axis(x, unit, "linear"), "y": axis(y, "nats", "log"), "points": points,
        "line": [p["run"] for p in points if p["standing"] == "frontier"],
        "base": (base()[x], 0.0), "tested": "kld",
    }  # fmt: skip


def series(one: dict[str, Any], x: list[float], y: list[float]) -> dict[str, Any]:
    lower, upper = ([rounded(v * by) for v in y] for by in (0.9, 1.1))
    return {"run": one["id"], "x": [rounded(v) for v in x], "y": [rounded(v) for v in y],
            "lower": lower, "upper": upper, "n": [1000] * len(x)}  # fmt: skip


def chart(kind: ChartKind, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the row's chart may be: ten points a run, of a ladder two."""
    if kind.id == "ladder":
        bins = [{"name": one["name"], "lower": None, "upper": None, "share": None} for one in runs]
        steps = [
            series(one, [float(i)] * 2, [float(one["kld"]["value"]) * f for f in (1, 0.6)])
            for i, one in enumerate(runs)
        ]
        return dict(kind.chart(cast(Any, bins), cast(Any, steps)))
    scale = kind.x["scale"]
    xs = {"log": np.geomspace(1, 2000, 10), "linear": np.arange(0.05, 1, 0.1)}
    fall = np.linspace(1.6, 0.3, 10)
    most = kind.y["most"] or math.inf
    drawn = [
        series(one, xs.get(scale, np.arange(10.0)).tolist(),
               [min(float(one["kld"]["value"] * f), most) for f in fall]) for one in runs
    ]  # fmt: skip
    bins = [{"name": f"bin {i}", "lower": None, "upper": None, "share": 0.1} for i in range(10)]
    return dict(kind.chart(cast(Any, bins), cast(Any, drawn)))


def tail(one: dict[str, Any]) -> dict[str, Any]:
    shares = np.geomspace(0.9, 1 / 22_716, 40)
    x = [float(one["kld"]["value"] * 0.5 * np.log(1 / s) ** 2 + 1e-9) for s in shares]
    found = series(one, x, [float(s) for s in shares])
    for end in ("lower", "upper"):
        found[end] = [v if i % 5 == 0 else None for i, v in enumerate(found[end])]
    return found | {"error": 0.01, "below": 12}


def matrix(runs: list[dict[str, Any]]) -> dict[str, Any]:
    pairs = []
    for a, b in itertools.combinations(runs, 2):
        value = a["kld"]["value"] - b["kld"]["value"]
        spread = 0.0004 + 0.02 * b["kld"]["value"]
        sure = abs(value) > spread
        words = ("lower" if value < 0 else "higher") if sure else "not distinguishable"
        pairs.append({"a": a["id"], "b": b["id"], "value": value, "lower": value - spread,
                      "upper": value + spread, "ratio": None, "p": 1e-4 if sure else 0.4,
                      "p_holm": 0.002 if sure else 1.0, "verdict": words})  # fmt: skip
    return {"of": "kld", "unit": "nats", "order": [one["id"] for one in runs], "pairs": pairs,
            "note": None}  # fmt: skip


def worst(runs: list[dict[str, Any]], token: str) -> list[dict[str, Any]]:
    found = []
    for i in range(6):
        text = token if i == 0 else (" will", "\n", " 1984", "\u202eevil", "שלום", " the")[i]
        tops = [{"id": 7 + k % 3, "text": (" would", "s", token)[k % 3]} for k in range(len(runs))]
        found.append({
            "window": i, "position": 17 + i, "index": 900 * i, "context": f" of the {token} then\tit",
            "target": {"id": 5, "text": text}, "base_p": 0.41, "base_top1": {"id": 5, "text": text},
            "base_top1_p": 0.41, "worst_of": [runs[-1]["id"]], "runs": [one["id"] for one in runs],
            "p": [0.4 / (k + 1) for k in range(len(runs))], "top1": tops,
            "top1_p": [0.5] * len(runs), "kld": [one["kld"]["value"] * (9 - i) for one in runs],
        })  # fmt: skip
    return found


def attribution(one: dict[str, Any]) -> dict[str, Any]:
    def cell(value: float) -> dict[str, Any]:
        return {"value": value, "lower": value / 2, "upper": value * 2, "n": 22_716, "note": None}

    cells = [[cell(0.001 * (i + 1) * (k + 1)) for k in range(2)] for i in range(3)]
    rows = [{"name": f"layer {i}", "cells": row} for i, row in enumerate(cells)]
    return {
        "run": one["id"], "by": "module", "heads": ["q_proj", "down_proj"],
        "rows": [*rows, {"name": "lm_head", "cells": [None, cell(0.002)]}],
        "whole": cell(0.02), "sum_share": 1.04, "unfit": [],
    }  # fmt: skip


def section(number: int, count: int, names: list[str], token: str) -> dict[str, Any]:
    bits = np.linspace(8, 2, count) if count > 1 else np.array([4.5])
    noise = np.random.default_rng(0).uniform(0.6, 1.9, count).tolist()
    runs = [run(i, float(b), names[i], noise[i]) for i, b in enumerate(bits)]
    runs.sort(key=lambda one: one["kld"]["value"])
    return {
        "id": f"s{number}", "title": f"wiki.test.raw, protocol gptq ({number})",
        "text": {"name": "wiki.test.raw"}, "text_name": "wiki.test.raw",
        "text_words": "wiki.test.raw, 1,290,590 bytes",
        "protocol": {"name": "gptq", "sha256": "9a" * 32}, "protocol_words": "gptq: windows of 2,048",
        "plan": {"scored": 22_716, "windows": 12, "sha256": "7b" * 32}, "base": base(),
        "ranked_by": "kld", "blocks": 22, "block_length": 1024,
        "interval_words": "95 %, from 22 blocks of 1,024 tokens", "runs": runs,
        "frontiers": [frontier(x, unit, y, runs) for x, unit in SIZES
                      for y, kind in FRONTIERS.items() if kind.own is not None],
        "tail": [tail(one) for one in runs],
        "charts": [chart(kind, runs) for kind in CHARTS.values()],
        "matrices": [matrix(runs)], "worst": worst(runs, token), "tasks": {},
        "attributions": [attribution(runs[0])],
        "differing": [], "notes": ["runs/old has no hashes"],
    }  # fmt: skip


def report_data(
    count: int = 6,
    *,
    sections: int = 1,
    long: bool = False,
    token: str = "<script>alert(1)</script>",
) -> ReportData:
    """A report of `count` quants in each of `sections`, with `token` among its worst."""
    names = [f"Q{i % 7 + 2}_K_{'SML'[i % 3]}{i}" for i in range(count)]
    if long:
        names = [f"SmolLM2-135M-Instruct-{n}-imatrix-calibrated-on-wikitext-2" for n in names]
    made = {
        "schema": "scoremode.report", "schema_version": 1, "title": f"{count} quants of base",
        "finished": "2026-11-20T10:01:00Z", "made_with": "0.1.0",
        "sections": [section(i, count, names, token) for i in range(sections)],
    }  # fmt: skip
    return cast(ReportData, made)
