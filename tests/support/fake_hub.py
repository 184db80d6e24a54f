"""A local stand-in for the Hugging Face hub: the few endpoints that downloads and commits go to."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from support.waiting import HANG

COMMIT = "c0ffee" + 34 * "0"
# Of a repository that is made.
NEW = "5eed" + 36 * "0"


@dataclass
class Repo:
    """A repository's files at one commit, which `revisions` also call by name; `others` likewise."""

    files: dict[str, bytes]
    commit: str = COMMIT
    revisions: tuple[str, ...] = ("main",)
    others: tuple["Repo", ...] = ()


@dataclass
class Hub:
    """Repositories by the path the hub gives them: `ORG/NAME` or `datasets/ORG/NAME`.

    - `requests`: (method, path) of everything that was asked for.
    - `broken`: files whose download fails.
    - `moves`: of a repository, after how many requests by a branch's name its branches are at another
      commit, and that.
    - `commits`: (path and query, lines) of every commit that was sent; `refuses`: an HTTP status that
      they are answered with.
    - `cuts`: of files, after how many bytes the connection breaks off, one number for each download.
    """

    repos: dict[str, Repo]
    endpoint: str = ""
    broken: set[str] = field(default_factory=set)
    requests: list[tuple[str, str]] = field(default_factory=list)
    moves: dict[str, tuple[int, Repo]] = field(default_factory=dict)
    commits: list[tuple[str, list[Any]]] = field(default_factory=list)
    refuses: int | None = None
    cuts: dict[str, list[int]] = field(default_factory=dict)

    def fetched(self) -> list[str]:
        """The files whose content was downloaded."""
        return [
            path.split("/resolve/")[1].partition("/")[2]
            for method, path in self.requests
            if method == "GET" and "/resolve/" in path
        ]

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        api = path.startswith("/api/")
        path = path.removeprefix("/api").strip("/").removeprefix("models/")
        for separator in ("/resolve/", "/revision/", "/tree/"):
            if separator in path:
                name, _, rest = path.partition(separator)
                break
        else:
            name, rest, separator = path, "main", "/revision/"
        repo = self.repos.get(name)
        if repo is None:
            return _error(404, "RepoNotFound", "Repository not found")
        known = {
            r: state for state in (repo, *repo.others) for r in (state.commit, *state.revisions)
        }
        revision = next((r for r in known if f"{rest}/".startswith(f"{r}/")), None)
        if revision is None:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {rest}")
        repo = known[revision]
        if name in self.moves and revision in repo.revisions:
            left, later = self.moves[name]
            self.moves[name] = left - 1, later
            if left == 0:
                old = replace(repo, revisions=())
                self.repos[name] = repo = replace(later, others=(old,))
        headers = {"X-Repo-Commit": repo.commit}
        if separator == "/tree/":
            tree = [
                {"type": "file", "path": p, "size": len(data), "oid": sha1(data).hexdigest()}
                for p, data in repo.files.items()
            ]
            return 200, headers, json.dumps(tree).encode()
        if api:
            siblings = [{"rfilename": p} for p in repo.files]
            info = {"id": name.removeprefix("datasets/"), "sha": repo.commit, "siblings": siblings}
            return 200, headers, json.dumps(info | {"tags": []}).encode()
        file = rest.removeprefix(revision).lstrip("/")
        if file in self.broken:
            return _error(403, "Forbidden", f"{file} is broken")
        if file not in repo.files:
            return _error(404, "EntryNotFound", f"Entry not found: {file}")
        data = repo.files[file]
        return 200, headers | {"ETag": f'"{sha1(data).hexdigest()}"'}, data

    def accept(self, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """The answer to a POST."""
        if path == "/api/validate-yaml":
            return _json({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['type']}s/{asked['organization']}/{asked['name']}"
            self.repos[name] = Repo({".gitattributes": b""}, commit=NEW)
            return _json({"url": f"{self.endpoint}/{name}"})
        name = path.removeprefix("/api/").removeprefix("models/").partition("?")[0]
        if "/preupload/" in name:
            wanted = [file["path"] for file in json.loads(body)["files"]]
            plain = {"uploadMode": "regular", "shouldIgnore": False}
            return _json({"files": [{"path": file, **plain} for file in wanted]})
        repo, separator, _ = name.partition("/commit/")
        if not separator or repo not in self.repos:
            return _error(404, "RepoNotFound", "Repository not found")
        if self.refuses is not None:
            return _error(self.refuses, "Forbidden", "You may not write here")
        lines = [json.loads(line) for line in body.splitlines()]
        self.commits.append((path, lines))
        if "create_pr" not in path:
            added = [line["value"] for line in lines if line["key"] == "file"]
            files = {file["path"]: b64decode(file["content"]) for file in added}
            self.repos[repo] = Repo(self.repos[repo].files | files)
        url = f"{self.endpoint}/{repo}"
        made = {"commitUrl": f"{url}/commit/{COMMIT}", "commitOid": COMMIT}
        return _json({**made, "pullRequestUrl": f"{url}/discussions/7"})


@contextlib.contextmanager
def serve(repos: dict[str, Repo]) -> Iterator[Hub]:
    """A running `Hub` on a port of its own."""
    hub = Hub(repos)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.requests.append((self.command, self.path))
            path = unquote(urlsplit(self.path).path)
            status, headers, body = hub.answer(path)
            if (wanted := self.headers.get("Range")) and status == 200:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                end = int(last) + 1 if last else len(body)
                of = f"bytes {first}-{min(end, len(body)) - 1}/{len(body)}"
                headers, status = headers | {"Content-Range": of}, 206
                body = body[int(first) : end]
            self.send_response(status)
            for key, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                cuts = next((cuts for file, cuts in hub.cuts.items() if path.endswith(file)), None)
                if cuts:
                    self.wfile.write(body[: cuts.pop(0)])
                    self.close_connection = True
                    return
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def do_POST(self) -> None:
            hub.requests.append((self.command, self.path))
            data = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, body = hub.accept(self.path, data)
            self.send_response(status)
            for key, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


def call(endpoint: str, home: Path, script: str, *, offline: bool = False, **more: str) -> Any:
    """The JSON that `script` prints in a process whose hub is `endpoint` and whose cache is `home`;
    `more`: further variables of its environment.

    huggingface_hub reads both from the environment when it is imported, so it takes a process.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    environment |= {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "NO_PROXY": "127.0.0.1",
        **more,
    }
    if offline:
        environment["HF_HUB_OFFLINE"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _json(value: Any) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _error(status: int, code: str, message: str) -> tuple[int, dict[str, str], bytes]:
    return status, {"X-Error-Code": code, "X-Error-Message": message}, b""
