"""A checkpoint of a few tensors, in one file and in two."""

import json

import pytest
from support.checkpoint_folders import TENSORS, write
from support.fake_hub import call


@pytest.fixture
def single(tmp_path) -> str:
    return write(tmp_path, {"model.safetensors": TENSORS})


@pytest.fixture
def sharded(tmp_path) -> str:
    names = sorted(TENSORS)
    shards = {f"{i}.safetensors": {n: TENSORS[n] for n in names[i::2]} for i in range(2)}
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    return write(tmp_path, shards, weight_map)


def _script(request) -> str:
    return request.module.SCRIPT % json.dumps(request.module.CALLS)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("hf-home")


@pytest.fixture(scope="module")
def online(request, hub, home):
    """What the module's SCRIPT prints of its CALLS, and what it fetched of the module's `hub`."""
    return call(hub.endpoint, home, _script(request)) | {"fetched": hub.fetched()}


@pytest.fixture(scope="module")
def offline(request, online, hub, home):
    """The same once more, of what the first one has kept."""
    return call(hub.endpoint, home, _script(request), offline=True)
