"""Checkpoints of the hub, through a stand-in that serves them on this machine."""

import json

import pytest
import torch
from safetensors.torch import save
from support.fake_hub import COMMIT, Repo, call, serve

SCRIPT = """
import json
from pathlib import Path
from scoremode.checkpoint.chat_template import chat_template
from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.tokenizer import checkpoint_tokenizer
from scoremode.errors import CheckpointError, TokenizerError

results = {}
for key, (kind, model, revision) in json.loads(%r).items():
    try:
        if kind == "tokenizer":
            tokenizer = checkpoint_tokenizer(model, revision)
            results[key] = tokenizer.encode("once", special_tokens=True).tolist()
        elif kind == "template":
            template = chat_template(model, revision, checkpoint_tokenizer(model, revision))
            results[key] = template.render([{"content": "as it is"}]).text
        else:
            checkpoint = open_checkpoint(model, revision)
            results[key] = {
                "source": checkpoint.source,
                "files": sorted(p.name for p in checkpoint.path.iterdir()),
                "sum": float(sum(checkpoint.read(name).sum() for name in checkpoint.tensors)),
            }
    except (CheckpointError, TokenizerError) as error:
        results[key] = {"error": str(error)}
print(json.dumps(results))
"""
CALLS = {
    "tiny": ("checkpoint", "lab/tiny", None),
    "branch": ("checkpoint", "lab/tiny", "v1"),
    "commit": ("checkpoint", "lab/tiny", COMMIT),
    "tokenizer": ("tokenizer", "lab/tiny", None),
    "template": ("template", "lab/tiny", None),
    "pickle-only": ("checkpoint", "lab/pickle-only", None),
    "unknown": ("checkpoint", "lab/unknown", None),
    "unknown-tokenizer": ("tokenizer", "lab/unknown", None),
    "no-such-revision": ("checkpoint", "lab/tiny", "v9"),
    "no-such-name": ("checkpoint", "not/a/name", None),
}


@pytest.fixture(scope="module")
def hub(data):
    tiny = {
        "README.md": b"",
        "chat_template.jinja": b"{{ messages[0].content }}",
        "config.json": b'{"model_type": "llama"}',
        "model.safetensors": save({"a": torch.ones(3), "b": torch.ones(2, 2)}),
        "pytorch_model.bin": b"never fetched",
        "tokenizer.json": (data / "stories260K" / "tokenizer.json").read_bytes(),
    }
    repos = {
        "lab/tiny": Repo(tiny, revisions=("main", "v1")),
        "lab/pickle-only": Repo({"config.json": b"{}", "pytorch_model.bin": b"never fetched"}),
    }
    with serve(repos) as running:
        yield running


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("hf-home")


@pytest.fixture(scope="module")
def online(hub, home):
    return call(hub.endpoint, home, SCRIPT % json.dumps(CALLS)) | {"fetched": hub.fetched()}


@pytest.fixture(scope="module")
def offline(online, hub, home):
    return call(hub.endpoint, home, SCRIPT % json.dumps(CALLS), offline=True)


@pytest.mark.parametrize("key", ["tiny", "branch", "commit"])
def test_a_hub_id_is_a_folder_of_its_commit(online, key):
    assert online[key] == {
        "source": f"hub:lab/tiny@{COMMIT}",
        "files": ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"],
        "sum": 7.0,
    }


def test_no_pickle_is_ever_downloaded(online):
    assert "model.safetensors" in online["fetched"]
    assert not [name for name in online["fetched"] if name.endswith((".bin", ".md"))]


def test_the_tokenizer_comes_from_the_same_place(online):
    assert online["tokenizer"][0] == 1


@pytest.mark.parametrize("key", ["tiny", "branch", "commit", "tokenizer"])
def test_a_second_run_needs_no_network(online, offline, key):
    assert offline[key] == online[key]


@pytest.mark.parametrize("when", ["online", "offline"])
@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("unknown", "lab/unknown"),
        ("unknown-tokenizer", "lab/unknown"),
        ("no-such-revision", "lab/tiny"),
        ("no-such-name", "not/a/name"),
        ("pickle-only", "lab--pickle-only"),
    ],
)
def test_what_is_refused_names_the_model_in_one_line(request, when, key, name):
    message = request.getfixturevalue(when)[key]["error"]
    assert name in message
    assert "\n" not in message


def test_a_chat_template_comes_with_the_model(online):
    assert online["template"] == "as it is"
