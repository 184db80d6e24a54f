"""Hosts that are network namespaces of this machine, joined by a bridge, each with a name of its own.

Needs Linux, root and `ip` (Debian's iproute2); `reason` says what is missing.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

__all__ = ["Host", "hosts", "reason"]

Run = subprocess.Popen[str]


@cache
def reason() -> str | None:
    """Why there can be no hosts here; None where there can."""
    missing = [name for name in ("ip", "unshare") if shutil.which(name) is None]
    if missing:
        return f"needs {' and '.join(missing)}"
    name = f"sm{os.getpid()}x"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"ip netns add: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return None


@dataclass
class Host:
    """A host: `name` is its host name and its namespace's, `link` its end of the network outside."""

    name: str
    address: str
    link: str
    runs: list[Run] = field(default_factory=list)

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], hidden: Path | None = None
    ) -> Run:
        """Starts Python on this host, as the first of a process group of its own.

        `hidden`: a folder that is an empty one there.
        """
        script = 'hostname "$0" && exec "$@"'
        if hidden is not None:
            script = f"mount -t tmpfs none '{hidden}' && {script}"
        named = ["unshare", "--uts", "--mount", "sh", "-c", script, self.name]
        run = subprocess.Popen(
            ["ip", "netns", "exec", self.name, *named, sys.executable, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.runs.append(run)
        return run

    def cut(self) -> None:
        """Has its packets go nowhere, without a word to anybody."""
        _ip("link", "set", self.link, "down")

    def mend(self) -> None:
        _ip("link", "set", self.link, "up")

    def processes(self) -> list[int]:
        listed = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True
        )
        return [int(process) for process in listed.stdout.split()]

    def kill(self) -> None:
        """Ends all of its processes at once."""
        self.send(signal.SIGKILL)

    def send(self, number: int) -> None:
        """Sends a signal to all of its processes."""
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def slow(self, *rule: str) -> None:
        """Bounds what it sends and what is sent to it, by words of `tc qdisc`."""
        for inside in (["ip", "netns", "exec", self.name], []):
            device = "eth0" if inside else self.link
            command = [*inside, "tc", "qdisc", "add", "dev", device, "root", *rule]
            subprocess.run(command, check=True)


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """So many hosts, node1 with 10.77.0.1 and so on, until the block ends, and all that they run."""
    bridge, made = f"smb{os.getpid() % 100_000}", []
    _ip("link", "add", bridge, "type", "bridge")
    try:
        _ip("link", "set", bridge, "up")
        for number in range(1, count + 1):
            name, link = f"node{number}-{os.getpid()}", f"sm{number}v{os.getpid() % 100_000}"
            host = Host(name, f"10.77.0.{number}", link)
            _ip("netns", "add", name)
            made.append(host)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", link, "master", bridge, "up")
            _ip("-n", name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield made
    finally:
        for host in made:
            host.kill()
            for run in host.runs:
                run.communicate()
            end = time.monotonic() + 10
            while host.processes() and time.monotonic() < end:
                time.sleep(0.05)
            _ip("netns", "delete", host.name)
            # A connection that is being closed would keep it for minutes.
            subprocess.run(["ip", "link", "delete", host.link], capture_output=True)
        _ip("link", "delete", bridge)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, cwd=Path("/"))
