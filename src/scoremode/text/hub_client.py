"""The hub's library, with bounds on how long a server may say nothing.

It asks for some answers without a timeout, and takes any stream that goes on, however slow. Here every
request has one, a stream must bring a thousand bytes a second, and no server's `Retry-After` is waited
for longer than it is worth. How often it tries again is the library's own.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeVar
from urllib.parse import urlsplit

from scoremode.errors import ScoremodeError, words_of

__all__ = ["asked"]

T = TypeVar("T")

# Seconds without a byte.
_SILENCE = 10.0
# How often that may happen before the library's own tries, and seconds between.
_TRIES, _PAUSE = 3, 1.0
# Seconds in which a stream must bring so many bytes.
_WINDOW, _LEAST = 60.0, 60_000
# Seconds that a server may ask to wait.
_LONGEST_WAIT = 30


class TooSlow(OSError):
    """A stream that hardly goes on; none of the library's retries are for it."""


def asked(call: Callable[[], T], *, most: int = _TRIES) -> T:
    """Returns what `call` of the hub's library returns. Raises OSError, naming the host, for whatever
    it raises about what the server said, or did not say. `most`: how often it is tried; 1 for what must
    not be done twice."""
    from huggingface_hub import constants

    _bound()
    begin = time.monotonic()
    for tries in range(1, most + 1):
        try:
            return call()
        except ScoremodeError:
            raise
        # Not hidden: it is the reason. A server that answers with something else than the hub does is
        # a KeyError or a TypeError in the library.
        except Exception as error:
            # Where the library has tried again by itself, that took longer.
            again = tries < most and time.monotonic() - begin < _TRIES * _SILENCE
            if again and _may_pass(error):
                time.sleep(_PAUSE)
                continue
            host = urlsplit(constants.ENDPOINT).netloc or constants.ENDPOINT
            raise OSError(f"{host}: {words_of(_reason(error), 200)}") from error
    raise AssertionError("the last try returns or raises")


def _reason(error: Exception) -> BaseException:
    """What went wrong. The library's LocalEntryNotFoundError says that nothing is in the cache, and has
    the connection's own error behind it."""
    is_cached_only = type(error).__name__ == "LocalEntryNotFoundError"
    return error.__cause__ if is_cached_only and error.__cause__ is not None else error


def _may_pass(error: Exception) -> bool:
    """Tells whether a server said nothing or broke off, so that another try may go well."""
    names = {base.__name__ for base in type(error).__mro__}
    return not names.isdisjoint({"TimeoutException", "ReadError", "RemoteProtocolError"})


def _bound() -> None:
    """Has the library make its clients with our hooks, unless a program has set its own factory, and
    show its bars on a terminal alone, and its warnings to whom asks for them."""
    from huggingface_hub import constants, set_client_factory
    from huggingface_hub.utils import _http, disable_progress_bars, logging

    # In a log a bar would be a line for each of its steps. Who sets the variable has decided.
    if constants.HF_HUB_DISABLE_PROGRESS_BARS is None and not sys.stderr.isatty():
        disable_progress_bars()
    # Tries that fail are its warnings, in lines that are not ours; the last one's reason is our error.
    if "HF_HUB_VERBOSITY" not in os.environ and not constants.HF_DEBUG:
        logging.set_verbosity_error()
    if _http._GLOBAL_CLIENT_FACTORY is _http.default_client_factory:
        set_client_factory(_client)


def _client() -> Any:
    from huggingface_hub.utils._http import default_client_factory

    client = default_client_factory()
    # httpx, or its successor of another name.
    library = import_module(type(client).__module__.partition(".")[0])

    class Watched(library.SyncByteStream):
        """A response's bytes, as long as they come at a pace."""

        def __init__(self, stream: Any):
            self._stream = stream

        def __iter__(self) -> Iterator[bytes]:
            begin, count = time.monotonic(), 0
            for chunk in self._stream:
                yield chunk
                count += len(chunk)
                if (took := time.monotonic() - begin) > _WINDOW:
                    if count < _LEAST:
                        raise TooSlow(f"sends {count} bytes in {took:.0f} s")
                    begin, count = time.monotonic(), 0

        def close(self) -> None:
            self._stream.close()

    def before(request: Any) -> None:
        given = request.extensions.get("timeout") or {}
        names = ("connect", "read", "write", "pool")
        request.extensions["timeout"] = {n: given.get(n) or _SILENCE for n in names}

    def after(response: Any) -> None:
        response.stream = Watched(response.stream)
        wait = response.headers.get("Retry-After", "")
        with suppress(ValueError):
            if wait and float(wait) > _LONGEST_WAIT:
                response.headers["Retry-After"] = str(_LONGEST_WAIT)
        # The library waits for as long as this says, whatever it is.
        response.headers.pop("ratelimit", None)

    hooks = client.event_hooks
    client.event_hooks = {
        "request": [*hooks["request"], before],
        "response": [*hooks["response"], after],
    }
    return client
