"""Checkpoints of the hub, through a stand-in that serves them on this machine."""

import json
from hashlib import sha256

import pytest
import torch
from safetensors.torch import save
from support.fake_hub import COMMIT, Repo, call, serve

SCRIPT = """
import json
from hashlib import sha256
from pathlib import Path
from scoremode.checkpoint.chat_template import chat_template
from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.model_files import resolve_model
from scoremode.checkpoint.tokenizer import checkpoint_tokenizer
from scoremode.errors import CheckpointError, TokenizerError

results = {}
for key, (kind, model, revision) in json.loads(%r).items():
    try:
        if kind == "tokenizer":
            tokenizer = checkpoint_tokenizer(resolve_model(model, revision))
            results[key] = tokenizer.encode("once", special_tokens=True).tolist()
        elif kind == "template":
            files = resolve_model(model, revision)
            template = chat_template([files], checkpoint_tokenizer(files))
            results[key] = template.render([{"content": "as it is"}]).text
        else:
            checkpoint = open_checkpoint(resolve_model(model, revision))
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


RUN = """
import json
from hashlib import sha256
import scoremode
from scoremode.errors import ScoremodeError

try:
    result = scoremode.%s
    record = result.record.document
    places = {
        "model": record["checkpoint"]["source"],
        "weights": record["checkpoint"]["files"]["model.safetensors"],
        "tokenizer": record["tokenizer"]["source"],
        "template": record["corpus"]["conversations"]["template"]["source"],
        "base": record.get("reference", {}).get("checkpoint", {}).get("source"),
    }
except ScoremodeError as error:
    places = {"error": str(error)}
print(json.dumps(places))
"""


def run_while_the_branch_moves(demo, tmp_path, requests: int, run: str):
    """What a run is of whose model's branch is at another commit after so many `requests` for it."""
    files = {f.name: f.read_bytes() for f in (demo / "model").iterdir()}
    before = files | {"chat_template.jinja": b"{{ messages[0].content }}"}
    after = {name: b"{}" if name.endswith(".json") else b"" for name in before}
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": CHAT}) + "\n", encoding="utf-8")
    with serve({"lab/moves": Repo(before)}) as hub:
        hub.moves["lab/moves"] = requests, Repo(after, commit="b" * 40)
        return call(hub.endpoint, tmp_path / "home", RUN % run.format(folder=tmp_path))


CHAT = [{"role": "user", "content": "Once upon a time there was"},
        {"role": "assistant", "content": " a little girl named Lily."}]  # fmt: skip
ALONE = (
    "measure('lab/moves', conversations='{folder}/chats.jsonl', score='all', device='cpu', "
    "output='{folder}/runs', quiet=True)"
)
BESIDE_ITSELF = ALONE.replace("score=", "reference='lab/moves', score=")


@pytest.mark.parametrize("run", [ALONE, BESIDE_ITSELF])
def test_a_run_is_of_one_commit_whatever_its_branch_does_meanwhile(demo, tmp_path, run):
    places = run_while_the_branch_moves(demo, tmp_path, 2, run)
    weights = (demo / "model" / "model.safetensors").read_bytes()
    assert places["weights"] == sha256(weights).hexdigest()
    assert places["model"] == f"hub:lab/moves@{COMMIT}"
    assert places["base"] in (None, places["model"])
    assert all(COMMIT in place for place in (places["tokenizer"], places["template"]))


def test_a_branch_that_moves_while_it_is_looked_up_is_refused(demo, tmp_path):
    message = run_while_the_branch_moves(demo, tmp_path, 1, ALONE)["error"]
    assert message.startswith(f"lab/moves: moved from commit {COMMIT[:12]} to bbbbbbbbbbbb")
