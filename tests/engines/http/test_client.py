"""Requests to a server: bounded, asked again where that helps, and to nobody else."""

import json
import threading
from contextlib import contextmanager

import pytest
from support.servers import answering

from scoremode.engines.http.client import PAUSES, Address, Client, ServerError
from scoremode.errors import UsageError

KEY = "sk-0123456789abcdef"
OK = {"answer": 1}


@pytest.fixture
def made():
    """Makes clients that are closed in the end."""
    clients = []

    def make(*given, **more):
        clients.append(Client(*given, **more))
        return clients[-1]

    yield make
    for each in clients:
        each.close()


class Sleepless(Client):
    """A client whose pauses are counted, and not made."""

    def __init__(self, url, key=None):
        self.slept: list[float] = []
        super().__init__(url, key, sleep=self.slept.append)


@contextmanager
def client(*replies, key=None):
    """A client of a server that answers with these, the last one for good."""
    left = list(replies)

    def reply(path, body):
        return left.pop(0) if len(left) > 1 else left[0]

    with answering(reply) as port:
        found = Sleepless(f"http://127.0.0.1:{port}/v1", key)
        yield found
        found.close()


def test_an_answer_is_the_servers_json():
    with client(OK) as found:
        assert found.post("/x", {"a": 1}) == OK
        assert found.tried("/x") == OK


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_server_is_asked_again(status):
    with client((status, {}, b""), (status, {}, b""), OK) as found:
        assert found.post("/x", {}) == OK
        assert found.slept == [1, 1]


def test_a_server_says_how_long_to_wait_within_reason():
    busy = [(429, {"Retry-After": text}, b"{}") for text in ("7", "86400", "soon")]
    with client(*busy, OK) as found:
        assert found.post("/x", {}) == OK
        assert found.slept == [7, 60, 2]


def test_a_server_that_stays_busy_is_given_up():
    with client((503, {}, b'{"error": {"message": "loading"}}')) as found:
        with pytest.raises(ServerError, match=r"127\.0\.0\.1:\d+: /x: 503: loading"):
            found.post("/x", {})
        assert found.slept == [max(1, pause) for pause in PAUSES]


def test_a_cut_reply_is_asked_for_again():
    cut = 200, {"Content-Length": "1000", "Connection": "close"}, json.dumps(OK).encode()
    with client(OK, cut, OK) as found:
        assert found.post("/x", {}) == OK
        # At once: the connection may have been closed while nothing was asked.
        assert (found.post("/x", {}), found.slept) == (OK, [])


def test_a_server_that_is_gone_is_waited_for_and_one_that_never_was_isnt(made):
    with answering(lambda path, body: OK) as port:
        slept: list[float] = []
        found = made(f"http://127.0.0.1:{port}/v1", sleep=slept.append)
        assert found.post("/x", {}) == OK
        found._drop()
    with pytest.raises(ServerError, match="no answer: Connection refused"):
        found.post("/x", {})
    assert slept == [pause for pause in PAUSES if pause]
    never = made(f"http://127.0.0.1:{port}/v1", sleep=slept.append)
    with pytest.raises(ServerError, match="no answer: Connection refused"):
        never.post("/x", {})
    assert slept == [pause for pause in PAUSES if pause]


def test_a_server_that_is_silent_is_given_up(made):
    ended = threading.Event()

    def silent(path, body):
        ended.wait()

    with answering(silent) as port:
        found = made(f"http://127.0.0.1:{port}/v1", timeout=0.05)
        with pytest.raises(ServerError, match="no answer: timed out"):
            found.post("/x", {})
        ended.set()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status):
    asked = []
    with answering(lambda path, body: asked.append(path) or OK) as elsewhere:
        to = f"http://user:{KEY}@localhost:{elsewhere}/x"
        with client((status, {"Location": to}, b""), key=KEY) as found:
            with pytest.raises(ServerError, match="redirects to http://localhost, and no") as error:
                found.post("/x", {})
            assert KEY not in str(error.value) and not asked


def test_a_reply_is_bounded():
    with client((200, {}, b'"' + b"x" * 5_000_000 + b'"')) as found:
        with pytest.raises(ServerError, match="its reply has more than 1,000 bytes"):
            found.post("/x", {}, 1_000)
        with pytest.raises(ServerError, match="its reply has more than 4,194,304 bytes"):
            found.tried("/x")


@pytest.mark.parametrize("content", [b"<html>login</html>", b"", b"{", b"[" * 100_000])
def test_what_is_no_json_is_said(content):
    with client((200, {}, content)) as found:
        with pytest.raises(ServerError, match="/x: its reply is no JSON"):
            found.post("/x", {})
        assert found.tried("/x") is None


def test_a_key_goes_to_the_server_and_into_no_message(made):
    def refuse(path, body):
        return 401, {}, json.dumps({"error": {"message": f"Incorrect key: {KEY}"}}).encode()

    with answering(refuse) as port:
        found = made(f"http://127.0.0.1:{port}/v1", KEY)
        with pytest.raises(
            ServerError, match=r"401: Incorrect key: …; --api-key-env NAME"
        ) as error:
            found.post("/x", {})
        assert KEY not in str(error.value)


def test_a_key_never_travels_in_the_clear():
    with pytest.raises(UsageError, match=r"the key would go to example\.org unencrypted"):
        Client("http://example.org/v1", KEY)
    Client("https://example.org/v1", KEY)
    Client("http://[::1]:8000/v1", KEY)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://user:secret@host/v1", "has a name or a password in it"),
        ("host:8000/v1", "give http://HOST:PORT/v1"),
        ("ftp://host/v1", "give http://HOST:PORT/v1"),
        ("http:///v1", "give http://HOST:PORT/v1"),
        ("http://host/v1?key=secret", "give no \\?query"),
        ("http://host:port/v1", "is no URL"),
        ("http://[host/v1", "is no URL"),
    ],
)
def test_what_is_no_base_url_is_refused(url, words):
    with pytest.raises(UsageError, match=words) as error:
        Address.parsed(url)
    assert "secret" not in str(error.value)


def test_a_base_url_has_its_v1_or_not():
    assert (
        Address.parsed("http://h:1/v1")
        == Address.parsed("http://h:1/")
        == Address(False, "h", 1, "")
    )
    assert Address.parsed("https://h/a/b/v1/").path == "/a/b"
    assert str(Address.parsed("http://[::1]:8000")) == "[::1]:8000"


def test_a_certificate_is_checked(made, tmp_path):
    import ssl
    import subprocess
    from http.server import BaseHTTPRequestHandler, HTTPServer

    how = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    files = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert")]
    subprocess.run(["openssl", "req", *how, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        found = made(f"https://127.0.0.1:{server.server_address[1]}/v1", KEY)
        with pytest.raises(ServerError, match="its certificate is not valid: self-signed"):
            found.post("/x", {})
    finally:
        server.shutdown()
        server.server_close()


def test_closing_ends_what_is_under_way(made):
    asked, ended = threading.Event(), threading.Event()

    def hang(path, body):
        asked.set()
        ended.wait()

    with answering(hang) as port:
        found, failed = made(f"http://127.0.0.1:{port}/v1"), []

        def ask():
            try:
                found.post("/x", {})
            except ServerError as error:
                failed.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        asked.wait()
        found.close()
        thread.join()
        ended.set()
        assert len(failed) == 1
