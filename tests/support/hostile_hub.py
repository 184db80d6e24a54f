"""A hub that says nothing, nonsense, or for ever; each mode is a way of doing so."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from support.fake_hub import COMMIT

# And what a refusal says beside the host's name.
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


@contextlib.contextmanager
def serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server on a port of its own: its host and port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    # Those that are being silent are not waited for.
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
