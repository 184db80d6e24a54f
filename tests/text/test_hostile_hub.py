"""A hub that says nothing, nonsense, or for ever: one line that names it, in bounded time."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hub_stand_in import COMMIT, call

SCRIPT = """
import json, time
from huggingface_hub import file_download
from huggingface_hub.utils import _http
from scoremode.checkpoint.files import locate
from scoremode.errors import ScoremodeError
from scoremode.text import hub_client
from scoremode.text.hub import from_hub

hub_client._SILENCE, hub_client._WINDOW, hub_client._LEAST = 0.3, 0.5, 1000
# Between tries; of what a server asks for, only how long it would be is looked at.
waits, sleep = [], time.sleep
hub_client._PAUSE = 0.05
_http.time.sleep = lambda seconds: (waits.append(seconds), sleep(0.01))
results = {}
for mode in json.loads(%r):
    for kind, ask in (("model", locate), ("data", from_hub)):
        waits.clear()
        begin = time.monotonic()
        try:
            ask(f"hostile/{mode}")
            said = "taken"
        except ScoremodeError as error:
            said = str(error)
        results[f"{mode} {kind}"] = [said, time.monotonic() - begin, max(waits, default=0)]
print(json.dumps(results))
"""
# What the line says beside the host's name.
MODES = {
    "silent": "",
    "silent-body": "",
    "closed": "",
    "garbage": "",
    "html": "",
    "list": "",
    "no-commit": "",
    "error": "500",
    "wait": "429",
    "loop": "edirect",
    "drip": "bytes in",
    "short": "",
    "long": "",
    "html-file": "",
}


def _info(mode: str) -> bytes:
    files = [{"rfilename": "config.json"}, {"rfilename": "test.jsonl"}]
    value = {"id": f"hostile/{mode}", "sha": COMMIT, "siblings": files, "tags": []}
    return json.dumps(value).encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        mode = next((m for m in sorted(MODES, key=len)[::-1] if f"hostile/{m}" in self.path), "")
        is_file = "/resolve/" in self.path
        if mode == "html-file" and "/tree/" in self.path:
            entry = {"type": "file", "path": "config.json", "size": 6, "oid": "0" * 40}
            return self.say(200, json.dumps([entry]).encode())
        with contextlib.suppress(OSError):
            if mode in ("short", "long", "html-file") and not is_file:
                return self.say(200, _info(mode))
            if mode in ("short", "long", "html-file"):
                return self.file(mode)
            self.answer(mode)

    do_HEAD = do_GET  # noqa: N815

    def answer(self, mode: str) -> None:
        if mode == "silent":
            time.sleep(5)
        elif mode == "silent-body":
            self.head(200, 500)
            time.sleep(5)
        elif mode == "closed":
            self.close_connection = True
        elif mode == "garbage":
            self.wfile.write(b"\x00\xff" * 50 + b"\r\n\r\n")
            self.close_connection = True
        elif mode == "html":
            self.say(200, b"<html><body>Sign in to the wireless network</body></html>")
        elif mode == "list":
            self.say(200, b"[]")
        elif mode == "no-commit":
            self.say(200, b'{"id": "hostile/x", "siblings": 5, "tags": []}')
        elif mode == "error":
            self.say(500, b"<html>oops</html>")
        elif mode == "wait":
            limits = {"Retry-After": "1000000", "ratelimit": '"api";r=0;t=1000000'}
            self.say(429, b"", **limits)
        elif mode == "loop":
            self.say(302, b"", Location=self.path)
        elif mode == "drip":
            self.head(200, 100_000)
            for _ in range(100):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.1)
        else:
            self.say(404, b"")

    def file(self, mode: str) -> None:
        body = b"<html>" if mode == "html-file" else b'{"text": "a"}\n' * 10
        said = len(body) + {"short": 50, "long": -50}.get(mode, 0)
        etag = {"ETag": f'"{mode}"', "X-Repo-Commit": COMMIT, "Content-Type": "text/html"}
        self.head(200, said, **etag)
        if self.command == "GET":
            self.wfile.write(body)
        self.close_connection = True

    def say(self, status: int, body: bytes, **headers: str) -> None:
        self.head(status, len(body), **headers)
        if self.command == "GET":
            self.wfile.write(body)

    def head(self, status: int, length: int, **headers: str) -> None:
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(length)}).items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> Iterator[tuple[str, dict]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    host = f"127.0.0.1:{server.server_port}"
    try:
        home = tmp_path_factory.mktemp("hf-home")
        yield host, call(f"http://{host}", home, SCRIPT % json.dumps(list(MODES)))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("kind", ["model", "data"])
@pytest.mark.parametrize("mode", MODES)
def test_a_hostile_hub_is_left_in_one_line(told, mode, kind):
    host, results = told
    said, seconds, longest_wait = results[f"{mode} {kind}"]
    if mode == "html-file" and kind == "data":
        assert "test.jsonl: line 1 is not JSON" in said
    elif mode == "html-file":
        # Whole and as announced: whoever reads the config finds that it is none.
        assert said == "taken"
    else:
        assert f"hostile/{mode}" in said and "\n" not in said
        # Cut where it was announced to end, the file is what it says it is, and no JSON.
        assert host in said or (mode, kind) == ("long", "data")
        assert MODES[mode] in said
    assert seconds < 15
    assert longest_wait <= 32
