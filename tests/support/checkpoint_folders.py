"""Model folders as the tests write them, and the one line that a bad one is refused with."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError

__all__ = ["INDEX", "TENSORS", "entry", "refusal", "with_header", "write"]

TENSORS = {
    "a.weight": torch.arange(6, dtype=torch.float32).view(2, 3),
    "a.bias": torch.arange(3, dtype=torch.float16),
    "b.weight": torch.arange(4, dtype=torch.bfloat16),
    "c.weight_shape": torch.tensor([2, 3]),
}
INDEX = "model.safetensors.index.json"


def write(folder: Path, files: dict, weight_map: dict | None = None, config: str = "{}") -> str:
    """A folder of these safetensors files (tensors, or bytes as they are) and perhaps an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else save(content)
        (folder / name).write_bytes(data)
    if weight_map is not None:
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return str(folder)


def with_header(header: object, data: bytes = b"") -> bytes:
    """A safetensors file of this header (JSON, or bytes as they are)."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def refusal(model: str | Path) -> str:
    """The one line that a checkpoint is refused with."""
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(str(model))
    assert "\n" not in str(error.value)
    return str(error.value)
