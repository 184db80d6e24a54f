"""The GGUF file that a name means: in a folder, or among a hub repository's files."""

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from scoremode.checkpoint.gguf.split import first_of
from scoremode.errors import CheckpointError

__all__ = ["choose", "is_gguf", "model_files", "only_gguf"]

# Beside a model lie its vision tower and what it was quantized by, which are GGUF files too; models say
# of themselves that they were, and name their quant.
_NO_MODEL = re.compile(
    r".*mmproj|(?!.*(?<![a-z0-9])(i?q\d|tq\d|b?f16|f32|mxfp4|nvfp4)).*imatrix", re.IGNORECASE
)
_MOST_SHOWN = 20


def is_gguf(path: Path) -> bool:
    """Tells whether `path` is a file that is called a GGUF file."""
    return path.suffix.lower() == ".gguf" and path.is_file()


def only_gguf(folder: Path) -> Path | None:
    """The one model of a folder's GGUF files, None where it has none of them.

    Raises CheckpointError for several.
    """
    names = model_files(path.name for path in folder.glob("*") if path.is_file())
    if not names:
        return None
    if len(names) > 1:
        raise CheckpointError(f"{folder}: which of its GGUF files? {_listed(names)}")
    return folder / names[0]


def choose(repo: str, files: Iterable[str], wanted: str | None) -> str:
    """The GGUF file of a repository that is `wanted`: by its name, or by that of a quant that one alone
    has, such as Q4_K_M; the only one where nothing is said. Of a split the first.

    Raises CheckpointError, with the candidates.
    """
    names = model_files(files)
    if not names:
        raise CheckpointError(f"{repo}: has no GGUF files")
    if wanted is None:
        found = names
    elif wanted.lower().endswith(".gguf"):
        # In a folder of the repository, too, where no other has the name.
        exact = [name for name in files if name == wanted]
        found = exact or [name for name in files if PurePosixPath(name).name == wanted]
    else:
        quant = re.compile(rf"(?<![A-Za-z0-9]){re.escape(wanted)}(?![A-Za-z0-9_])", re.IGNORECASE)
        found = [name for name in names if quant.search(PurePosixPath(name).stem)]
    if len(found) == 1:
        if (first := _first(found[0])) != found[0]:
            raise CheckpointError(
                f"{repo}:{wanted}: is a part of a split model: give its first file, {first}"
            )
        return found[0]
    which = repo if wanted is None else f"{repo}:{wanted}"
    if not found:
        raise CheckpointError(f"{which}: is none of its GGUF files: {_listed(names)}")
    raise CheckpointError(f"{which}: which of its GGUF files? {_listed(found)}")


def model_files(files: Iterable[str]) -> list[str]:
    """The models among names of GGUF files, those of splits by their first."""
    found = (name for name in files if name.lower().endswith(".gguf"))
    return sorted({_first(name) for name in found if not _NO_MODEL.match(PurePosixPath(name).name)})


def _first(name: str) -> str:
    path = PurePosixPath(name)
    return str(path.with_name(first_of(path.name)))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(names[:_MOST_SHOWN]) + more
