"""Commands as a user gives them: in this process, or in one of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

from support.waiting import HANG

from scoremode.cli.main import main


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in this process."""
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


def program(
    *arguments: str | bytes,
    path: Path | None = None,
    stdout: int = subprocess.PIPE,
    **settings: str,
) -> tuple[int, bytes, str]:
    """Exit code, stdout and stderr of a command; modules in `path` come before the installed ones."""
    before = [str(path)] if path else []
    found = os.pathsep.join([*before, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "scoremode", *arguments],
        env=os.environ | {"PYTHONPATH": found} | settings,
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=HANG,
        check=False,
    )
    return done.returncode, done.stdout or b"", done.stderr.decode(errors="replace")


def told(err: str) -> str:
    """What `err` says beyond the line that so few windows as a test has give no interval."""
    lines = err.splitlines(keepends=True)
    return "".join(
        x for x in lines if not x.startswith("scoremode: these windows give no interval")
    )


def error_of(err: str) -> str:
    """The one line that an error is, before at most one that points to a command's help."""
    line, *more = lines_of(told(err))
    assert line.startswith("scoremode: error: "), err
    assert not more or re.fullmatch(r"scoremode: see 'scoremode( [a-z]+)? --help( all)?'", *more), (
        err
    )
    return line


def lines_of(err: str) -> list[str]:
    assert "Traceback" not in err and "Exception ignored" not in err, err
    return err.splitlines()
