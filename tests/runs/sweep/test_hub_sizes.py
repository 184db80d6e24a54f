"""Sizes of the hub's models."""

from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants

from scoremode.errors import CheckpointError
from scoremode.runs.sweep.dry_run import cached_only, hub_bytes

FILES = {
    "config.json": 5,
    "model-00001-of-00002.safetensors": 1000,
    "model-00002-of-00002.safetensors": 500,
    "onnx/model.safetensors": 7,
    "m-Q4_K_M.gguf": 300,
    "m-Q8_0-00001-of-00002.gguf": 400,
    "m-Q8_0-00002-of-00002.gguf": 40,
}


@pytest.fixture
def hub(monkeypatch):
    files = dict(FILES)

    def model_info(self, repo, revision, files_metadata, timeout):
        if repo != "o/r":
            raise OSError("404")
        siblings = [SimpleNamespace(rfilename=n, size=s) for n, s in files.items()]
        return SimpleNamespace(siblings=siblings)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    return files


def test_the_weights_of_a_folder_or_of_one_gguf_with_all_its_parts(hub):
    assert hub_bytes("o/r", None) == 1500
    assert hub_bytes("o/r:Q4_K_M", None) == 300
    assert hub_bytes("o/r:Q8_0", "main") == 440
    for name in [name for name in hub if name.endswith(".safetensors") or "Q8" in name]:
        del hub[name]
    assert hub_bytes("o/r", None) == 300


def test_what_is_not_to_be_had_is_an_error(hub):
    with pytest.raises(CheckpointError, match="o/none: not to be had from the hub"):
        hub_bytes("o/none", None)


def test_the_cache_alone_is_asked_inside_the_block(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with cached_only():
        assert constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE
    with cached_only(wanted=False):
        assert not constants.HF_HUB_OFFLINE
