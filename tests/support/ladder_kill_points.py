"""For features/test_ladder.py: a ladder killed at touches of the disk, and called again.

It is made in a forked child that ends, without a word, before its n-th touch of a file of the ladder;
the same call in another child must then end as one that nobody kills. Prints what was wrong, and how
many points there were.
"""

import json
import os
from pathlib import Path

import torch
from support.sweep_kill_points import kill_and_go_on
from support.sweeps import scores_of

from scoremode.cli.main import main as command
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.results.folders.store import find_runs


def facts(output: Path) -> dict:
    """What matters of a finished ladder: its steps, what they say, and each run's scores."""
    ladder = json.loads((output / "ladder.json").read_text())
    for step in (*ladder["steps"], *ladder["noise"]):
        # The folder's name has the time in it.
        step["after"] = step["after"] and scores_of(output / step["after"])
        step.pop("command")
    leftovers = [p.name for p in output.rglob("*.scoremode-tmp")] + [
        p.name for p in output.rglob("*") if p.name in ("parts", "states", "head.safetensors")
    ]
    unfinished = [record["status"] for _, record in find_runs(output) if record["status"] != "done"]
    return {
        "steps": ladder["steps"],
        "noise": ladder["noise"],
        "findings": ladder["findings"],
        "left": leftovers + unfinished,
        "runs": len(list(output.rglob("record.json"))),
    }


def main(work: Path, points: int) -> None:
    torch.set_num_threads(1)
    os.fsync = lambda _: None
    import scoremode.demo

    assert scoremode.demo.__file__
    demo = Path(scoremode.demo.__file__).parent
    variant = next(v for v in VARIANTS if v.name == "W8A8")
    quantize_folder(demo / "model", work / "quant", variant)
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:1200]
    asked = ["ladder", str(work / "quant"), "--reference", str(demo / "model"), "--text", text,
             "--protocol", "disjoint", "-c", "64", "--device", "cpu", "--dtype", "bfloat16",
             "--quiet"]  # fmt: skip

    def run(output: Path) -> None:
        assert command([*asked, "-o", str(output)]) == 0

    kill_and_go_on(work, points, run, facts, lambda f: not f["left"])
