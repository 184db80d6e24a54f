"""The GGUF file that a name means: in a folder, or among a hub repository's files.

GGUF files of the hub: one model's alone are downloaded, of the many quants that a repository has.
"""

import re
from collections.abc import Iterable
from functools import partial
from glob import escape
from pathlib import Path, PurePosixPath

from scoremode.checkpoint.gguf.header import first_of, parts_of
from scoremode.errors import CheckpointError, words_of
from scoremode.text.hub_client import asked

__all__ = [
    "choose",
    "download_gguf",
    "gguf_names",
    "has_gguf_alone",
    "is_gguf",
    "model_files",
    "named_gguf",
    "only_gguf",
]


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


# What the hub calls a repository, then what is wanted of it.
_NAME = re.compile(r"([\w.-]+/[\w.-]+):([^:]+)")


def named_gguf(model: str) -> tuple[str, str] | None:
    """The repository and what is wanted of it, of a name such as `org/repo:Q4_K_M`; None of others."""
    found = _NAME.fullmatch(model)
    return (found[1], found[2]) if found else None


def has_gguf_alone(repo: str, revision: str | None) -> bool:
    """Tells whether a repository has its weights as GGUF, as far as the hub or its cache can tell."""
    try:
        names = [name.lower() for name in _files(repo, revision)]
    except OSError:
        # Another error's matter: the repository was just there.
        return False
    return any(name.endswith(".gguf") for name in names) and not any(
        name.endswith(".safetensors") for name in names
    )


def gguf_names(repo: str, revision: str | None) -> list[str]:
    """The models among a repository's GGUF files, those of splits by their first, as far as the hub or
    its cache can tell. Raises CheckpointError."""
    try:
        return model_files(_files(repo, revision))
    except OSError as error:
        raise CheckpointError(
            f"{repo}: not to be had from the hub ({words_of(error, named=False)})"
        ) from None


def download_gguf(repo: str, revision: str | None, wanted: str | None) -> tuple[Path, str]:
    """The GGUF file that is `wanted` of a repository, downloaded with the other files of its split, and
    what to call it in a record. Raises CheckpointError."""
    from huggingface_hub import snapshot_download

    try:
        names = _files(repo, revision)
        first = choose(repo, names, wanted)
        parts = [
            str(PurePosixPath(first).with_name(n)) for n in parts_of(PurePosixPath(first).name)
        ]
        if missing := [name for name in parts if name not in names]:
            raise CheckpointError(f"{repo}: has {first}, and not {missing[0]}, a part of it")
        # All of one commit; offline what the cache has of it.
        patterns = [escape(name) for name in parts]
        call = partial(snapshot_download, repo, revision=revision, allow_patterns=patterns)
        folder = Path(asked(call))
    except OSError as error:
        raise CheckpointError(
            f"{repo}: not to be had from the hub ({words_of(error, named=False)})"
        ) from None
    for name in parts:
        if not (folder / name).is_file():
            raise CheckpointError(f"{repo}: its {name} is gone at commit {folder.name}")
    return folder / first, f"hub:{repo}:{first}@{folder.name}"


def _files(repo: str, revision: str | None) -> list[str]:
    """The names of a revision's files; offline, of those that the cache has. Raises OSError."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        info = asked(partial(HfApi().model_info, repo, revision=revision))
    except OSError as error:
        reason = error.__cause__
        if isinstance(reason, RepositoryNotFoundError | RevisionNotFoundError):
            raise
        if not isinstance(reason, HTTPError | OfflineModeIsEnabled):
            raise
        if not (cached := _cached(repo, revision or "main")):
            raise
        return cached
    return _harmless(s.rfilename for s in info.siblings or ())


def _cached(repo: str, revision: str) -> list[str]:
    """The GGUF files of a revision that were fetched before."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE, "models--" + repo.replace("/", "--"))
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        ref = folder / "refs" / revision
        if not ref.is_file():
            return []
        revision = ref.read_text().strip()
    snapshot = folder / "snapshots" / revision
    return [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf")]


def _harmless(names: Iterable[str]) -> list[str]:
    """Those that name a file below a folder, in characters that can be printed."""
    return [
        name
        for name in names
        if isinstance(name, str)
        and name.isprintable()
        and not name.startswith("/")
        and "\\" not in name
        and ".." not in PurePosixPath(name).parts
    ]
