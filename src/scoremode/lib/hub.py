"""The Hugging Face hub: calls of its library, with their errors in one line; downloads, counted; and a
revision's commit.

Time-outs are huggingface_hub's own: `HF_HUB_ETAG_TIMEOUT` for a question about a repository,
`HF_HUB_DOWNLOAD_TIMEOUT` for a download, both ten seconds without a byte where they aren't set. The
library tries a download again by itself; a question whose answer broke off is asked again here.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from scoremode.errors import ScoremodeError, UsageError, words_of

__all__ = [
    "Revision",
    "check_repo",
    "downloaded",
    "downloads",
    "find_revision",
    "hub_call",
    "is_address",
    "on_hub",
    "reader",
]

T = TypeVar("T")

# Tries of a call, and seconds between them.
_TRIES, _PAUSE = 3, 1.0


class _Downloads:
    """Whoever is told of downloads: `tell` gets the bytes newly there, and those of all in all."""

    def __init__(self) -> None:
        self.tell: Callable[[float, int], None] | None = None


downloads = _Downloads()


class Revision(NamedTuple):
    """A repository at one commit.

    - `files`: the names of its files there.
    - `unreachable`: the hub's error, where its cache was asked instead; `files` are then those that
      were fetched before.
    """

    commit: str
    files: list[str]
    unreachable: OSError | None = None


def on_hub(source: str) -> tuple[str, str] | None:
    """The repository and the commit of a record's source `hub:ORG/NAME@COMMIT`, the latter "" where it
    has none; None of a path."""
    if not source.startswith("hub:"):
        return None
    repo, _, commit = source.removeprefix("hub:").partition("@")
    return repo, commit


def is_address(base: str) -> bool:
    """Tells whether a base is named by an address. Raises UsageError for one of a kind that isn't
    read."""
    if base.startswith("hub:"):
        return True
    scheme, separator, rest = base.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][\w.+-]*", scheme):
        return False
    if scheme != "https":
        # An address may have a password in it.
        host = urlsplit(f"https://{rest}").hostname
        raise UsageError(
            f"{scheme}://{host}…: no reference is read from there: give hub:ORG/NAME@REV, "
            "https://…, a folder or a model"
        )
    return True


def hub_call(call: Callable[[], T], *, most: int = _TRIES) -> T:
    """Returns the result of a `call` of the hub's library. Raises OSError, naming the host, for any
    error of the library's. `most`: how often it is tried; 1 for a call that must not be made twice."""
    from huggingface_hub import constants

    _quiet()
    for tries in range(1, most + 1):
        try:
            return call()
        except ScoremodeError:
            raise
        # Not hidden: it is the reason. A server that answers with something else than the hub does is
        # a KeyError or a TypeError in the library.
        except Exception as error:
            if tries < most and _may_pass(error):
                time.sleep(_PAUSE)
                continue
            host = urlsplit(constants.ENDPOINT).netloc or constants.ENDPOINT
            raise OSError(f"{host}: {words_of(_reason(error), 200)}") from error
    raise AssertionError("the last try returns or raises")


def downloaded(download: Callable[..., str], *args: Any, **options: Any) -> Path:
    """Where `download`, the library's `snapshot_download` or `hf_hub_download`, puts what it is asked
    for; whoever follows `downloads` is told of its bytes. Raises OSError as `hub_call` does."""
    call, tell = partial(download, *args, **options), downloads.tell
    if tell is None:
        return Path(hub_call(call))
    # How much it will be is known beforehand: a bar of the library's learns it file by file.
    planned: Any = hub_call(partial(call, dry_run=True))
    files = planned if isinstance(planned, list) else [planned]
    total = sum(file.file_size or 0 for file in files if file.will_download)
    if not total:
        return Path(hub_call(call))
    tell(0, total)
    return Path(hub_call(lambda: call(tqdm_class=_counter(tell, total))))


def _counter(tell: Callable[[float, int], None], total: int) -> type:
    """A class for the library's bars, which draws none and tells the bytes of all."""
    from huggingface_hub.utils import tqdm

    lock, bars, told = threading.Lock(), [], [0]

    class Counter(tqdm):
        def __init__(self, *args: Any, **options: Any):
            self.is_of_bytes, self.bytes = options.get("unit") == "B", options.get("initial") or 0
            super().__init__(*args, **{**options, "disable": True})
            bars.append(self)

        def update(self, n: float | None = 1) -> None:
            if not self.is_of_bytes:
                return
            with lock:
                self.bytes += n or 0
                # A bar of bytes received and another of bytes written count the same ones.
                new = min(total, max(bar.bytes for bar in bars if bar.is_of_bytes)) - told[0]
                if new > 0:
                    told[0] += new
                    tell(new, total)

    return Counter


@contextmanager
def reader(repo: str, commit: str, name: str) -> Iterator[Callable[[int, int], bytes]]:
    """Within a block, a function that reads the bytes `begin … end` of a model's file on the hub, and
    nothing else of it. Raises OSError as `hub_call` does."""
    from huggingface_hub import HfFileSystem

    system = HfFileSystem()
    call = partial(system.open, f"{repo}@{commit}/{name}", "rb", cache_type="none")
    opened: Any = hub_call(call)
    with opened as file:

        def read(begin: int, end: int) -> bytes:
            file.seek(begin)
            data = hub_call(partial(file.read, end - begin))
            if len(data) != end - begin:
                raise OSError(f"{repo}/{name}: ends before byte {end:,}")
            return data

        yield read


def check_repo(repo: str) -> None:
    """Raises UsageError for what is no name of a repository."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UsageError(f"{repo}: {words_of(error, named=False)}") from None


def find_revision(
    repo: str, revision: str | None, kind: Literal["model", "dataset"] = "model"
) -> Revision:
    """The commit that a branch, tag or commit of a repository means now, and its files.

    Where the hub can't be reached, the commit that its cache last saw there. Raises OSError for a
    repository or revision that isn't there, and where neither the hub nor the cache knows it.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import (
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    ask = HfApi().model_info if kind == "model" else HfApi().dataset_info
    try:
        info = hub_call(
            partial(ask, repo, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        )
    except OSError as error:
        reason = error.__cause__
        if isinstance(reason, RepositoryNotFoundError | RevisionNotFoundError):
            raise
        if not isinstance(reason, HTTPError | OfflineModeIsEnabled):
            raise
        if (cached := _cached(repo, revision or "main", kind)) is None:
            raise
        return Revision(*cached, error)
    if not isinstance(info.sha, str):
        raise OSError(f"the hub names no commit of {revision or 'main'}")
    return Revision(info.sha, _harmless(file.rfilename for file in info.siblings or ()))


def _harmless(names: Iterable[str]) -> list[str]:
    """The names that stand for files below a folder, in characters that can be printed."""
    return [
        name
        for name in names
        if isinstance(name, str)
        and name.isprintable()
        and not name.startswith("/")
        and "\\" not in name
        and ".." not in PurePosixPath(name).parts
    ]


def _cached(repo: str, revision: str, kind: str) -> tuple[str, list[str]] | None:
    """The commit of a revision in the cache, and the files of it that were fetched before."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE, f"{kind}s--" + repo.replace("/", "--"))
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        ref = folder / "refs" / revision
        if not ref.is_file():
            return None
        revision = ref.read_text().strip()
    snapshot = folder / "snapshots" / revision
    files = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.*")]
    return (revision, sorted(files)) if files else None


def _reason(error: Exception) -> BaseException:
    """The error's origin: the library's LocalEntryNotFoundError says that nothing is in the cache, and
    has the connection's own error behind it."""
    is_cached_only = type(error).__name__ == "LocalEntryNotFoundError"
    return error.__cause__ if is_cached_only and error.__cause__ is not None else error


def _may_pass(error: Exception) -> bool:
    """Tells whether a server said nothing or broke off, so that another try may go well."""
    names = {base.__name__ for base in type(error).__mro__}
    return not names.isdisjoint({"TimeoutException", "ReadError", "RemoteProtocolError"})


def _quiet() -> None:
    """Has the library show no bars, which are our screen's, and its warnings on request."""
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars, logging

    # Who sets the variable has decided.
    if constants.HF_HUB_DISABLE_PROGRESS_BARS is None:
        disable_progress_bars()
    # Tries that fail are its warnings, in lines that are not ours; the last one's reason is our error.
    if "HF_HUB_VERBOSITY" not in os.environ and not constants.HF_DEBUG:
        logging.set_verbosity_error()
