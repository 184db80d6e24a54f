"""HTTP to one server and nowhere else: JSON in, JSON out, bounded, asked again where that helps.

The standard library's client does it: no redirect is followed, no proxy asked, and certificates are
checked. A key comes from the environment, goes into one header, and is taken out of whatever the server
says before anybody reads it.
"""

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from scoremode.errors import EngineError, UsageError, words_of

# Seconds before each further attempt, the first at once: a connection that was kept may be gone by now.
# And the most that a server's Retry-After is heeded for.
PAUSES = (0, 1, 2, 4, 8, 16)
_LONGEST_PAUSE = 60
# Busy, or behind a gateway that doesn't reach it just now.
_BUSY = (408, 425, 429, 502, 503, 504)
_CHUNK = 1 << 16
# Bytes of a reply that was asked for no log-probabilities.
_SMALL = 1 << 22
# Characters of a server's own words.
_WORDS = 300
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ServerError(EngineError):
    """A server that can't be reached, or that refuses. `status`: the reply's, None without one;
    `retry_after`: the seconds that it asks for."""

    status: int | None = None
    retry_after: int = 0


@dataclass(frozen=True)
class Address:
    """A base URL, such as `http://host:8000/v1`; `path`: before its `/v1`."""

    is_safe: bool
    host: str
    port: int | None
    path: str

    @classmethod
    def parsed(cls, url: str) -> Self:
        """Raises UsageError for what is no base URL, and for one that holds a password or a query."""
        flag = "--base-url"
        try:
            found = urlsplit(url)
            host, port = found.hostname, found.port
        except ValueError as error:
            raise UsageError(f"{flag}: is no URL: {error}") from None
        if found.username is not None or found.password is not None:
            # Not shown: it has the password.
            raise UsageError(
                f"{flag}: has a name or a password in it: --api-key-env NAME names a key"
            )
        if found.scheme not in ("http", "https") or not host:
            raise UsageError(f"{flag} {url}: give http://HOST:PORT/v1 or https://HOST/v1")
        if found.query or found.fragment:
            raise UsageError(f"{flag}: give no ?query and no #fragment: {url.partition('?')[0]}")
        path = found.path.rstrip("/").removesuffix("/v1")
        return cls(found.scheme == "https", host, port, path)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


class Client:
    """Requests to one server, from any number of threads, each with a connection that it keeps.

    - `key`: goes into the header Authorization; None for none.
    - `timeout`: seconds that a reply may take.
    - `sleep`: waits so many seconds before another attempt; by default it ends with `close`.

    Raises UsageError for a key that would travel in the clear.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        timeout: float = 600,
        sleep: Callable[[float], object] | None = None,
    ):
        self.address = Address.parsed(url)
        if key is not None and not self.address.is_safe and self.address.host not in _LOOPBACK:
            raise UsageError(
                f"--api-key-env: the key would go to {self.address} unencrypted: give an https URL"
            )
        self._key, self._timeout = key, timeout
        self._ended = threading.Event()
        self._sleep = sleep or self._ended.wait
        self._own = threading.local()
        self._open: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self._has_answered = False

    def tried(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON there, or what is answered to `body`; None where the server has no such page,
        refuses this very request, or answers with no JSON."""
        try:
            return (
                self.post(path, body)
                if body is not None
                else self._asked("GET", path, None, _SMALL)
            )
        except ServerError as error:
            if error.status in (200, 400, 404, 405, 422, 501):
                return None
            raise

    def post(self, path: str, body: Mapping[str, Any], most: int = _SMALL) -> Any:
        """The JSON that the server answers with, of at most so many bytes. Raises ServerError."""
        return self._asked("POST", path, json.dumps(body).encode(), most)

    def close(self) -> None:
        """Ends all requests, those that are waiting, too."""
        self._ended.set()
        with self._lock:
            for connection in self._open:
                # Read by another thread, perhaps, which this wakes up.
                if connection.sock is not None:
                    with suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)
                connection.close()
            self._open.clear()

    def _asked(self, method: str, path: str, body: bytes | None, most: int) -> Any:
        """What `_once` gives, asked again while the server is busy, or silent once it has answered."""
        attempts = 0
        while True:
            try:
                return self._once(method, path, body, most)
            except ServerError as error:
                least, again, failed = max(1, error.retry_after), error.status in _BUSY, error
            except ssl.SSLCertVerificationError as error:
                raise self._error(f"its certificate is not valid: {error.verify_message}") from None
            except (OSError, http.client.HTTPException) as error:
                # A server that was never there won't come by waiting.
                least, again = 0, self._has_answered
                failed = self._error(f"no answer: {words_of(error, named=False)}")
                self._drop()
            if not again or attempts == len(PAUSES) or self._ended.is_set():
                raise failed from None
            if pause := min(max(PAUSES[attempts], least), _LONGEST_PAUSE):
                self._sleep(pause)
            attempts += 1

    def _once(self, method: str, path: str, body: bytes | None, most: int) -> Any:
        if self._ended.is_set():
            raise self._error("is not asked any more")
        begin = time.monotonic()
        connection = self._connection()
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        connection.request(method, self.address.path + path, body, headers)
        reply = connection.getresponse()
        content = bytearray()
        while chunk := reply.read1(_CHUNK):
            content += chunk
            if len(content) > most:
                self._drop()
                raise self._error(f"{path}: its reply has more than {most:,} bytes")
            if time.monotonic() - begin > self._timeout:
                raise TimeoutError(f"no whole reply in {self._timeout:g} s")
        if reply.length:
            raise http.client.IncompleteRead(b"", reply.length)
        # Else the connection is not free for another request.
        reply.close()
        self._has_answered = True
        return self._read(path, reply, bytes(content))

    def _read(self, path: str, reply: http.client.HTTPResponse, content: bytes) -> Any:
        """The JSON of a whole reply. Raises ServerError that says what the server says."""
        status = reply.status
        if 300 <= status < 400:
            to = urlsplit(reply.getheader("Location") or "")
            where = f"{to.scheme}://{to.hostname}" if to.hostname else to.path or "nowhere"
            raise self._error(
                f"{path}: redirects to {where}, and no redirect is followed: give --base-url the "
                "server's own address",
                status,
            )
        said: Any = None
        try:
            said = json.loads(content)
        except (ValueError, RecursionError):
            if status == 200:
                start = content[:40].decode(errors="replace")
                raise self._error(f"{path}: its reply is no JSON: {start!r}", status) from None
        if status == 200:
            return said
        words = _message(said) or reply.reason
        if status in (401, 403):
            words += "; --api-key-env NAME takes a key from that environment variable"
        error = self._error(f"{path}: {status}: {words}", status)
        if (after := reply.getheader("Retry-After", "")).isdecimal():
            error.retry_after = int(after)
        raise error

    def _error(self, words: str, status: int | None = None) -> ServerError:
        if self._key:
            words = words.replace(self._key, "…")
        error = ServerError(f"{self.address}: {words}")
        error.status = status
        return error

    def _connection(self) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if found is None:
            address, timeout = self.address, self._timeout
            if address.is_safe:
                context = ssl.create_default_context()
                found = http.client.HTTPSConnection(
                    address.host, address.port, timeout=timeout, context=context
                )
            else:
                found = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
            self._own.connection = found
            with self._lock:
                self._open.add(found)
        return found

    def _drop(self) -> None:
        """Forgets this thread's connection: what is left of a broken reply is no reply."""
        found = getattr(self._own, "connection", None)
        if found is not None:
            found.close()
            with self._lock:
                self._open.discard(found)
            self._own.connection = None


def _message(said: Any) -> str:
    """The words of an error as OpenAI's, FastAPI's and others' servers have them; "" without any."""
    if isinstance(said, dict):
        error = said.get("error", said)
        found = error.get("message") or error.get("detail") if isinstance(error, dict) else error
        if found:
            return " ".join(str(found).split())[:_WORDS]
    return ""
