"""Places of processes: which rank this one is, by what its launcher has set.

`--devices` starts the other ranks itself; `torchrun` and SLURM's `srun` start all of them, on one
machine or on several.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from scoremode.errors import UsageError

__all__ = ["PLACE", "Place", "place_of"]

# What a process that `--devices` started knows its place by.
PLACE = "SCOREMODE_RANK"
_TORCHRUN, _SRUN = "TORCHELASTIC_RUN_ID", "SLURM_STEP_NUM_TASKS"
# Ports that systems give nobody by themselves; a step of SLURM takes one of them by its numbers.
_PORTS = range(20_000, 30_000)


@dataclass(frozen=True)
class Place:
    """One rank among `size`, which are numbered from 0 and have a device each.

    - `launcher`: what started it.
    - `local`: its number among the `here` ranks of its node; `node`: that node's, 0 for rank 0's.
    - `host`, `port`: of the first thing that the others connect to on rank 0's machine: the store of
      `--devices` or torchrun, the lifelines of srun.
    - `key`: what names in the store begin with, and what a connection must know: of `--devices` a
      secret.
    - `pipe`: the file descriptor that closes when the first rank ends; None where that didn't start it.
    """

    rank: int
    size: int
    launcher: Literal["--devices", "torchrun", "srun"]
    local: int
    here: int
    node: int = 0
    host: str = "127.0.0.1"
    port: int = 0
    key: str = ""
    pipe: int | None = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def starts_others(self) -> bool:
        """True where the first rank has started the others: nobody else did."""
        return self.launcher == "--devices"

    @property
    def spans_nodes(self) -> bool:
        return self.here < self.size

    @property
    def leads_node(self) -> bool:
        """True for one rank of each node but the first's."""
        return self.local == 0 and self.node > 0


def place_of(environment: Mapping[str, str]) -> Place | None:
    """The place that this process was started for; None for a process that runs alone.

    Raises UsageError for variables that make no sense.
    """
    if PLACE in environment:
        return Place(**json.loads(environment[PLACE]))
    try:
        # RANK alone is also set by launchers that have nothing to do with us.
        if _TORCHRUN in environment:
            place = _of_torchrun(environment)
        elif _SRUN in environment:
            place = _of_srun(environment)
        else:
            return None
    except KeyError as error:
        name = "torchrun" if _TORCHRUN in environment else "srun"
        raise UsageError(f"{name}: the variable {error.args[0]} is not set") from None
    except ValueError as error:
        raise UsageError(f"a launcher's variable is no number: {error}") from None
    return place if place.size > 1 else None


def _of_torchrun(environment: Mapping[str, str]) -> Place:
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    here = int(environment["LOCAL_WORLD_SIZE"])
    # A restart finds the store as the attempt before it has left it.
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Place(
        rank,
        size,
        "torchrun",
        local=int(environment["LOCAL_RANK"]),
        here=here,
        node=int(environment["GROUP_RANK"]),
        host=environment["MASTER_ADDR"] if here < size else "127.0.0.1",
        port=int(environment["MASTER_PORT"]),
        key=f"scoremode/{attempt}",
    )


def _of_srun(environment: Mapping[str, str]) -> Place:
    rank, size = int(environment["SLURM_PROCID"]), int(environment[_SRUN])
    node, local = int(environment["SLURM_NODEID"]), int(environment["SLURM_LOCALID"])
    here = _tasks(environment["SLURM_STEP_TASKS_PER_NODE"], node)
    if rank == 0 and node != 0:
        raise UsageError(
            f"srun: task 0 is on the step's node {node}, and is looked for on its first one: leave "
            "--distribution out"
        )
    job, step = environment["SLURM_JOB_ID"], environment["SLURM_STEP_ID"]
    port = _PORTS[(int(job) * 31 + int(step)) % len(_PORTS)]
    first = _first_of(environment["SLURM_STEP_NODELIST"])
    return Place(
        rank,
        size,
        "srun",
        local=local,
        here=here,
        node=node,
        host=environment.get("MASTER_ADDR") or (first if here < size else "127.0.0.1"),
        port=int(environment.get("MASTER_PORT") or port),
        key=f"scoremode/{job}.{step}",
    )


def _tasks(counts: str, node: int) -> int:
    """How many tasks a node has, by a list such as `4(x2),1`. Raises ValueError."""
    each: list[int] = []
    for part in counts.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE={counts}")
        each += [int(found[1])] * int(found[2] or 1)
    if node >= len(each):
        raise ValueError(f"SLURM_STEP_TASKS_PER_NODE={counts} for SLURM_NODEID={node}")
    return each[node]


def _first_of(nodes: str) -> str:
    """The first name of a list as SLURM writes it, such as `rack[2-3]n[01-16,20],login`."""
    first = re.match(r"(?:\[[^\]]*\]|[^,\[])*", nodes)
    assert first is not None
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0])
