"""References by address: `hub:ORG/NAME@REV`, a data set's repository, or `https://…`, a folder there.

What is fetched becomes a folder like any other, in the cache of the hub's library, under the sha256 of
its record: the record first, with tokens and Scores; of states and head what a run needs, when its plan
is known. A server is a stranger. Nothing has its name in that folder before it has the hash that the
record gives it, no file may be larger than the record says, and a head that was left in its base's
checkpoint is read from the hub, of the commit that the record names, and never from a path.
"""

import fcntl
import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from scoremode.checkpoint.bulk_io import hash_file
from scoremode.checkpoint.config import read_json
from scoremode.checkpoint.model_files import INDEX, SINGLE
from scoremode.checkpoint.safetensors_files import MOST_HEADER, TensorInfo, tensors_in
from scoremode.errors import (
    ReferenceUnusable,
    RunFolderError,
    ScoremodeError,
    UsageError,
    words_of,
)
from scoremode.lib import https
from scoremode.lib.files import (
    MOST_JSON,
    MOST_TEXT,
    make_folder,
    open_lock,
    read_regular,
    write_text,
)
from scoremode.lib.hub import check_repo, downloaded, downloads, hub_call, on_hub, reader
from scoremode.results.folders.store import HEAD, RECORD, SCORES, TOKENS
from scoremode.results.folders.tables import most_bytes

if TYPE_CHECKING:
    from scoremode.reference.stored import StoredReference

__all__ = ["address_of", "complete", "located", "pending", "repository_of"]

_PLACE = ("scoremode", "references")
# Bytes of a head that are asked for at a time.
_PIECE = 1 << 26
# The most that a reference's file has before its tensors.
HEADER_BYTES = 1 << 20


class _File(NamedTuple):
    """A file of a reference: its name, the most bytes that it may have, what tells, of a whole one, why
    it isn't that file, and about how many bytes it has, 0 for a few."""

    name: str
    most: int
    misfit: Callable[[Path], str | None]
    size: int = 0


_Fetch = Callable[[Sequence[_File], Path], None]


class _Remote(Protocol):
    """A reference elsewhere; `source`: its address, on the hub with its commit, known by `record`."""

    source: str

    def record(self) -> bytes: ...

    def fetch(self, files: Sequence[_File], folder: Path) -> None:
        """Brings files, each as its `_part` in `folder`. Raises OSError, Misfit for one that is too
        large."""
        ...


@cache
def located(address: str) -> Path:
    """The folder of the reference at an address, with its record, tokens and Scores; a branch means
    the commit that it had when this process asked first.

    Raises UsageError, ReferenceUnusable.
    """
    remote = _remote(address)
    with _errors_of(remote):
        record = remote.record()
    root, digest = _root(), sha256(record).hexdigest()
    folder, new = root / digest, root / f".{digest}"
    with _alone(folder), _errors_of(remote, new):
        if not folder.is_dir():
            make_folder(new, below=root)
            write_text(_address_file(folder), remote.source)
            try:
                _fill(new, record, remote)
            except (ScoremodeError, https.Misfit):
                shutil.rmtree(new)
                _address_file(folder).unlink()
                raise
            new.rename(folder)
        write_text(_address_file(folder), remote.source)
    return folder


def address_of(folder: Path) -> str | None:
    """The address that a folder was fetched from, None of one that nobody fetched."""
    # Under another name of it, too: a path that its record has must not be believed there either.
    if (parent := folder.parent.resolve()).parts[-2:] != _PLACE or parent != _root().resolve():
        return None
    return read_regular(_address_file(folder), MOST_JSON, links=False).decode()


def pending(stored: "StoredReference", rows: int) -> int:
    """Bytes that a run of the first `rows` targets fetches of a reference: 0 of one that nobody
    fetched."""
    return sum(file.size for file in _missing(_needed(stored, rows), stored.path))


def complete(stored: "StoredReference", rows: int) -> None:
    """Fetches what a run of the first `rows` targets needs of a reference and its folder lacks.

    Raises ReferenceUnusable.
    """
    if not (files := _needed(stored, rows)):
        return
    assert stored.address is not None
    remote, folder = _remote(stored.address), stored.path
    with _alone(folder), _errors_of(remote):
        needed, free = pending(stored, rows), shutil.disk_usage(folder).free
        if needed > free:
            raise OSError(f"takes {needed / 1e9:.3g} GB, and {folder} has {free / 1e9:.3g} GB free")
        fetch = remote.fetch if stored.place_of_head is None else partial(_fetch_head, stored)
        # What may be refused before a byte of a gigabyte comes.
        _bring(fetch, files[:1], folder)
        _bring(remote.fetch, files[1:], folder)


def _needed(stored: "StoredReference", rows: int) -> list[_File]:
    """The head, and the files that hold the states of the first `rows` targets, of a reference that was
    fetched."""
    if stored.address is None:
        return []
    size = stored.head_bytes
    return [
        _File(HEAD, size + HEADER_BYTES, stored.misfit_of_head, size),
        *(
            _File(file.name, stored.most_of(file), _hashed(file.sha256), stored.bytes_of(file))
            for file in stored.files_of(rows)
        ),
    ]


def _fill(folder: Path, record: bytes, remote: _Remote) -> None:
    """Makes the folder of a reference of which only tokens and Scores are there."""
    from scoremode.reference.stored import StoredReference

    (folder / RECORD).write_bytes(record)
    found = StoredReference(folder).record
    files = [_File(SCORES, most_bytes(found.plan.scored), _hashed(found.scores.sha256))]
    if found.kept and found.kept.tokens:
        files.append(_File(TOKENS, MOST_TEXT, _hashed(found.kept.tokens.sha256)))
    _bring(remote.fetch, files, folder)


def _hashed(wanted: str) -> Callable[[Path], str | None]:
    def misfit(path: Path) -> str | None:
        if (found := hash_file(path)) == wanted:
            return None
        return f"its sha256 is {found[:12]}…, and the record has {wanted[:12]}…"

    return misfit


def _missing(files: Sequence[_File], folder: Path) -> list[_File]:
    return [file for file in files if not os.path.lexists(folder / file.name)]


def _bring(fetch: _Fetch, files: Sequence[_File], folder: Path) -> None:
    """Has those of the files in `folder` that are not there yet."""
    if not (missing := _missing(files, folder)):
        return
    for file in missing:
        make_folder((folder / file.name).parent, below=folder)
    try:
        fetch(missing, folder)
        for file in missing:
            if words := file.misfit(_part(folder, file.name)):
                raise https.Misfit(f"{file.name}: {words}")
            _part(folder, file.name).rename(folder / file.name)
    except https.Misfit:
        for file in missing:
            _part(folder, file.name).unlink(missing_ok=True)
        raise


def _part(folder: Path, name: str) -> Path:
    """The place of a file that is not known to be whole."""
    path = folder / name
    return path.with_name(f".{path.name}.part")


def repository_of(address: str) -> tuple[str, str | None]:
    """The repository that `hub:ORG/NAME@REV` names, and the revision, None without one. Raises
    UsageError."""
    repo, at, revision = address.removeprefix("hub:").partition("@")
    if not address.startswith("hub:") or repo.count("/") != 1 or (at and not revision):
        raise UsageError(f"{address}: is no address: give hub:ORG/NAME, or hub:ORG/NAME@REV")
    check_repo(repo)
    return repo, revision or None


class _Hub:
    """The data set's repository that `hub:ORG/NAME@REV` names."""

    def __init__(self, address: str):
        self.source = address
        self._repo, self._revision = repository_of(address)

    def record(self) -> bytes:
        from huggingface_hub import hf_hub_download

        call = partial(
            hf_hub_download, self._repo, RECORD, repo_type="dataset", revision=self._revision
        )
        _check_size(RECORD, hub_call(partial(call, dry_run=True)).file_size, MOST_JSON)
        path = downloaded(call)
        # All else is of the commit that has this record.
        self._revision = path.parent.name
        self.source = f"hub:{self._repo}@{self._revision}"
        return read_regular(path, MOST_JSON)

    def fetch(self, files: Sequence[_File], folder: Path) -> None:
        from huggingface_hub import snapshot_download

        call = partial(
            snapshot_download,
            self._repo,
            repo_type="dataset",
            revision=self._revision,
            allow_patterns=[escape(file.name) for file in files],
        )
        there = {file.filename: file for file in hub_call(partial(call, dry_run=True))}
        for file in files:
            if file.name not in there:
                raise OSError(f"has no {file.name}")
            _check_size(file.name, there[file.name].file_size, file.most)
        snapshot = downloaded(call)
        for file in files:
            part, blob = _part(folder, file.name), (snapshot / file.name).resolve()
            part.unlink(missing_ok=True)
            try:
                part.hardlink_to(blob)
            except OSError:
                # Another file system, or one without links: a copy is the same file.
                shutil.copyfile(blob, part)


def _check_size(name: str, size: int | None, most: int) -> None:
    if size is not None and size > most:
        raise https.Misfit(f"{name}: has {size:,} bytes, and its record allows {most:,}")


class _Https:
    """The folder at `https://…`."""

    def __init__(self, address: str):
        self.source = https.checked(address).rstrip("/")

    def record(self) -> bytes:
        return https.read(f"{self.source}/{RECORD}", MOST_JSON)

    def fetch(self, files: Sequence[_File], folder: Path) -> None:
        got = _counter(sum(file.size for file in files))
        for file in files:
            part = _part(folder, file.name)
            if part.exists():
                got(part.stat().st_size)
            try:
                https.download(f"{self.source}/{file.name}", part, file.most, got)
            except OSError as error:
                kind = https.Misfit if isinstance(error, https.Misfit) else OSError
                raise kind(f"{file.name}: {words_of(error, named=False)}") from None


def _counter(total: int) -> Callable[[int], None]:
    """A function that tells whoever follows downloads of bytes of `total`."""
    tell = downloads.tell
    if tell is None or not total:
        return lambda _: None
    tell(0, total)
    return lambda count: tell(count, total)


def _fetch_head(stored: "StoredReference", files: Sequence[_File], folder: Path) -> None:
    """Reads the head of a reference from its base's own checkpoint on the hub, and none of its other
    tensors, into the part of a safetensors file. Raises OSError."""
    (file,), where = files, stored.place_of_head
    assert where is not None
    repo, commit = on_hub(where.source) or ("", "")
    if not re.fullmatch(r"[0-9a-f]{40}", commit) or repo.count("/") != 1 or ":" in repo:
        raise OSError(
            f"its head was left in the checkpoint {where.source}, and the hub has none such at a "
            "commit: it has to be kept with --head stored"
        )
    try:
        tensors = {"weight": where.weight} | ({"bias": where.bias} if where.bias else {})
        _read_head(repo, commit, tensors, stored.vocabulary, _part(folder, file.name), file)
    except (OSError, ScoremodeError) as error:
        words = words_of(error, named=False)
        raise OSError(f"its head, in {where.source}: {words}") from None


def _read_head(
    repo: str, commit: str, tensors: dict[str, str], rows: int, part: Path, file: _File
) -> None:
    shards = _shards(repo, commit, list(tensors.values()))
    header, end, spans = {}, 0, []
    for name, tensor in tensors.items():
        info = _on_hub(repo, commit, shards[tensor], tensor)
        size = info.bytes // max(1, info.shape[0]) * rows
        header[name] = {
            "dtype": info.dtype,
            "shape": [rows, *info.shape[1:]],
            "data_offsets": [end, end + size],
        }
        spans.append((shards[tensor], info.begin, size))
        end += size
    if end > file.most:
        raise https.Misfit(f"has {end:,} bytes, and its record allows {file.most:,}")
    first = json.dumps(header).encode()
    first += b" " * (-len(first) % 8)
    first = struct.pack("<Q", len(first)) + first
    got = _counter(file.size)
    with open_lock(part, len(first) + end) as opened:
        if (have := opened.seek(0, 2)) < len(first):
            opened.seek(0)
            have = opened.write(first)
        have -= len(first)
        got(have)
        for shard, begin, size in spans:
            skipped = min(have, size)
            have -= skipped
            with reader(repo, commit, shard) as read:
                for at in range(begin + skipped, begin + size, _PIECE):
                    got(opened.write(read(at, min(at + _PIECE, begin + size))))


def _shards(repo: str, commit: str, tensors: Sequence[str]) -> dict[str, str]:
    """The safetensors file of each tensor."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        index = hub_call(partial(hf_hub_download, repo, INDEX, revision=commit))
    except OSError as error:
        if not isinstance(error.__cause__, EntryNotFoundError):
            raise
        return dict.fromkeys(tensors, SINGLE)
    found = read_json(Path(index)).get("weight_map")
    for tensor in tensors:
        name = found.get(tensor) if isinstance(found, dict) else None
        if not isinstance(name, str) or Path(name).name != name:
            raise OSError(f"{INDEX}: has no file of tensor {tensor}")
    assert isinstance(found, dict)
    return {tensor: found[tensor] for tensor in tensors}


def _on_hub(repo: str, commit: str, shard: str, tensor: str) -> TensorInfo:
    """What a safetensors file on the hub says of a tensor."""
    with reader(repo, commit, shard) as read:
        (length,) = struct.unpack("<Q", read(0, 8))
        if length > MOST_HEADER:
            raise OSError(f"{shard}: is not safetensors")
        for info in tensors_in(Path(shard), read(8, 8 + length), 8 + length):
            if info.name == tensor:
                return info
    raise OSError(f"{shard}: has no tensor {tensor}")


def _remote(address: str) -> _Hub | _Https:
    return _Hub(address) if address.startswith("hub:") else _Https(address)


def _root() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_ASSETS_CACHE, *_PLACE).absolute()


def _address_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name.lstrip('.')}.address")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits for others that fetch the same, and keeps them waiting in the block."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = open_lock(folder.with_name(f"{folder.name}.lock"), 0)
    except OSError as error:
        raise ReferenceUnusable(f"{folder.parent}: cannot be written: {error.strerror}") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _errors_of(remote: _Remote, folder: Path | None = None) -> Iterator[None]:
    """Has errors name the address, also where they name a `folder` that is not to stay."""
    try:
        yield
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        words = where + words_of(error, named=False)
    except (ReferenceUnusable, RunFolderError) as error:
        if folder is None:
            raise
        words = str(error).replace(str(folder), "").lstrip("/: ")
    else:
        return
    raise ReferenceUnusable(f"{remote.source}: {words}") from None
