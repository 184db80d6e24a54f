"""The models that a sweep's names stand for, each a model itself or a pattern."""

import glob
import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from scoremode.checkpoint.gguf.hub import gguf_names, named_gguf
from scoremode.errors import CheckpointError, UsageError
from scoremode.reference.stored import is_run

__all__ = ["all_models", "is_finished_run"]

_PATTERN = re.compile(r"[*?[]")


def all_models(names: Sequence[str], revision: str | None = None) -> list[str]:
    """Every model that is meant, in the order of `names`, those of a pattern by their names.

    `hub/repo:*.gguf` stands for a repository's GGUF files, `folder/*.gguf` for a folder's, `folder/*`
    for all models in it. Of a split file only the first part counts, and what is beside models (mmproj,
    imatrix) not at all.

    Raises CheckpointError for a pattern that nothing fits, UsageError for a model that is named twice.
    """
    found: list[str] = []
    for name in names:
        is_pattern = _PATTERN.search(name) and not os.path.exists(name)  # noqa: PTH110
        found += _fitting(name, revision) if is_pattern else [name]
    seen: dict[str, str] = {}
    for name in found:
        place = os.path.realpath(name) if os.path.exists(name) else name  # noqa: PTH110
        if place in seen:
            raise UsageError(f"the same model twice: {seen[place]} and {name}")
        seen[place] = name
    return found


def is_finished_run(name: str) -> bool:
    """Tells whether a name is that of a run's folder, and not of a model."""
    return is_run(Path(name))


def _fitting(pattern: str, revision: str | None) -> list[str]:
    if (hub := named_gguf(pattern)) is not None:
        repo, wanted = hub
        names = [
            f"{repo}:{name}"
            for name in gguf_names(repo, revision)
            if fnmatchcase(name, wanted) or fnmatchcase(PurePosixPath(name).name, wanted)
        ]
    else:
        names = list(_models_here(sorted(glob.glob(pattern))))  # noqa: PTH207  a pattern may be absolute
    if not names:
        raise CheckpointError(f"{pattern}: no model fits this pattern")
    return names


def _models_here(paths: Sequence[str]) -> list[str]:
    from scoremode.checkpoint.gguf.place import model_files

    folders = [path for path in paths if os.path.isdir(path)]  # noqa: PTH112
    files = [path for path in paths if path.lower().endswith(".gguf") and path not in folders]
    return sorted([*folders, *model_files(files)])
