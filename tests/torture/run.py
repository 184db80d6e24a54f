"""Runs the campaigns: `python -m torture.run --minutes 60`.

A case is made by its campaign, seed and number alone; `--campaigns NAME --seed S --first N --cases 1`
runs one again, as far as the machine's clock allows for kills. The last line counts all.
"""

import argparse
import collections
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

from torture import checkpoints, damage, disk, flags, forged, hub, kills, links, programs, resealed
from torture.command import Failure, Failures
from torture.world import Case, World, make_world

__all__ = ["CAMPAIGNS", "Tally", "campaign"]


@dataclass(frozen=True)
class Campaign:
    """One kind of case; `often`: how many a turn, `attempts`: how many one of them makes."""

    case: Case
    often: int = 1
    attempts: int = 1


CAMPAIGNS = {
    "kills": Campaign(kills.case),
    "damage": Campaign(damage.case, often=2),
    "forged": Campaign(forged.case, often=2),
    "links": Campaign(links.case, often=2),
    "resealed": Campaign(resealed.case, often=8),
    "disk": Campaign(disk.case),
    "hub": Campaign(hub.case),
    "flags": Campaign(flags.case, often=4),
    "programs": Campaign(programs.case, attempts=programs.ATTEMPTS),
    "checkpoints": Campaign(checkpoints.case, attempts=checkpoints.CASES),
}


class Tally:
    """What came of the cases so far."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.failed: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []
        self._lock = threading.Lock()

    def add(self, name: str, attempts: int = 1, failures: Sequence[str] = ()) -> None:
        with self._lock:
            self.counts[name] += attempts
            self.failed[name] += len(failures)
            for failure in failures:
                self.failures.append(failure)
                print(failure, flush=True)

    def __str__(self) -> str:
        attempts, failed = self.counts.total(), len(self.failures)
        each = ", ".join(
            f"{name} {count:,}" + f" ({self.failed[name]:,} failed)" * bool(self.failed[name])
            for name, count in sorted(self.counts.items())
        )
        survived = f"{attempts - failed:,} survived, {failed:,} failed"
        return f"torture: {attempts:,} attempts ({each}), {survived}"


def campaign(
    names: Sequence[str],
    world: World,
    cases: range,
    seed: int,
    *,
    workers: int,
    until: float = float("inf"),
    told: Callable[[str], None] = lambda _: None,
) -> Tally:
    """Runs the `cases` of each campaign in turn, to their end or to the clock's `until`."""
    tally = Tally()

    def one(name: str, number: int) -> None:
        if time.monotonic() > until:
            return
        with tempfile.TemporaryDirectory(prefix="scoremode-torture-") as folder:
            case, attempts = CAMPAIGNS[name].case, CAMPAIGNS[name].attempts
            at = f"{name} seed {seed} case {number}"
            try:
                what = case(Random(f"{name} {seed} {number}"), world, Path(folder))
            except Failure as failure:
                tally.add(name, attempts, [f"{at}: {failure}"])
            except Failures as failures:
                tally.add(name, attempts, [f"{at}: {failure}" for failure in failures.each])
            # Not hidden: a case that can't be made is one that failed, and the others still count.
            except Exception as error:  # noqa: BLE001
                tally.add(name, attempts, [f"{at}: {type(error).__name__}: {error}"])
            else:
                tally.add(name, attempts)
                told(f"{name} {number}: {what}")

    with ThreadPoolExecutor(workers) as pool:
        turns = [
            (name, cases.start + CAMPAIGNS[name].often * turn + i)
            for turn in range(len(cases))
            for name in names
            for i in range(CAMPAIGNS[name].often)
        ]
        for done in [pool.submit(one, *turn) for turn in turns if turn[1] in cases]:
            done.result()
    return tally


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--campaigns", default=",".join(CAMPAIGNS))
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--cases", type=int, default=10_000, help="of each campaign at most")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--verbose", action="store_true", help="a line for every case")
    args = parser.parse_args()
    names = args.campaigns.split(",")
    if "disk" in names and not disk.is_possible():
        print("no disk campaign: this machine lets no file system be mounted")
        names.remove("disk")
    with tempfile.TemporaryDirectory(prefix="scoremode-torture-world-") as folder:
        world = make_world(Path(folder))
        cases = range(args.first, args.first + args.cases)
        tally = campaign(
            names,
            world,
            cases,
            args.seed,
            workers=args.workers,
            until=time.monotonic() + 60 * args.minutes,
            told=print if args.verbose else lambda _: None,
        )
    print(tally)
    return 1 if tally.failures or not tally.counts else 0


if __name__ == "__main__":
    sys.exit(main())
