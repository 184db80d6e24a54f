"""A sweep's manifest on disk: written whole at every step, and believed only where it is sealed."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from scoremode.errors import RunFolderError
from scoremode.lib.files import MOST_JSON, read_regular, take, write_text
from scoremode.lib.json import json_text
from scoremode.results.folders.store import seal_of
from scoremode.results.record.shape import misfit
from scoremode.runs.sweep.definition import MANIFEST, SCHEMA, SCHEMA_VERSION, Entry, Manifest

__all__ = ["held", "place_in", "placed", "read_manifest", "unfinished", "write_manifest"]


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Makes the folder, and holds it: raises RunFolderError while another sweep writes into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be a sweep's folder: {error.strerror}") from None
    try:
        try:
            take(descriptor)
        except BlockingIOError:
            raise RunFolderError(f"{folder}: another sweep is writing into it") from None
        yield
    finally:
        os.close(descriptor)


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of the sweep in `folder`, None where there is none.

    Raises RunFolderError for what is no manifest, or not as it was written.
    """
    file = folder / MANIFEST
    if not os.path.lexists(file):
        return None
    try:
        found = json.loads(read_regular(file, MOST_JSON, links=False))
    except OSError as error:
        raise RunFolderError(f"{file}: not readable: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{file}: not JSON: {error}") from None
    shape = {"schema": str, "schema_version": int, "entries": list, "sha256": str}
    if not isinstance(found, dict) or misfit(found, shape) or found["schema"] != SCHEMA:
        raise RunFolderError(f"{file}: is no sweep's manifest: remove it, or name another folder")
    if found["schema_version"] != SCHEMA_VERSION:
        raise RunFolderError(
            f"{file}: is of version {found['schema_version']}, and this scoremode's {SCHEMA_VERSION}"
        )
    if seal_of(found) != found["sha256"] or not all(map(_is_entry, found["entries"])):
        raise RunFolderError(
            f"{file}: was changed after it was written: remove it, and the runs in {folder} are found "
            "by themselves"
        )
    return cast(Manifest, found)


def unfinished(folder: Path) -> list[dict[str, Any]] | None:
    """The models of a sweep that have no run to look at, as `status` tells of runs; None without sweep.

    Each with `folder`, the sweep's, `state` (`waiting` or `failed`), `model`, `reference`, `protocol`,
    `text`, and the `problem`: of one that waits, that nobody works on the sweep. Raises RunFolderError
    as `read_manifest` does.
    """
    if (manifest := read_manifest(folder)) is None:
        return None
    left = None if _is_held(folder) else "its sweep was ended: the same command goes on with it"
    found = []
    for entry in manifest["entries"]:
        if entry["status"] in ("waiting", "failed"):
            pair = manifest["pairs"][entry["pair"]]
            found.append(
                {
                    "folder": str(folder),
                    "state": entry["status"],
                    "model": entry["model"],
                    "reference": manifest["base"],
                    "protocol": pair["protocol"],
                    "text": pair["corpus"],
                    "problem": entry["error"] or left,
                }
            )
    return found


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes it sealed, whole or not at all. Raises RunFolderError."""
    manifest["sha256"] = seal_of(cast(dict[str, Any], manifest))
    write_text(folder / MANIFEST, json_text(cast(dict[str, Any], manifest)))


def placed(folder: Path, path: Path) -> str:
    """A path as the manifest in `folder` has it: relative where it lies inside."""
    own, other = folder.resolve(), path.resolve()
    return str(other.relative_to(own)) if other.is_relative_to(own) else str(other)


def place_in(folder: Path, path: str) -> Path:
    """The path that a manifest in `folder` means."""
    return folder / path


def _is_held(folder: Path) -> bool:
    """Tells whether a sweep writes into `folder`; one that begins meanwhile is not turned away."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.keys() == Entry.__annotations__.keys()
