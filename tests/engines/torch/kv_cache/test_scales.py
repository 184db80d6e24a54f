"""Scales that are given: what a file must hold, and a record."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from scoremode.engines.kv_formats import KvCache, RecordedScales, parse_kv_cache
from scoremode.engines.torch.kv_cache.layer_caches import given_scales
from scoremode.errors import UsageError


def asked(name: str, scales: str | RecordedScales) -> KvCache:
    made = parse_kv_cache(name)
    return KvCache(made.k, made.v, scales)


def file_of(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> str:
    save_file(tensors, tmp_path / "scales.safetensors")
    return str(tmp_path / "scales.safetensors")


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.{}.self_attn.k_scale",
        "model.layers.{}.self_attn.k_proj.k_scale",
        "model.layers.{}.self_attn.k_proj.output_scale",
        "transformer.h.{}.attn.k_scale",
    ],
)
def test_names_that_checkpoints_have(name, tmp_path):
    file = file_of(tmp_path, {name.format(i): torch.tensor([i + 0.5]) for i in (10, 2, 7)})
    found = given_scales(asked("k=fp8_e4m3-tensor,v=none", file), [2, 7, 10])
    assert found.values == {"k": [[2.5], [7.5], [10.5]]}
    assert found.source == file and len(found.sha256 or "") == 64


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"layers.0.k_scale": [1.0]}, "has 0 tensors for layer 1's k_scale"),
        (
            {"layers.0.k_scale": [1.0], "layers.1.k_scale": [1.0], "layers.1.x.k_scale": [1.0]},
            "has 2 tensors for layer 1's k_scale",
        ),
        (
            {"layers.0.k_scale": [1.0], "layers.1.k_scale": [0.0]},
            r"layer 1, k: \[0.0\] are not positive",
        ),
        ({"layers.0.k_scale": [1.0], "layers.1.k_scale": [float("nan")]}, "are not positive"),
        ({"layers.0.k_scale": [1.0], "layers.1.k_scale": []}, "are not positive"),
        ({"layers.0.k_scale": [1.0, 2.0], "layers.1.k_scale": [1.0]}, "-tensor wants one"),
    ],
)
def test_what_is_missing_or_no_scale(tensors, said, tmp_path):
    file = file_of(tmp_path, {name: torch.tensor(values) for name, values in tensors.items()})
    with pytest.raises(UsageError, match=said):
        given_scales(asked("k=fp8_e4m3-tensor,v=none", file), [0, 1])


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(UsageError, match="not readable: No such file"):
        given_scales(asked("int8-tensor", str(tmp_path / "none")), [0])
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"x" * 100)
    with pytest.raises(UsageError, match=r"--kv-scales .*broken\.safetensors"):
        given_scales(asked("int8-tensor", str(broken)), [0])


def test_a_records():
    scales = RecordedScales(((1.0,), (2.0,)), None)
    found = given_scales(asked("k=int8-tensor,v=q8_0", scales), [4, 5])
    assert found.values == {"k": ((1.0,), (2.0,))} and found.sha256 is None
    with pytest.raises(UsageError, match="has 2 scales for k, and 3 layers have a cache"):
        given_scales(asked("k=int8-tensor,v=q8_0", scales), [4, 5, 6])
    with pytest.raises(UsageError, match="has 0 scales for v"):
        given_scales(asked("int8-tensor", scales), [4, 5])
