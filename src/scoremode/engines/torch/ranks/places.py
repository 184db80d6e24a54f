"""Places of processes: which rank this one is, by what its launcher has set, and the device it takes.

`torchrun` and SLURM's `srun` start all ranks, on one machine or on several, and lifelines bind those
(`lifeline`). `--devices` starts the other ranks itself (`Others`): one process a device, by the command
line of this one, bound to it both ways. A thread here sees one end that should not, and stops this
process's work; each of them reads from a pipe that closes when this process is gone, however it went,
and ends then. So nothing has to wait for a time-out. They start before this process spends its seconds
on torch, which is imported where a device is asked for.
"""

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Literal

from scoremode.errors import EngineError, UsageError, is_debugging
from scoremode.lib.processes import LOOK, Leader, end_groups, end_with, ending_of

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
    """The number of tasks of a node, by a list such as `4(x2),1`. Raises ValueError."""
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


def take_device(place: Place, name: str | None) -> str:
    """The device of a rank, of the kind that a user called `name`; the process's default then.

    CUDA devices are taken in order; the one that SLURM shows to this task alone is its own. A
    CPU's threads are shared out. Raises UsageError.
    """
    import torch

    asked = asked_for(place)
    kind = name or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda":
        count = torch.cuda.device_count()
        alone = count == 1 and place.launcher == "srun"
        if count < place.here and not alone:
            here = f", {place.here} of them here" if place.spans_nodes else ""
            raise UsageError(f"{asked}{here}: this machine has {count} CUDA devices")
        # That the others' are others is seen when all have said which they have.
        number = 0 if alone else place.local
        torch.cuda.set_device(number)
        return f"cuda:{number}"
    if name is None:
        raise UsageError(
            f"{asked}: this machine has no CUDA device; --device cpu shares out its cores"
        )
    # torchrun sets the number of threads itself, and SLURM may have bound each task to its cores.
    if place.starts_others or (place.launcher == "srun" and not _is_bound()):
        torch.set_num_threads(max(1, torch.get_num_threads() // place.here))
    return kind


def asked_for(place: Place) -> str:
    """The request for ranks, as errors begin with it."""
    if place.starts_others:
        return f"--devices {place.size}"
    return f"{place.launcher}: {place.size} ranks"


def gpu_of(device: str) -> str | None:
    """A GPU's UUID; None for a CPU, or where the driver gives none."""
    import torch

    if not device.startswith("cuda"):
        return None
    name = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if name is None or not set(str(name)) - set("0-") else str(name)


def same_gpu(gpus: Mapping[int, str | None]) -> Sequence[int]:
    """The first two ranks that have the same GPU; () where each has its own, so far as is known."""
    seen: dict[str, int] = {}
    for rank, gpu in gpus.items():
        if gpu is None:
            continue
        if gpu in seen:
            return seen[gpu], rank
        seen[gpu] = rank
    return ()


def _is_bound() -> bool:
    """Tells whether this process is bound to some of the machine's cores, or given its threads."""
    if "OMP_NUM_THREADS" in os.environ:
        return True
    available = getattr(os, "sched_getaffinity", None)
    return available is not None and len(available(0)) < (os.cpu_count() or 1)


class Others:
    """The ranks but the first, running the same command line as this process.

    - `arguments`: what follows the program's name; `size`: how many ranks there are in all.

    - `listener`: the socket that the store will serve, bound before they start.
    - `ended`: the first rank that ended by itself, and what happened to it, of which SIGTERM tells the
      main thread; None while all run.
    """

    def __init__(self, arguments: Sequence[str], size: int):
        self.listener = socket.socket()
        # Only this machine can reach it.
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(size)
        self._reading, self._writing = os.pipe()
        port, key = self.listener.getsockname()[1], secrets.token_hex(16)
        self.place = Place(0, size, "--devices", local=0, here=size, port=port, key=key)
        self._errors: list[IO[bytes]] = []
        self._leaders: list[Leader] = []
        self.ended: tuple[int, str] | None = None
        self._is_over = False
        try:
            for rank in range(1, size):
                self._start(rank, arguments)
        except OSError as error:
            self.end(at_once=True)
            raise EngineError(f"--devices {size}: cannot start a process: {error}") from None
        finally:
            os.close(self._reading)
        threading.Thread(target=self._watch, daemon=True).start()

    def end(self, *, at_once: bool) -> None:
        """Returns when all have ended: by themselves, where they are not to be ended `at_once`."""
        self._is_over = True
        # They have nothing to lose: only the first rank writes.
        end_groups(self._leaders, at_once=at_once)
        for file in self._errors:
            file.close()
        with suppress(OSError):
            os.close(self._writing)
        self.listener.close()

    def _start(self, rank: int, arguments: Sequence[str]) -> None:
        package = str(Path(__file__).resolve().parents[4])
        path = os.pathsep.join(p for p in (package, os.environ.get("PYTHONPATH")) if p)
        place = replace(self.place, rank=rank, local=rank, pipe=self._reading)
        errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._errors.append(errors)
        process = subprocess.Popen(
            [sys.executable, "-m", "scoremode", *arguments],
            env=os.environ | {"PYTHONPATH": path, PLACE: json.dumps(asdict(place))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # Its last line is told here. Who asks for tracebacks gets all of it.
            stderr=None if is_debugging() else errors,
            pass_fds=[self._reading],
            # A Ctrl-C is for the first rank, which ends the others.
            process_group=0,
        )
        self._leaders.append(Leader(process.pid, process.poll))

    def _watch(self) -> None:
        while not self._is_over:
            for rank, leader in enumerate(self._leaders, 1):
                code = leader.poll()
                # One that ends well was told to.
                if code and not self._is_over:
                    self.ended = rank, f"its process {ending_of(code)}{self._last(rank)}"
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
                    return
            time.sleep(LOOK)

    def _last(self, rank: int) -> str:
        """The last line that a rank wrote to stderr."""
        file = self._errors[rank - 1]
        file.seek(0)
        lines = file.read().decode(errors="replace").split("\n")
        written = [line.strip() for line in lines if line.strip()]
        return f": {written[-1][:300]}" if written else ""


def end_with_first(place: Place) -> None:
    """Makes this process end when the first rank, which started it, has."""
    if (pipe := place.pipe) is not None:
        end_with(lambda: os.read(pipe, 1))
