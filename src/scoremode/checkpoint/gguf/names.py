"""The GGUF file that a name means among the many quants of a folder, or of a hub repository."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from scoremode.checkpoint.gguf.header import first_of, parts_of
from scoremode.errors import CheckpointError, words_of
from scoremode.lib.hub import find_revision

# Beside a model lie its vision tower and what it was quantized by, which are GGUF files too; models say
# of themselves that they were, and name their quant.
_NO_MODEL = re.compile(
    r".*mmproj|(?!.*(?<![a-z0-9])(i?q\d|tq\d|b?f16|f32|mxfp4|nvfp4)).*imatrix", re.IGNORECASE
)
_MOST_SHOWN = 20


def is_gguf(path: Path) -> bool:
    """Tells whether `path` is a file that is called a GGUF file."""
    return path.suffix.lower() == ".gguf" and path.is_file()


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
        raise CheckpointError(f"{which}: is none of its GGUF files: {listed(names)}")
    raise CheckpointError(f"{which}: which of its GGUF files? {listed(found)}")


def model_files(files: Iterable[str]) -> list[str]:
    """The models among names of GGUF files, those of splits by their first."""
    found = (name for name in files if name.lower().endswith(".gguf"))
    return sorted({_first(name) for name in found if not _NO_MODEL.match(PurePosixPath(name).name)})


def _first(name: str) -> str:
    path = PurePosixPath(name)
    return str(path.with_name(first_of(path.name)))


def listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(names[:_MOST_SHOWN]) + more


# A repository as the hub names it, then the file or quant that is wanted of it.
_NAME = re.compile(r"([\w.-]+/[\w.-]+):([^:]+)")


def named_gguf(model: str) -> tuple[str, str] | None:
    """The repository and what is wanted of it, of a name such as `org/repo:Q4_K_M`; None of others."""
    match = _NAME.fullmatch(model)
    return (match[1], match[2]) if match else None


def gguf_names(repo: str, revision: str | None) -> list[str]:
    """The models among a repository's GGUF files, those of splits by their first, as far as the hub or
    its cache can tell. Raises CheckpointError."""
    try:
        return model_files(find_revision(repo, revision).files)
    except OSError as error:
        raise CheckpointError(
            f"{repo}: not to be had from the hub ({words_of(error, named=False)})"
        ) from None


def gguf_parts(repo: str, names: Sequence[str], wanted: str | None) -> list[str]:
    """The files of the model that is `wanted` of a repository, of a split all, the first one first.
    Raises CheckpointError."""
    first = choose(repo, names, wanted)
    path = PurePosixPath(first)
    parts = [str(path.with_name(name)) for name in parts_of(path.name)]
    if missing := [name for name in parts if name not in names]:
        raise CheckpointError(f"{repo}: has {first}, and not {missing[0]}, a part of it")
    return parts
