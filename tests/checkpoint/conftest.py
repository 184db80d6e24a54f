"""A checkpoint of a few tensors, in one file and in two."""

import pytest
from support.checkpoint_folders import TENSORS, write


@pytest.fixture
def single(tmp_path) -> str:
    return write(tmp_path, {"model.safetensors": TENSORS})


@pytest.fixture
def sharded(tmp_path) -> str:
    names = sorted(TENSORS)
    shards = {f"{i}.safetensors": {n: TENSORS[n] for n in names[i::2]} for i in range(2)}
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    return write(tmp_path, shards, weight_map)
