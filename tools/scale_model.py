"""The time that a run takes, by the formula of docs/devices.md, beside what was measured.

    python tools/scale_model.py                       # the table of docs/log.md, in Markdown
    python tools/scale_model.py --tokens 300000 --speed 47501 --gpus 4

`scale_model.json` beside has every measured point, with its place in the docs. The second form asks
for one run: tokens of its windows, tokens a second of one GPU (a steady speed that you have measured),
seconds until the first window, GPUs; --price multiplies by what a GPU costs you an hour.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POINTS = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Shape:
    """A dense Llama's shape: numbers of its config.json."""

    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int

    def flops(self, window: int) -> float:
        """Floating-point operations a token, of windows of so many tokens, all scored: two a weight of
        each linear and of the head, and causal attention, which looks back half a window on average."""
        width = self.heads * self.head_size
        attention = 2 * self.hidden * width + 2 * self.hidden * self.kv_heads * self.head_size
        linears = self.layers * (attention + 3 * self.hidden * self.mlp)
        lookback = 4 * self.layers * width * window / 2
        return 2 * (linears + self.hidden * self.vocabulary) + lookback

    def reference_bytes(self, windows: int, window: int, *, head: bool) -> int:
        """Bytes of a kept base in 16 bits: a state for each target, and the head where it is kept."""
        rows = windows * (window - 1) + (self.vocabulary if head else 0)
        return 2 * self.hidden * rows


def seconds(start: float, tokens: float, speed: float, gpus: int = 1, fixed: float = 0.0) -> float:
    """Seconds of a run of `tokens` in windows at `speed` tokens a second and GPU; `start` and `fixed`,
    in seconds, are what more GPUs don't shorten."""
    return start + fixed + tokens / (speed * gpus)


def rows_of(points: dict[str, Any]) -> list[tuple[str, float, float, str]]:
    """What was measured, predicted and measured values with their unit in the words, and where."""
    shapes = {name: Shape(**values) for name, values in points["shapes"].items()}
    fitted = points["fitted"]
    speed = fitted["steady"]["tokens_a_second"]
    rate = speed * shapes["8B"].flops(2048)
    rows = []
    for point in points["speeds"]:
        predicted = rate / shapes[point["shape"]].flops(point["window"])
        rows.append((f"{point['what']}: tokens/s", predicted, point["measured"], point["from"]))
    (first, last), (begin, end) = fitted["line"]["windows"], fitted["line"]["seconds"]
    slope = (end - begin) / (last - first)
    for point in points["processes"]:
        predicted = seconds(begin - slope * first, point["windows"], 1 / slope)
        rows.append((f"{point['what']}: seconds", predicted, point["measured"], point["from"]))
    few = fitted["fixed"]
    fixed = few["seconds"] - few["windows"] * few["a_window"]
    for point in points["ratios"]:
        one, more = (
            seconds(0, point["windows"], 1 / few["a_window"], gpus, fixed)
            for gpus in (1, point["gpus"])
        )
        rows.append(
            (f"{point['what']}: times as fast", one / more, point["measured"], point["from"])
        )
    for point in points["references"]:
        size = shapes[point["shape"]].reference_bytes(
            point["windows"], point["window"], head=point["head"]
        )
        rows.append((f"{point['what']}: GB", size / 1e9, point["measured"], point["from"]))
    return rows


def table(points: dict[str, Any]) -> str:
    """The rows in Markdown, with what the prediction is off."""
    lines = ["| | predicted | measured | off | from |", "|---|---|---|---|---|"]
    for what, predicted, measured, place in rows_of(points):
        digits = ",.0f" if measured >= 1000 else ".2f"
        numbers = " | ".join(format(value, digits) for value in (predicted, measured))
        lines.append(f"| {what} | {numbers} | {predicted / measured - 1:+.1%} | {place} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=float, help="tokens of all windows")
    parser.add_argument("--speed", type=float, help="tokens a second of one GPU")
    parser.add_argument("--start", type=float, default=0.0, help="seconds until the first window")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--price", type=float, help="what a GPU costs an hour, in your money")
    given = parser.parse_args()
    if given.tokens is None or given.speed is None:
        print(table(json.loads(POINTS.read_text(encoding="utf-8"))))
        return
    took = seconds(given.start, given.tokens, given.speed, given.gpus)
    print(f"{took:.1f} s, {took * given.gpus / 3600:.3f} GPU hours")
    if given.price is not None:
        print(f"{took * given.gpus / 3600 * given.price:.2f} at {given.price:g} a GPU hour")


if __name__ == "__main__":
    main()
