"""The device of a rank: one of its machine's, by its number there."""

import os
from collections.abc import Mapping, Sequence

import torch

from scoremode.engines.torch.ranks.places import Place
from scoremode.errors import UsageError

__all__ = ["asked_for", "gpu_of", "same_gpu", "take_device"]


def take_device(place: Place, name: str | None) -> str:
    """The device of a rank, of the kind that a user called `name`; the process's default then.

    CUDA devices are taken in order; the one that SLURM shows to this task alone is its own. A
    CPU's threads are shared out. Raises UsageError.
    """
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
    """What was asked for, as errors begin with it."""
    if place.starts_others:
        return f"--devices {place.size}"
    return f"{place.launcher}: {place.size} ranks"


def gpu_of(device: str) -> str | None:
    """The name that a GPU has everywhere; None for a CPU, or where it has none."""
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
    """Tells whether this process may run on some of the machine's cores alone, or has a number of
    threads given."""
    if "OMP_NUM_THREADS" in os.environ:
        return True
    available = getattr(os, "sched_getaffinity", None)
    return available is not None and len(available(0)) < (os.cpu_count() or 1)
