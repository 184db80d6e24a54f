"""Triton kernels that have a twin in plain torch: which of the two runs, and why.

The twin gives the same bits, so a kernel that can't be had (no Triton, a GPU that it doesn't compile
for) costs time and nothing else. What ran is kept by name, for the record. Whether a kernel compiles is
a matter of the process and its GPU, and so is this memory of it.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from scoremode.errors import words_of

__all__ = ["NotBuilt", "attempt", "building", "forget", "is_missing", "ran"]

_TRITON = "triton"
_ran: dict[str, str] = {}
# Why a kernel can't be had, which is not asked twice.
_refused: dict[str, str] = {}


def attempt(name: str, device: torch.device, run: Callable[[], None]) -> bool:
    """Tells whether `run`, which launches the kernel `name`, did its work on `device`.

    False where nothing was launched: not a CUDA device, no Triton, or a kernel that can't be built; the
    caller's twin has to do it then.
    """
    if device.type != "cuda":
        return False
    if name in _refused:
        _ran[name] = f"plain torch ({_refused[name]})"
        return False
    reason = is_missing()
    if reason is None:
        try:
            with building():
                run()
        except NotBuilt as error:
            reason = str(error)
    if reason is not None:
        _refused[name] = reason
    _ran[name] = _TRITON if reason is None else f"plain torch ({reason})"
    return reason is None


def forget() -> None:
    """Begins the account of what ran anew; what can't be had is not tried again."""
    _ran.clear()


class NotBuilt(Exception):
    """The reason that keeps Triton from building a kernel, in one line."""


@contextmanager
def building() -> Iterator[None]:
    """Surrounds a launch: raises NotBuilt where Triton refuses the kernel, or the C compiler that
    builds what launches it is missing or fails. All of that comes before anything is written.
    """
    from triton.errors import TritonError  # pyright: ignore[reportMissingImports]

    try:
        yield
    except subprocess.CalledProcessError as error:
        # Its own words are the whole command.
        said = f"the C compiler {error.cmd[0]} failed with exit code {error.returncode}"
        raise NotBuilt(said) from error
    except (TritonError, FileNotFoundError, RuntimeError) as error:
        # Triton has no class of its own for a missing compiler; CUDA's errors are RuntimeErrors, too.
        if isinstance(error, RuntimeError) and "C compiler" not in str(error):
            raise
        raise NotBuilt(words_of(error, 160)) from error


def is_missing() -> str | None:
    """The reason why there is no Triton, None if there is one."""
    try:
        import triton  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        return str(error)
    return None


def ran() -> dict[str, str]:
    """Tells what computed each kernel asked for so far: `triton`, or `plain torch (…)` with the
    reason."""
    return dict(sorted(_ran.items()))
