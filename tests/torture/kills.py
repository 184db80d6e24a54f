"""Campaign `kills`: a command is ended at any moment, some times over, and goes on to the same bits."""

import os
import signal
import subprocess
import time
from pathlib import Path
from random import Random

from torture.command import Ended, Failure, check_ending, run
from torture.world import Command, World, result_of

__all__ = ["case"]

_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def case(random: Random, world: World, folder: Path) -> str:
    """Ends one command up to three times; returns what was done. Raises Failure."""
    name = random.choice(sorted(world.commands))
    command, told = world.commands[name], [name]
    words = [*command.words, "-o", str(folder / "out"), "--resume"]
    for _ in range(random.randint(1, 3)):
        number, delay = random.choice(_SIGNALS), random.uniform(0, 1.1 * command.seconds)
        rank = "--devices" in words and random.random() < 0.3
        told.append(f"{number.name}{' to a rank' * rank} after {delay:.3f} s")
        try:
            _end(words, world, number, delay, rank)
        except Failure as failure:
            raise Failure(f"{'; '.join(told)}: {failure}") from None
    try:
        check_ending(run(words, world.folder), 0)
        _check(folder / "out", command)
    except Failure as failure:
        raise Failure(f"{'; '.join(told)}; then to its end: {failure}") from None
    return "; ".join(told)


def _end(words: list[str], world: World, number: signal.Signals, delay: float, rank: bool) -> None:
    """Runs the command and sends the signal; what comes of it must be one of the right endings."""

    def kill(process: "subprocess.Popen[str]") -> None:
        time.sleep(delay)
        target = process.pid
        if rank and (children := _children(process.pid)):
            target = children[0]
        try:
            os.kill(target, number)
        except ProcessLookupError:
            return  # it was quicker

    ended = run(words, world.folder, meanwhile=kill)
    if number == signal.SIGINT and _is_of_pythons_start(ended):
        return
    right = {0, 128 + number}
    if rank:
        # The first rank says which other one has gone.
        right = {0, 1, 128 + number}
    check_ending(ended, *right)


def _is_of_pythons_start(ended: Ended) -> bool:
    """Whether Ctrl-C came while Python itself started, before any line of ours: in `site`, which ends
    Python with a traceback and exit code 1."""
    last = ended.err.rstrip().rpartition("\n")[2]
    return ended.code == 1 and last == "KeyboardInterrupt" and "scoremode" not in ended.err


def _children(process: int) -> list[int]:
    try:
        return [
            int(c) for c in Path(f"/proc/{process}/task/{process}/children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _check(output: Path, command: Command) -> None:
    if result_of(output) != command.result:
        raise Failure(f"another result than an undisturbed run's: {output}")
