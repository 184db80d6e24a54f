"""GGUF files of the hub: one model's alone, by its name or its quant's."""

from urllib.parse import unquote

import pytest
from support.fake_hub import COMMIT, Repo, serve
from support.gguf.files import llama, split

SCRIPT = """
import json
from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.model_files import resolve_model
from scoremode.errors import CheckpointError

results = {}
for key, (model, revision) in json.loads(%r).items():
    try:
        files = resolve_model(model, revision)
        checkpoint = open_checkpoint(files)
        same = (files.path, files.source) == (checkpoint.path, checkpoint.source)
        again = open_checkpoint(checkpoint.place).fingerprint == checkpoint.fingerprint
        results[key] = [checkpoint.source, len(checkpoint.tensors), same and again]
    except CheckpointError as error:
        results[key] = {"error": str(error)}
print(json.dumps(results))
"""
CALLS = {
    "file": ("lab/m:m-Q8_0.gguf", None),
    "quant": ("lab/m:q4_0", None),
    "split": ("lab/m:F32", None),
    "branch": ("lab/m:Q8_0", "v1"),
    "commit": ("lab/m:Q8_0", COMMIT),
    "only": ("lab/one", None),
    "ambiguous": ("lab/m:Q5_0", None),
    "none": ("lab/m:Q6_K", None),
    "unnamed": ("lab/m", None),
    "torn": ("lab/torn:F32", None),
    "unknown": ("lab/unknown:Q8_0", None),
    "no-such-revision": ("lab/m:Q8_0", "v9"),
    "broken": ("lab/broken:Q8_0", None),
}
SOURCES = {
    "file": f"hub:lab/m:m-Q8_0.gguf@{COMMIT}",
    "quant": f"hub:lab/m:m-Q4_0.gguf@{COMMIT}",
    "split": f"hub:lab/m:F32/m-F32-00001-of-00003.gguf@{COMMIT}",
    "branch": f"hub:lab/m:m-Q8_0.gguf@{COMMIT}",
    "commit": f"hub:lab/m:m-Q8_0.gguf@{COMMIT}",
    "only": f"hub:lab/one:[x] Q8_0.gguf@{COMMIT}",
}
REFUSED = {
    "ambiguous": "lab/m:Q5_0: which of its GGUF files? a-Q5_0.gguf, b-Q5_0.gguf",
    "none": "lab/m:Q6_K: is none of its GGUF files: F32/m-F32-00001-of-00003.gguf, a-Q5_0.gguf, ",
    "unnamed": "lab/m: which of its GGUF files? F32/m-F32-00001-of-00003.gguf, a-Q5_0.gguf, ",
    "torn": "lab/torn: has m-F32-00001-of-00003.gguf, and not m-F32-00002-of-00003.gguf, a part of it",
    "unknown": "lab/unknown: not to be had from the hub (",
    "no-such-revision": "lab/m: not to be had from the hub (",
    "broken": "lab/broken: not to be had from the hub (",
}


@pytest.fixture(scope="module")
def hub():
    parts = split({}, "m-F32")
    one = llama({"output.weight": "Q8_0"})
    files = {
        "README.md": b"",
        "config.json": b"{}",
        "m-Q8_0.gguf": one,
        "m-Q4_0.gguf": llama({"output.weight": "Q4_0"}),
        "a-Q5_0.gguf": b"never fetched",
        "b-Q5_0.gguf": b"never fetched",
        "mmproj-Q8_0.gguf": b"never fetched",
        **{f"F32/{name}": content for name, content in parts.items()},
    }
    torn = {name: content for name, content in parts.items() if "00002-of" not in name}
    repos = {
        "lab/m": Repo(files, revisions=("main", "v1")),
        "lab/one": Repo({"[x] Q8_0.gguf": one, "config.json": b"{}", "../y.gguf": b""}),
        "lab/torn": Repo(torn),
        "lab/broken": Repo({"x-Q8_0.gguf": one}),
    }
    with serve(repos) as running:
        running.broken.add("x-Q8_0.gguf")
        yield running


@pytest.mark.parametrize("key", SOURCES)
def test_one_file_is_found(online, key):
    assert online[key] == [SOURCES[key], 12, True]


@pytest.mark.parametrize("key", REFUSED)
def test_what_is_refused_in_one_line(online, key):
    assert online[key]["error"].startswith(REFUSED[key])
    assert "\n" not in online[key]["error"]


def test_only_the_models_own_files_are_downloaded(online):
    found = {unquote(name) for name in online["fetched"] if name.endswith(".gguf")}
    parts = {f"F32/m-F32-0000{n}-of-00003.gguf" for n in (1, 2, 3)}
    assert found == {"m-Q8_0.gguf", "m-Q4_0.gguf", "[x] Q8_0.gguf", *parts}


@pytest.mark.parametrize("key", SOURCES)
def test_a_second_run_needs_no_network(online, offline, key):
    assert offline[key] == online[key]


def test_offline_what_was_never_fetched_is_not_there(offline):
    assert "lab/broken: not to be had" in offline["broken"]["error"]
    assert "is none of its GGUF files" in offline["ambiguous"]["error"]
