"""Places as a user asks for them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.engine import make_engine
from support.models import edit_config, edit_tensors

from scoremode.checkpoint.files import open_checkpoint
from scoremode.demo.quantize import VARIANTS, quantize_folder, quantize_weight
from scoremode.engines.torch.device import Device
from scoremode.engines.torch.memory import budget as placement
from scoremode.engines.torch.memory.budget import Memory
from scoremode.errors import UsageError


@pytest.mark.parametrize("place", ["device", "host", "disk"])
def test_a_place_for_a_gpu_is_refused_on_a_cpu(place, demo):
    with pytest.raises(UsageError, match=f"--placement {place}: is for a GPU"):
        make_engine(demo / "model", place=place)


def counted(folder: Path, monkeypatch, **more) -> Memory:
    """What a GPU's memory is counted on for a model."""
    monkeypatch.setattr(placement, "Feeder", lambda *_: None)
    engine = make_engine(folder, dtype="bfloat16")
    device = Device(torch.device("cuda", 0), "made", 64 << 30)
    parts = device, engine.parts.skeleton, engine.parts.weights, engine.parts.slot
    return placement.place(open_checkpoint(str(folder)), *parts, 0, None, **more)[1]


def test_states_that_are_being_written_count_beside_the_pass(demo, monkeypatch):
    alone, keeping = (counted(demo / "model", monkeypatch, keeps=k) for k in (False, True))
    assert keeping.pass_token == 3 * alone.pass_token
    assert (keeping.fixed, keeping.batch_token) == (alone.fixed, alone.batch_token)


@pytest.mark.parametrize("name", ["W4A16-g32", "FP8_DYNAMIC", "NVFP4A16"])
def test_a_packed_head_counts_with_what_it_is_decoded_into(name, demo, tmp_path, monkeypatch):
    (variant,) = (v for v in VARIANTS if v.name == name)
    folder = tmp_path / "model"
    quantize_folder(demo / "model", folder, variant)
    weight = load_file(demo / "model" / "model.safetensors")["model.embed_tokens.weight"]
    packed = quantize_weight(weight, variant)
    edit_tensors(folder, lambda t: t.update({f"lm_head.{k}": v for k, v in packed.items()}))
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    edit_config(folder, tie_word_embeddings=False, quantization_config=config | {"ignore": []})
    decoded = make_engine(folder, dtype="bfloat16").head.weight.nbytes
    with_head = counted(folder, monkeypatch).fixed
    monkeypatch.setattr(placement, "_decoded_head", lambda *_: 0)
    assert with_head - counted(folder, monkeypatch).fixed == decoded


def test_long_windows_are_counted_for_a_gpus_kernels(demo, tmp_path, monkeypatch):
    """And quantized inputs with what they hold beside."""
    quantize_folder(
        demo / "model", tmp_path / "w8a8", next(v for v in VARIANTS if v.name == "W8A8")
    )
    dense, packed = (counted(f, monkeypatch).layer for f in (demo / "model", tmp_path / "w8a8"))
    on_cpu = make_engine(demo / "model", dtype="bfloat16").parts.memory.layer
    assert dense.attention < on_cpu.attention and dense.attention_chunk == 0
    assert packed.attention_chunk > 0 and packed.gated_chunk > dense.gated_chunk
    rounding = counted(demo / "model", monkeypatch, rounds_cache=True).layer
    assert rounding.attention >= dense.attention
