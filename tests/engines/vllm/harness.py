"""Programs that start vLLM, each in a process group of its own that is gone when they are.

What came out of `run_engine.py` is kept, so that a process is started once however many tests, in
however many pytest workers, look at it.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Seconds after which a program hangs: on a busy machine a start takes many times what it does on an
# idle one.
TIMEOUT = 1800
_MARK = "SCOREMODE_TEST_PROCESS"


class Leftover(AssertionError):
    """A program has ended, and processes that it started have not."""


@dataclass(frozen=True)
class Program:
    """A running program; every process that it starts carries `mark` in its environment.

    Its output goes to files: a pipe stays open as long as anything that it has left behind.
    """

    process: subprocess.Popen[bytes]
    mark: str
    out: Path
    err: Path

    def output(self) -> tuple[str, str]:
        """Its stdout and stderr so far."""
        return self.out.read_text(), self.err.read_text()


def finish(program: Program, timeout: float = TIMEOUT, patience: float = 10) -> None:
    """Waits for its end.

    Kills all of it, and raises, when it runs for more than `timeout` seconds, or when `patience`
    seconds after its end (helpers of multiprocessing end a little later) something is left.
    """
    try:
        program.process.wait(timeout)
    except subprocess.TimeoutExpired:
        kill(program)
        raise AssertionError(f"hangs after {timeout} s: {program.output()}") from None
    end = time.monotonic() + patience
    while (left := processes_of(program)) and time.monotonic() < end:
        time.sleep(0.05)
    if left:
        kill(program)
        raise Leftover(f"{program.process.args} left {left}: {program.output()}")


def kill(program: Program) -> None:
    """Ends all of it, at once."""
    while found := processes_of(program):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    program.process.wait()


def processes_of(program: Program) -> dict[int, str]:
    """Living processes of its session or with its mark, with their titles."""
    mark = f"{_MARK}={program.mark}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # After the name in brackets: state, parent, group, session.
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            ours = int(session) == program.process.pid or mark in (folder / "environ").read_bytes()
            title = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if ours and state != "Z":
            # Other programs' may be in any encoding.
            found[int(folder.name)] = title.decode(errors="replace").strip()
    return found


@dataclass(frozen=True)
class Answer:
    """What one engine gave: `facts`, and a row a scored token of each call, prompt after prompt."""

    facts: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    def column(self, call: str, name: str = "logprob") -> NDArray[Any]:
        return self.arrays[f"{call}/{name}"]

    def prompts(self, call: str, name: str = "logprob") -> list[NDArray[Any]]:
        """The column, an array a prompt."""
        ends = self.arrays[f"{call}/lengths"].cumsum()
        return np.split(self.column(call, name), ends[:-1]) if len(ends) else []


class Engines:
    """Runs programs. `folder` is shared by all pytest workers of a session."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._answers: dict[str, dict[str, Answer]] = {}

    def answers(self, name: str, starts: Mapping[str, Any]) -> dict[str, Answer]:
        """What a process's starts gave (see run_engine.py), which runs once under this name."""
        if name not in self._answers:
            out = self.folder / name.replace(" ", "-")
            with self.once(name) as is_first:
                if is_first:
                    job, script = Path(f"{out}.job"), Path(__file__).with_name("run_engine.py")
                    job.write_text(json.dumps(starts))
                    code, stdout, err = self.run([str(script), str(job), str(out)])
                    assert code == 0, f"exit {code} of {job}\n{stdout}{err}"
            facts = json.loads(Path(f"{out}.json").read_text())
            with np.load(f"{out}.npz") as arrays:
                found = dict(arrays)
            self._answers[name] = {
                start: Answer(
                    facts[start],
                    {k.partition("/")[2]: v for k, v in found.items() if k.startswith(f"{start}/")},
                )
                for start in starts
            }
        return self._answers[name]

    def run(self, arguments: list[str], **environment: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a Python program that has left nothing behind."""
        program = self.start(arguments, **environment)
        finish(program)
        return program.process.returncode, *program.output()

    def start(self, arguments: list[str], **environment: str) -> Program:
        """Starts a Python program, in a session of its own."""
        mark = uuid.uuid4().hex
        out, err = self.folder / f"{mark}.out", self.folder / f"{mark}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env={**self.environment, **environment, _MARK: mark},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        return Program(process, mark, out, err)

    @property
    def environment(self) -> dict[str, str]:
        """This one without what a developer has set for vLLM; offline; one thread a process."""
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "SCOREMODE_VLLM"))
        }
        return kept | {
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "VLLM_CACHE_ROOT": str(self.folder / "vllm-cache"),
        }

    @contextmanager
    def once(self, key: str) -> Iterator[bool]:
        """Whether nobody has been inside with this key and come out well; others wait meanwhile."""
        done = self.folder / f"{key}.done"
        with (self.folder / f"{key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield not done.exists()
            done.touch()
