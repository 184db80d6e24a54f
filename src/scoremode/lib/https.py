"""Files at https addresses: read whole, or fetched into a file from where an earlier try broke off.

The time-out is that of the hub's downloads, `HF_HUB_DOWNLOAD_TIMEOUT`. Another host is never asked: an
address is what the user trusts, so a redirect to one is an error.
"""

from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from scoremode import __version__
from scoremode.errors import UsageError, words_of
from scoremode.lib.files import open_lock, read_at_most

__all__ = ["Misfit", "checked", "download", "read"]

_TRIES = 5
_CHUNK = 1 << 20


class Misfit(OSError):
    """What a server has is not what was asked for: going on with it is of no use."""


def checked(url: str) -> str:
    """An address that has no secret in it, since records and errors name it. Raises UsageError for
    another."""
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query or parts.fragment or not parts.hostname:
        raise UsageError(
            f"https://{parts.hostname}…: give an address without a user's name, a password, a query or "
            "a fragment"
        )
    return url


def read(url: str, most: int) -> bytes:
    """The bytes of a file of at most `most`. Raises OSError, naming the host."""
    for tries in range(1, _TRIES + 1):
        try:
            with _opened(url, 0) as answer:
                _check_length(answer, 0, most)
                return read_at_most(answer, url, most)
        except (OSError, HTTPException) as error:
            _end_or_go_on(url, error, is_last=tries == _TRIES)
    raise AssertionError("the last try returns or raises")


def download(url: str, part: Path, most: int, got: Callable[[int], None]) -> None:
    """Fetches a file of at most `most` bytes into `part`, from where that ends; `got` is told of bytes
    as they come, and with a negative number where a server sends all again.

    What has come stays in `part` where the connection breaks off. Raises OSError, naming the host, and
    Misfit for a file that is larger, or elsewhere.
    """
    for tries in range(1, _TRIES + 1):
        try:
            return _append(url, part, most, got)
        except (OSError, HTTPException) as error:
            _end_or_go_on(url, error, is_last=tries == _TRIES)


def _append(url: str, part: Path, most: int, got: Callable[[int], None]) -> None:
    with open_lock(part, most) as file:
        have = file.seek(0, 2)
        try:
            answer = _opened(url, have)
        except HTTPError as error:
            if have and error.code == 416:
                error.close()
                return  # There is no more. Whether it is the file, its hash tells.
            raise
        with answer:
            if have and answer.status != 206:
                got(-have)
                have = file.seek(0)
                file.truncate()
            end = _check_length(answer, have, most)
            while chunk := answer.read(_CHUNK):
                have += len(chunk)
                if have > most:
                    raise Misfit(f"has more than {most:,} bytes, the most that its record allows")
                file.write(chunk)
                got(len(chunk))
            if end is not None and have < end:
                raise ConnectionError(f"the connection broke off at byte {have:,} of {end:,}")


def _check_length(answer: HTTPResponse, have: int, most: int) -> int | None:
    """The bytes of the whole file, of which the first `have` are here, where the server says so."""
    said = answer.headers.get("Content-Length", "")
    if not said.isdecimal():
        return None
    if (end := have + int(said)) > most:
        raise Misfit(f"has {end:,} bytes, and its record allows {most:,}")
    return end


class _SameHost(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        new, old = urlsplit(newurl), urlsplit(req.full_url)
        if (new.scheme, new.netloc) != (old.scheme, old.netloc):
            fp.close()
            raise Misfit(f"redirects to {new.scheme}://{new.hostname}, another host")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opened(url: str, begin: int) -> HTTPResponse:
    from huggingface_hub import constants

    headers = {"User-Agent": f"scoremode/{__version__}"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    return build_opener(_SameHost).open(Request(url, headers=headers), timeout=timeout)


def _end_or_go_on(url: str, error: Exception, *, is_last: bool) -> None:
    """Raises the error of a try in words that name the host, unless another may go well."""
    answered = isinstance(error, HTTPError)
    if answered:
        # It is the answer, too, and holds the connection.
        error.close()
    reason = error.reason if isinstance(error, URLError) and not answered else error
    passes = (HTTPException, ConnectionError, TimeoutError)
    may_pass = error.code >= 500 if answered else isinstance(reason, passes)
    if is_last or not may_pass:
        words = words_of(
            reason if isinstance(reason, BaseException) else OSError(reason), named=False
        )
        kind = Misfit if isinstance(error, Misfit) else OSError
        raise kind(f"{urlsplit(url).netloc}: {words}") from None
