"""Reads of safetensors files; `test_files.py` has them as a checkpoint's."""

import pytest
import torch
from safetensors.torch import save_file
from support.checkpoint_folders import TENSORS

from scoremode.checkpoint.safetensors_files import SafetensorsFiles, TensorInfo
from scoremode.errors import CheckpointError


def test_tensors_and_metadata(tmp_path):
    path, files = tmp_path / "a.safetensors", SafetensorsFiles([tmp_path / "config.json"])
    save_file(TENSORS, path, metadata={"format": "pt"})
    for name, tensor in TENSORS.items():
        assert torch.equal(files.read(TensorInfo(name, path, "", (), 0)), tensor)
    assert files.metadata([path]) == {"format": "pt"}
    assert files.config_file(tmp_path) == tmp_path / "config.json"
    assert list(files.beside) == [tmp_path / "config.json"]


def test_what_cannot_be_read_is_named(tmp_path):
    path, files = tmp_path / "a.safetensors", SafetensorsFiles()
    with pytest.raises(CheckpointError, match=f"{path}: tensor a: No such file"):
        files.read(TensorInfo("a", path, "F32", (1,), 4))
    with pytest.raises(CheckpointError, match=f"{path}: No such file"):
        files.metadata([path])
