"""GGUF files of the hub: one model's alone are downloaded, of the many quants that a repository has."""

import re
from collections.abc import Iterable
from functools import partial
from glob import escape
from pathlib import Path, PurePosixPath

from scoremode.checkpoint.gguf.place import choose, model_files
from scoremode.checkpoint.gguf.split import parts_of
from scoremode.errors import CheckpointError, words_of
from scoremode.text.hub_client import asked

__all__ = ["download_gguf", "gguf_names", "has_gguf_alone", "named_gguf"]

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
