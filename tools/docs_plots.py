"""Draw the pictures of docs/statistics.md, as small SVG files, from a demo's runs.

    scoremode demo -o DEMO
    python tools/docs_plots.py DEMO docs/plots

All numbers are of the runs; nothing is drawn that no run has. Colours are of Okabe and Ito's set, which
the colour-blind can tell, on lines and words that are legible on white and on black.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from scoremode.report.facts import text_name
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.paths import run_folders
from scoremode.results.labels import base_of
from scoremode.results.record.definition import Done
from scoremode.results.scores import Scores
from scoremode.results.statistics.bootstrap import perplexity

INK, COLOURS = "#808080", ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 404, 110, 46, 78
Scale = Callable[[float], float]
Run = tuple[Done, Scores]


class Picture:
    """An SVG with axes from (low, high) in x and y, each linear or logarithmic."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], *, log: str = ""):
        self.parts: list[str] = []
        self.x = scale(x, (LEFT, WIDTH - 20), log="x" in log)
        self.y = scale(y, (HEIGHT - BOTTOM, TOP), log="y" in log)
        frame = f"M{LEFT},{TOP}V{HEIGHT - BOTTOM}H{WIDTH - 20}"
        self.parts.append(f'<path d="{frame}" fill="none" stroke="{INK}"/>')

    def text(
        self, x: float, y: float, words: str, anchor: str = "middle", colour: str = INK
    ) -> None:
        """Writes `words` at pixels (x, y)."""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">'
            f"{escape(words)}</text>"
        )

    def axes(
        self, x: Iterable[float], y: Iterable[float], words: str, above: str = "", form: str = "g"
    ) -> None:
        """Ticks at these values, `words` below, and `above` the y axis."""
        for value in x:
            self.text(self.x(value), HEIGHT - BOTTOM + 18, f"{value:{form}}")
        for value in y:
            self.text(LEFT - 8, self.y(value) + 4, f"{value:g}", "end")
        self.text((LEFT + WIDTH) / 2, HEIGHT - 6, words)
        if above:
            self.text(LEFT - 30, TOP - 16, above, "start")

    def line(self, points: Sequence[tuple[float, float]], colour: str, dash: str = "") -> None:
        path = "M" + "L".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in points)
        more = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{more}/>'
        )

    def dot(self, x: float, y: float, colour: str) -> None:
        self.parts.append(
            f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="4" fill="{colour}"/>'
        )

    def write(self, path: Path, title: str, run: Run) -> None:
        """Writes it under a title and, as the report does, the base, text and protocol of `run`."""
        record, _ = run
        assert record.reference
        base, text = base_of(record.reference).name, text_name(record.corpus)
        self.text(8, 18, title, "start")
        self.text(8, 38, f"Quants of {base} on {text}, protocol {record.protocol.name}", "start")
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'font-family="system-ui,sans-serif" font-size="13"><title>{escape(title)}</title>'
        )
        path.write_text("\n".join([head, *self.parts, "</svg>\n"]), encoding="utf-8")


def scale(values: tuple[float, float], pixels: tuple[float, float], *, log: bool) -> Scale:
    """Values → pixels."""
    low, high = map(math.log, values) if log else values
    begin, end = pixels
    return lambda v: begin + (end - begin) * ((math.log(v) if log else v) - low) / (high - low)


def paired(runs: dict[str, Run], path: Path) -> None:
    """Each model's perplexity and its ratio to the dense one's, both with intervals, as shares."""
    names = [
        n for n in ("W8A16", "NVFP4A16", "W4A16-g32", "W4A16-channel", "W3A16-g32") if n in runs
    ]
    picture = Picture((-25, 25), (len(names) - 0.5, -0.6))
    picture.axes(range(-20, 21, 10), (), "95 % interval, % around the value", form="+d")
    for row, name in enumerate(names):
        metrics = runs[name][0].metrics
        picture.text(LEFT - 8, picture.y(row) + 4, name, "end")
        for metric, colour, lift in (("ppl", COLOURS[1], -0.13), ("ppl_ratio", COLOURS[0], 0.13)):
            value, interval = metrics[metric].value, metrics[metric].ci95
            assert interval is not None
            ends = [(100 * (end / value - 1), row + lift) for end in interval]
            picture.line(ends, colour)
            picture.dot(0, row + lift, colour)
    picture.text(LEFT, TOP - 14, "PPL", "start", COLOURS[1])
    picture.text(LEFT + 60, TOP - 14, "PPL / dense PPL", "start", COLOURS[0])
    picture.write(path, "Intervals of perplexities and of their ratios", runs["dense"])


def tail(runs: dict[str, Run], path: Path) -> None:
    """Share of tokens whose KLD is above x, both axes logarithmic."""
    picture = Picture((1e-4, 10), (5e-5, 1.2), log="xy")
    picture.axes((1e-3, 1e-2, 0.1, 1, 10), (1e-4, 1e-3, 1e-2, 0.1, 1), "KLD of a token, nats",
                 "share of tokens above it")  # fmt: skip
    names = ("W8A16", "NVFP4A16", "W4A16-g32", "W3A16-g32", "W2A16-g32")
    for name, colour in zip(names, COLOURS, strict=True):
        against = runs[name][1].against
        assert against is not None
        kld = np.sort(against.kld)[::-1]
        share = np.arange(1, len(kld) + 1) / len(kld)
        at = np.unique(np.geomspace(1, len(kld), 120).astype(int)) - 1
        points = [(float(kld[i]), float(share[i])) for i in at if 1e-4 < kld[i] < 10]
        picture.line(points, colour)
        # Where no curve goes.
        picture.text(276, TOP + 156 + 20 * names.index(name), name, "start", colour)
    picture.write(path, "How many tokens are how far off", runs["dense"])


def size(runs: dict[str, Run], path: Path) -> None:
    """Mean KLD against bits per weight, with the frontier."""
    points = []
    for name, (record, _) in runs.items():
        if "kld" in record.metrics and record.metrics["kld"].value > 0:
            bits = record.checkpoint.bits_per_weight.body
            points.append((bits, record.metrics["kld"], name))
    points.sort(key=lambda p: (p[0], p[1].value))
    picture = Picture((2, 9), (1e-4, 1.5), log="y")
    picture.axes(range(2, 10), (1e-4, 1e-3, 1e-2, 0.1, 1), "bits per weight", "mean KLD, nats")
    best, frontier = math.inf, []
    for bits, kld, _ in points:
        if kld.value < best:
            best = kld.value
            frontier.append((bits, best))
    picture.line(frontier, INK, "4 4")
    for bits, kld, name in points:
        on = (bits, kld.value) in frontier
        colour = COLOURS[0] if on else COLOURS[1]
        picture.line([(bits, end) for end in kld.ci95], colour)
        picture.dot(bits, kld.value, colour)
        if on:
            picture.text(picture.x(bits) + 8, picture.y(kld.value) - 8, name, "start", colour)
    picture.write(path, "Size against KLD", runs["dense"])


def blocks(runs: dict[str, Run], path: Path) -> None:
    """Width of the dense model's interval by the length of the blocks that are drawn."""
    record, scores = runs["dense"]
    assert record.intervals
    used = record.intervals.block_length
    lengths = [2**n for n in range(13) if 2**n <= used] + [used]
    points = []
    for length in lengths:
        ppl = perplexity(scores, length)["ppl"]
        assert ppl.ci95 is not None
        points.append((float(length), 50 * (ppl.ci95[1] - ppl.ci95[0]) / ppl.value))
    picture = Picture((1, 8192), (0, 1.1 * max(p[1] for p in points)), log="x")
    picture.axes((1, 8, 64, 512, 4096), range(0, int(picture_top(points)), 5),
                 "tokens of a block", "half of the interval, % of the PPL")  # fmt: skip
    picture.line(points, COLOURS[0])
    for point in points:
        picture.dot(point[0], point[1], COLOURS[0])
    picture.text(picture.x(used), picture.y(points[-1][1]) - 12, "used", "middle", COLOURS[0])
    picture.text(
        picture.x(1) + 10, picture.y(points[0][1]) + 20, "tokens as if independent", "start"
    )
    picture.write(path, "The dense model's interval by the length of a block", runs["dense"])


def picture_top(points: Sequence[tuple[float, float]]) -> float:
    return 1.1 * max(point[1] for point in points) + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", type=Path)
    parser.add_argument("plots", type=Path)
    args = parser.parse_args()
    runs: dict[str, Run] = {}
    for folder in run_folders([args.demo / "runs"]):
        record, scores = load_run(folder)
        runs[Path(record.checkpoint.source).name] = (record, scores)
    args.plots.mkdir(parents=True, exist_ok=True)
    for draw in (paired, tail, size, blocks):
        draw(runs, args.plots / f"{draw.__name__}.svg")


if __name__ == "__main__":
    main()
