"""Campaign `hub`: a hub some of whose answers are silence, nonsense or another file's end.

A model and a data set come from it. The run is refused in a line that names the host, or comes to the
very bits of the same model and text from a folder; of a broken download nothing is believed.
"""

import contextlib
import json
import threading
from pathlib import Path
from random import Random
from urllib.parse import unquote, urlsplit

from support.fake_hub import Hub, Repo
from support.hostile_hub import MODES, Handler, serve
from torture.command import Failure, check_ending, run
from torture.world import World, result_of

__all__ = ["case"]

# Pauses between tries are shorter than they are.
_PROGRAM = """
import sys
from huggingface_hub.utils import _http
from scoremode.__main__ import program
from scoremode.lib import hub
hub._PAUSE = 0.05
pause = _http.time.sleep
_http.time.sleep = lambda seconds: pause(min(seconds, 0.05))
sys.exit(program())
"""
# What is done to a file's bytes on their way.
_FILES = ("short", "long", "html-file")
_HUB_NAMES = {"model": "made/packed", "text": "datasets/made/text"}


def case(random: Random, world: World, folder: Path) -> str:
    """One run from a hub of that case's own; returns what the hub did. Raises Failure."""
    seed, share = random.random(), random.choice([0.0, 0.05, 0.2, 0.5])
    hub, told = _hub(world), list[str]()
    words = list(world.commands["ppl"].words)
    words[words.index("packed")] = "made/packed"
    at = words.index("-f")
    words[at : at + 2] = ["--dataset", "made/text"]
    with serve(_handler(hub, seed, share, told)) as host:
        environment = {
            "HF_ENDPOINT": f"http://{host}",
            "HF_HOME": str(folder / "home"),
            "HF_HUB_ETAG_TIMEOUT": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": "1",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
        }
        ended = run(
            [*words, "-o", str(folder / "out")],
            folder,
            program=("-c", _PROGRAM),
            environment=environment,
        )
    what = "; ".join(told) or "nothing wrong"
    try:
        check_ending(ended, 0, 1)
        if ended.code == 0 and result_of(folder / "out") != world.commands["ppl"].result:
            raise Failure(f"another result than from a folder: {ended}")
        if ended.code and (folder / "out").exists():
            raise Failure(f"refused, and leaves a folder: {ended}")
        if ended.code and not told:
            raise Failure(f"nothing was wrong: {ended}")
    except Failure as failure:
        raise Failure(f"{what}: {failure}") from None
    return f"{what}: {'refused' if ended.code else 'the same bits'}"


def _hub(world: World) -> Hub:
    model = {f.name: f.read_bytes() for f in (world.folder / "packed").iterdir()}
    text = (world.folder / "text.txt").read_text(encoding="utf-8")
    rows = json.dumps({"text": text}).encode() + b"\n"
    return Hub({_HUB_NAMES["model"]: Repo(model), _HUB_NAMES["text"]: Repo({"test.jsonl": rows})})


def _handler(hub: Hub, seed: float, share: float, told: list[str]) -> type[Handler]:
    """Answers as `hub`, but for a `share` of the requests, by `seed`, path and how often it came."""
    asked: dict[str, int] = {}
    lock = threading.Lock()

    class Sometimes(Handler):
        def do_GET(self) -> None:  # noqa: N802
            key = f"{self.command} {self.path}"
            with lock:
                asked[key] = asked.get(key, 0) + 1
            random = Random(f"{seed} {key} {asked[key]}")
            status, headers, body = hub.answer(unquote(urlsplit(self.path).path))
            with contextlib.suppress(OSError):
                if random.random() >= share:
                    return self.say(status, body, **headers)
                is_file = status == 200 and "/resolve/" in self.path
                mode = random.choice([m for m in MODES if is_file or m not in _FILES])
                told.append(f"{mode} for {key}")
                if mode in _FILES:
                    return self.spoiled(mode, headers, body)
                self.answer(mode)

        do_HEAD = do_GET  # noqa: N815

        def spoiled(self, mode: str, headers: dict[str, str], body: bytes) -> None:
            body = b"<html>" if mode == "html-file" else body
            said = len(body) + {"short": 50, "long": -50}.get(mode, 0)
            self.head(200, max(said, 0), **headers)
            if self.command == "GET":
                self.wfile.write(body)
            self.close_connection = True

    return Sometimes
