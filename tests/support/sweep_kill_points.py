"""For features/test_sweep.py: a sweep killed at touches of the disk, and called again.

A sweep of two models is run in a forked child that ends, without a word, before its n-th touch of a
file of the sweep; the same call in another child must then end as one that nobody kills. Prints what
was wrong, and how many points there were.
"""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from support.kill_points import EVENTS, KILLED, in_child, touches
from support.sweeps import pair, scores_of, sweep_request

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import find_runs
from scoremode.runs.sweep.manifest import read_manifest
from scoremode.runs.sweep.sweep import run_sweep


def counted(folder: Path, work) -> int:
    """How often `work` touches files under `folder`, in a child."""
    reader, writer = os.pipe()

    def count() -> None:
        found = [0]

        def hook(event: str, arguments: tuple) -> None:
            if event in EVENTS and any(
                isinstance(a, str | os.PathLike) and os.fspath(a).startswith(os.fspath(folder))
                for a in arguments
            ):
                found[0] += 1

        sys.addaudithook(hook)
        work()
        os.write(writer, str(found[0]).encode())

    if in_child(count):
        sys.exit("the sweep that nobody kills fails")
    return int(os.read(reader, 20))


def kill_and_go_on(
    work: Path,
    points: int,
    run: Callable[[Path], None],
    facts: Callable[[Path], dict],
    sound: Callable[[dict], bool],
) -> None:
    """Runs `run` whole, and then killed at so many touches and run again, each in a folder of its own;
    prints what is other than the whole one's `facts`, which must be `sound`."""
    count = counted(work / "whole", lambda: run(work / "whole"))
    wanted = facts(work / "whole")
    assert sound(wanted), wanted
    done = 0
    for point in range(points):
        at, output = (2 * point + 1) * count // (2 * points), work / f"{point}"

        def killed(output: Path = output, at: int = at) -> None:
            touches(output, at)
            run(output)

        code = in_child(killed)
        if code != KILLED:
            print(f"killed at {at}: ended with {code}")
        if in_child(lambda output=output: run(output)):
            print(f"killed at {at}: can't go on")
        elif (found := facts(output)) != wanted:
            print(f"killed at {at}: other {[k for k in wanted if found[k] != wanted[k]]}")
        shutil.rmtree(output)
        done += 1
    print(f"{done} points")


def facts(output: Path) -> dict:
    """What matters of a finished sweep: its entries, and each run's scores and metrics."""
    manifest = read_manifest(output)
    assert manifest is not None
    found = {}
    for entry in manifest["entries"]:
        folder = output / str(entry["folder"])
        record = load_run(folder)[0].document
        found[entry["model"]] = entry["status"], scores_of(folder), record["metrics"]
    leftovers = sorted(p.name for p in output.rglob("*.scoremode-tmp")) + sorted(
        p.name for p in output.rglob("parts")
    )
    unfinished = [r["status"] for _, r in find_runs(output) if r["status"] != "done"]
    return {"runs": found, "left": leftovers, "unfinished": unfinished,
            "count": len(list(find_runs(output)))}  # fmt: skip


def main(work: Path, points: int) -> None:
    torch.set_num_threads(1)
    os.fsync = lambda _: None
    import scoremode.demo

    demo = Path(scoremode.demo.__file__).parent
    quant = work / "quant"
    quantize_folder(demo / "model", quant, VARIANTS[1])
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:1200]

    def run(output: Path) -> None:
        outcome = run_sweep(
            sweep_request(output, [quant, demo / "model"], pair(demo / "model", text, 32))
        )
        assert outcome.failed == 0, outcome.manifest["entries"]

    kill_and_go_on(work, points, run, facts, lambda f: not f["left"] and not f["unfinished"])
