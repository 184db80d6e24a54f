"""Runs cases in processes of their own, each under a clock: `python -m fuzz.run --cases 10000`.

A case is made by its seed and number alone, so that a failing one can be run again by itself:
`python -m fuzz.run --seed S --first N --cases 1`.
"""

import argparse
import collections
import faulthandler
import multiprocessing
import os
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from random import Random

from fuzz.files import Files
from fuzz.gguf_mutations import mutate as mutate_gguf
from fuzz.mutations import mutate

# Seconds after which a case hangs, however busy the machine is; most take a hundredth of one.
LIMIT = 60.0
Verdict = Callable[[Path], str]
_START = 120.0
# What a case may take of memory beyond what the process has when it starts.
_MEMORY = 2 << 30


def run(
    cases: range, seed: int, workers: int, verdict_of: Verdict | None = None, only: str = ""
) -> tuple[collections.Counter[str], list[str], list[tuple[float, int]]]:
    """How often each verdict was, what failed, and the longest cases' seconds and numbers, the longest
    first. `only`: a pattern in the names of the checkpoints that are mutated."""
    bases = all_bases()
    counts: collections.Counter[str] = collections.Counter()
    failures: list[str] = []
    slowest: list[tuple[float, int]] = []
    parts = [cases[i::workers] for i in range(workers)]
    running = [_Worker(part, seed, bases, verdict_of, only) for part in parts if len(part)]
    try:
        while running:
            wait([w.connection for w in running], timeout=0.5)
            for worker in list(running):
                for case, verdict, seconds in worker.results():
                    slowest = sorted([*slowest, (seconds, case)], reverse=True)[:5]
                    kind, _, detail = verdict.partition(": ")
                    counts[kind] += 1
                    if kind in ("failed", "disputed"):
                        failures.append(f"seed {seed} case {case}: {kind}: {detail}")
                if worker.is_done:
                    worker.close()
                    running.remove(worker)
    finally:
        for worker in running:
            worker.close()
    return counts, failures, slowest


class _Worker:
    """A process that runs cases one by one, started again behind one that hangs or kills it."""

    def __init__(
        self,
        cases: range,
        seed: int,
        bases: dict[str, Files],
        verdict_of: Verdict | None,
        only: str,
    ):
        self._cases, self._seed, self._bases, self._verdict_of = cases, seed, bases, verdict_of
        self._only = only
        self._at = 0
        # Not the process's own: it may be killed before it could take it away.
        self._folder = tempfile.TemporaryDirectory(prefix="scoremode-fuzz-")
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe(duplex=False)
        arguments = (theirs, self._cases[self._at :], self._seed, self._bases, self._verdict_of,
                     self._only, Path(self._folder.name) / "case")  # fmt: skip
        self._process: SpawnProcess = context.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._deadline = time.monotonic() + _START
        self._runs: int | None = None

    @property
    def is_done(self) -> bool:
        return self._at >= len(self._cases)

    def results(self) -> Iterator[tuple[int, str, float]]:
        """(case, verdict, seconds) of those that have ended."""
        while message := self._message():
            if message[0] == "begin":
                self._runs, self._deadline = message[1], time.monotonic() + LIMIT
            else:
                self._at, self._runs = self._at + 1, None
                self._deadline = time.monotonic() + _START
                yield message
        if self.is_done or (self._process.is_alive() and time.monotonic() < self._deadline):
            return
        how = f"hangs for more than {LIMIT} s"
        if not self._process.is_alive():
            how = f"its process ended with {self._process.exitcode}"
        self.end()
        if self._runs is None:
            raise RuntimeError(f"a worker between cases: {how}")
        what, _ = make_case(self._seed, self._runs, self._bases, self._only)
        yield self._runs, f"failed: {how} [{what}]", LIMIT
        self._at += 1
        if not self.is_done:
            self._start()

    def _message(self) -> tuple | None:
        """The next one, None if there is none yet or the process has ended."""
        try:
            return self.connection.recv() if self.connection.poll() else None
        except (EOFError, OSError):
            return None

    def close(self) -> None:
        self.end()
        self._folder.cleanup()

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _work(
    connection: Connection,
    cases: range,
    seed: int,
    bases: dict[str, Files],
    verdict_of: Verdict | None,
    only: str,
    folder: Path,
) -> None:
    faulthandler.enable()
    if verdict_of is None:
        # Here, and not for every process that looks at this file: it takes seconds.
        from fuzz.judge import judge as verdict_of
    with open("/proc/self/statm") as f:  # noqa: PTH123
        size = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _MEMORY, size + _MEMORY))
    for case in cases:
        what, files = make_case(seed, case, bases, only)
        write(files, folder)
        # Where a case hangs is shown before the runner ends it.
        faulthandler.dump_traceback_later(0.9 * LIMIT)
        connection.send(("begin", case))
        began = time.monotonic()
        try:
            verdict = verdict_of(folder)
        except BaseException as error:  # noqa: BLE001  anything else is a failure
            verdict = f"failed: {_told(error)}"
        seconds = time.monotonic() - began
        faulthandler.cancel_dump_traceback_later()
        if seconds > LIMIT:
            verdict = f"failed: took {seconds:.1f} s"
        if verdict.startswith(("failed", "disputed")):
            verdict += f" [{what}]"
        connection.send((case, verdict, seconds))


def make_case(seed: int, case: int, bases: dict[str, Files], only: str = "") -> tuple[str, Files]:
    """What was done to which checkpoint, and its files."""
    rng = Random(f"{seed} {case}")
    name = rng.choice(sorted(name for name in bases if re.search(only, name)))
    files = dict(bases[name])
    if name.startswith("GGUF"):
        done = mutate_gguf(rng, files)
    else:
        done = mutate(rng, files, {n: f for n, f in bases.items() if not n.startswith("GGUF")})
    return f"{name}: {'; '.join(done)}"[:600], files


def all_bases() -> dict[str, Files]:
    """Every checkpoint that is mutated."""
    from fuzz.bases import make_bases
    from fuzz.gguf_bases import gguf_bases

    return make_bases() | gguf_bases()


def write(files: Files, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _told(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "scoremode" in f.filename or "fuzz" in f.filename] or frames
    at = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(ours[-3:]))
    return f"{type(error).__name__}: {str(error)[:800]!r} at {at}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--only", default="", help="a pattern in the names of checkpoints to mutate"
    )
    parser.add_argument("--keep", type=Path, help="writes the files of the first case there")
    args = parser.parse_args()
    cases = range(args.first, args.first + args.cases)
    if args.keep:
        what, files = make_case(args.seed, args.first, all_bases(), args.only)
        write(files, args.keep)
        print(what)
    began = time.monotonic()
    counts, failures, slowest = run(cases, args.seed, args.workers, only=args.only)
    for failure in failures:
        print(failure)
    seconds = time.monotonic() - began
    longest = ", ".join(f"{took:.2f} s (case {case})" for took, case in slowest)
    print(f"{dict(counts)} in {seconds:.0f} s, the slowest {longest}")
    return 1 if failures else 0


__all__ = ["LIMIT", "all_bases", "make_case", "run", "write"]

if __name__ == "__main__":
    sys.exit(main())
