"""Triton kernels that have a twin in plain torch: which of the two runs, and why.

The twin gives the same bits, so a kernel that can't be had (no Triton, a GPU that it doesn't compile
for) costs time and nothing else. What ran is kept by name, for the record. Whether a kernel compiles is
a matter of the process and its GPU, and so is this memory of it.
"""

from collections.abc import Callable

import torch

__all__ = ["attempt", "is_missing", "ran"]

_TRITON = "triton"
_ran: dict[str, str] = {}


def attempt(name: str, device: torch.device, run: Callable[[], None]) -> bool:
    """Whether `run`, which launches the kernel `name`, did its work on `device`.

    False where nothing was launched: not a CUDA device, no Triton, or a kernel that Triton refuses to
    compile, which it does before anything is written; the caller's twin has to do it then.
    """
    if device.type != "cuda" or _ran.get(name, _TRITON) != _TRITON:
        return False
    reason = is_missing()
    if reason is None:
        from triton.errors import TritonError  # pyright: ignore[reportMissingImports]

        try:
            run()
        except TritonError as error:
            words = " ".join(str(error).split())[:160]
            reason = f"{type(error).__name__}: {words}"
    _ran[name] = _TRITON if reason is None else f"plain torch ({reason})"
    return reason is None


def is_missing() -> str | None:
    """Why there is no Triton, None if there is."""
    try:
        import triton  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        return str(error)
    return None


def ran() -> dict[str, str]:
    """What computed each kernel asked for so far: `triton`, or `plain torch (…)` with the reason."""
    return dict(sorted(_ran.items()))
