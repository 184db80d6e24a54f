"""A server of files by https, which may cut, redirect or replace what it sends."""

import contextlib
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Files:
    """Files by their paths.

    - `cuts`: of a file, after how many bytes the connection breaks off, one number for each request.
    - `redirects`: of a file, the address that it is said to be at.
    - `requests`: path and range of everything that was asked for.
    """

    files: dict[str, bytes]
    address: str = ""
    cuts: dict[str, list[int]] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)


def make_certificate(folder: Path) -> Path:
    """A certificate of 127.0.0.1 and its key, in one file."""
    key, made = folder / "key.pem", folder / "certificate.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-keyout", str(key), "-out", str(made), *subject]
    subprocess.run(command, check=True, capture_output=True)
    made.write_bytes(made.read_bytes() + key.read_bytes())
    return made


@contextlib.contextmanager
def serve(files: dict[str, bytes], certificate: Path) -> Iterator[Files]:
    """Running `Files` on a port of their own."""
    served = Files(files)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name, wanted = self.path.lstrip("/"), self.headers.get("Range")
            served.requests.append((name, wanted))
            if name in served.redirects:
                return self.say(302, b"", Location=served.redirects[name])
            body = served.files.get(name)
            if body is None:
                return self.say(404, b"")
            begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            if begin >= len(body) > 0:
                return self.say(416, b"")
            self.say(206 if wanted else 200, body[begin:], served.cuts.get(name))
            return None

        def say(
            self, status: int, body: bytes, cuts: list[int] | None = None, **headers: str
        ) -> None:
            self.send_response(status)
            for key, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(key, value)
            self.end_headers()
            if cuts:
                body, self.close_connection = body[: cuts.pop(0)], True
            # Who doesn't want it hangs up.
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        served.address = f"https://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
