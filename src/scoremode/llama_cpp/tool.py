"""llama-perplexity itself, run on a GGUF file and a plan's text: predictions as llama.cpp serves them.

Its file (`file.py` says what it is) is there whole and of the very plan, or not at all.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from scoremode.errors import EngineError, ReferenceUnusable, escaped
from scoremode.lib.files import atomic
from scoremode.llama_cpp.export import check_exportable
from scoremode.llama_cpp.file import LogitsFile
from scoremode.text.plan import Plan

NAME = "llama-perplexity"
# Where it lies in a folder of a release's, or of a source that was built.
_PLACES = ("", "bin", "build/bin")
# A line of stderr that says why, behind the time and the level that newer builds put before it.
_WHY = re.compile(r"error|fail|unable|need at least|invalid|cannot|not found", re.IGNORECASE)
_STAMP = re.compile(r"^[\d.]+ [A-Z] ")


@dataclass(frozen=True)
class Tool:
    """A llama-perplexity: its `path`, and the `version` that it says."""

    path: Path
    version: str


def find_tool(folder: str | Path | None = None) -> Tool:
    """The llama-perplexity in `folder`, also under `bin` or `build/bin`; without one, on PATH.

    Raises EngineError where there is none, and for one that doesn't say its version.
    """
    if folder is None:
        found = shutil.which(NAME)
        if found is None:
            raise EngineError(f"{NAME}: is not on PATH: --llama-cpp DIR says where it lies")
        path = Path(found)
    else:
        places = [Path(folder).expanduser().absolute() / place / NAME for place in _PLACES]
        path = next((p for p in places if os.access(p, os.X_OK) and p.is_file()), places[0])
        if not path.is_file():
            raise EngineError(f"{folder}: has no {NAME}, nor has its bin or build/bin")
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise EngineError(f"{path}: does not start: {error.strerror}") from None
    said = done.stderr + done.stdout
    lines = (line for line in said.splitlines() if line.startswith("version: "))
    if (version := next(lines, None)) is None:
        raise EngineError(f"{path}: says no version, but {_why(said)}")
    return Tool(path, version.removeprefix("version: ").strip())


def write_predictions(
    tool: Tool,
    gguf: Path,
    text: str,
    plan: Plan,
    target: Path,
    *,
    flags: Sequence[str] = (),
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[str]:
    """Has the tool write its log-probabilities of a plan's targets to `target`; returns the command.

    - `text`: what `plan` was made of, by its protocol's rule.
    - `flags`: of the tool, such as `-ngl 99`; a cache, threads and attention are its own without.
    - `progress`: called with windows done, and how many there are.

    Raises ProtocolError for a plan that no such file holds, EngineError with what the tool says where
    it fails, ReferenceUnusable where it makes other tokens of the text, RunFolderError for a target
    that can't be written.
    """
    check_exportable(plan.protocol)
    length = plan.protocol.context_length
    with atomic(target) as partial, TemporaryDirectory(prefix="scoremode-") as folder:
        file = Path(folder) / "text"
        # The tool takes one newline off the end.
        file.write_text(text + "\n", encoding="utf-8", newline="")
        given = ["-m", gguf, "-f", file, "-c", length, "--chunks", len(plan)]
        own = [*given, *flags, "--kl-divergence-base", partial]
        command = [str(word) for word in (tool.path, *own)]
        code, said = _run(command, Path(folder) / "stderr", len(plan), progress)
        if code != 0:
            raise EngineError(f"{tool.path}: ended with {code} on {gguf}: {_why(said)}")
        try:
            LogitsFile(partial).check_plan(plan)
        except ReferenceUnusable as error:
            words = str(error).replace(str(partial), str(target))
            # It ends well where a text is too short for it, having said so.
            more = f" ({why})" if (why := _why(said, usual="")) else ""
            raise ReferenceUnusable(f"{words}{more}") from None
    # As somebody would type it.
    shown = {str(partial): str(target), str(file): "TEXT"}
    return [shown.get(word, word) for word in command]


def _run(
    command: Sequence[str], log: Path, windows: int, progress: Callable[[int, int], None]
) -> tuple[int, str]:
    """The exit code of the tool and its stderr, when it has ended. Raises EngineError."""
    done = 0
    with log.open("wb") as stderr:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
            )
        except OSError as error:
            raise EngineError(f"{command[0]}: does not start: {error.strerror}") from None
        with process:
            assert process.stdout is not None
            try:
                # `[1]13.0665,[2]21.4582,`: the perplexity so far, after each window.
                while piece := os.read(process.stdout.fileno(), 1 << 12):
                    for number in re.findall(rb"\[(\d+)\]", piece):
                        progress(int(number) - done, windows)
                        done = int(number)
            except BaseException:
                process.kill()
                raise
    return process.returncode, log.read_text(encoding="utf-8", errors="replace")


def _why(said: str, usual: str = "nothing") -> str:
    """The line of what the tool said that tells why it failed, else the last one, or `usual`."""
    lines = [_STAMP.sub("", line.strip()) for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if _WHY.search(line)]
    if telling:
        return escaped(telling[0])
    return escaped(lines[-1]) if lines and usual else usual
