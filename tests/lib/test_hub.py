"""A hub that says nothing, nonsense, or for ever: one line that names it, in bounded time."""

import json
from collections.abc import Iterator

import pytest
from support.fake_hub import Repo, call
from support.fake_hub import serve as serve_files
from support.hostile_hub import MODES, Handler, serve

from scoremode.lib.hub import hub_call

SCRIPT = """
import json, time
from huggingface_hub import constants
from huggingface_hub.utils import _http
from scoremode.checkpoint.model_files import resolve_model
from scoremode.errors import ScoremodeError
from scoremode.lib import hub
from scoremode.text.hub import from_hub

# Pauses between tries are not waited for, and silence not for long.
constants.HF_HUB_ETAG_TIMEOUT = constants.HF_HUB_DOWNLOAD_TIMEOUT = 0.5
hub._PAUSE, _http.time.sleep = 0.05, lambda seconds: None
results = {}
for mode in json.loads(%r):
    for kind, ask in (("model", resolve_model), ("data", from_hub)):
        begin = time.monotonic()
        try:
            ask(f"hostile/{mode}")
            said = "taken"
        except ScoremodeError as error:
            said = str(error)
        results[f"{mode} {kind}"] = [said, time.monotonic() - begin]
print(json.dumps(results))
"""


def test_downloads_are_counted_byte_by_byte_and_what_is_there_is_not(tmp_path):
    files = {"config.json": b"{}", "model.safetensors": bytes(3000), "README.md": bytes(77)}
    script = """
import json
from scoremode.checkpoint.model_files import resolve_model
from scoremode.lib.hub import downloads
counts = []
downloads.tell = lambda new, total: counts.append((new, total))
found = resolve_model("org/tiny")
found.fetch()
counts.append("again")
resolve_model("org/tiny").fetch()
print(json.dumps(counts))
"""
    with serve_files({"org/tiny": Repo(files)}) as hub:
        counts = call(hub.endpoint, tmp_path, script)
        # The sizes are asked for, the content fetched once.
        assert sorted(hub.fetched()) == ["config.json", "model.safetensors"]
    assert counts == [[0, 2], [2, 2], [0, 3000], [3000, 3000], "again"]


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> Iterator[tuple[str, dict]]:
    with serve(Handler) as host:
        home = tmp_path_factory.mktemp("hf-home")
        script = SCRIPT % json.dumps(list(MODES))
        yield (
            host,
            call(f"http://{host}", home, script),
        )


@pytest.mark.parametrize("kind", ["model", "data"])
@pytest.mark.parametrize("mode", MODES)
def test_a_hostile_hub_is_left_in_one_line(told, mode, kind):
    host, results = told
    said, seconds = results[f"{mode} {kind}"]
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
    assert seconds < 60


def test_what_is_not_in_the_cache_is_said_with_the_connection_s_own_error():
    """The library names its LocalEntryNotFoundError "Got: ConnectError: …", with advice of its own."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    def call():
        try:
            raise ConnectionError("no route to host")
        except ConnectionError as error:
            raise LocalEntryNotFoundError(f"Got: {error}. Please check your connection") from error

    with pytest.raises(OSError, match=r"ConnectionError: no route to host$"):
        hub_call(call, most=1)
