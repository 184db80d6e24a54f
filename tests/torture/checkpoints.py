"""Campaign `checkpoints`: those of `fuzz`, a handful a turn, each an attempt of its own."""

from pathlib import Path
from random import Random

from fuzz import run as fuzz
from torture.command import Failures
from torture.world import World

__all__ = ["CASES", "case"]

# One process runs them, whose start costs more than they do.
CASES = 50


def case(random: Random, world: World, folder: Path) -> str:
    """Mutated checkpoints, read or refused; returns the verdicts. Raises Failures."""
    seed = random.randrange(1 << 30)
    counts, failures, _ = fuzz.run(range(CASES), seed, 1)
    if failures:
        raise Failures(failures)
    return f"seed {seed}: {', '.join(f'{n} {verdict}' for verdict, n in sorted(counts.items()))}"
