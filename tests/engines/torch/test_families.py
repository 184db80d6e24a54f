"""Whole models of every family against dense ones of the same weights, by their headers, by their
configs alone, and where a linear is stored dense."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.engine import check_equal, make_engine, score
from support.family import Case, Family, all_families
from support.models import edit_config, random_plan

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.cli.inspect import inspect, inspect_config
from scoremode.engines.torch.model.from_config import checkpoint_by_config
from scoremode.errors import CheckpointError
from scoremode.schemes.summary import summarize

FAMILIES = all_families()
WHOLE = [
    pytest.param(family, case, model, id=f"{name} {case.name} {model}")
    for name, family in FAMILIES.items()
    for case in family.cases
    for model in case.models
]
UPS = [f"model.layers.{n}.mlp.up_proj" for n in range(3)]


@pytest.mark.parametrize(("family", "case", "model"), WHOLE)
def test_equals_the_dense_one_to_the_bit(family: Family, case: Case, model, tmp_path):
    packed, dense = family.pair(tmp_path, model, case)
    theirs = check_equal(packed, dense, *case.dtypes)
    engine = make_engine(packed, dtype="float32")
    declared = "weights+activations" if case.inputs else "weights"
    assert engine.describe()["arithmetic"] == declared
    if case.inputs:
        ours = score(engine, random_plan()).logprob
        assert 0 < np.abs(ours - theirs.logprob).mean() < 3


def headers(checkpoint: Checkpoint) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {n: (i.dtype, i.shape) for n, i in checkpoint.tensors.items()}


# DeepSeek's router has a bias of float32 in any dtype, which no config tells.
TOLD = [one for one in WHOLE if one.values[0].promises and one.values[2] != "deepseek_v3"]


@pytest.mark.parametrize(("family", "case", "model"), TOLD)
def test_a_config_alone_tells_what_is_stored(family: Family, case: Case, model, tmp_path):
    packed, _ = family.pair(tmp_path, model, case)
    config = json.loads((packed / "config.json").read_text())
    promised = checkpoint_by_config(Checkpoint(packed, "x", config, {}))
    real = open_checkpoint(str(packed))
    loose = tuple(case.loose)
    assert promised.tensors.keys() == real.tensors.keys()
    for name, header in headers(real).items():
        assert headers(promised)[name] == header or (loose and name.endswith(loose)), name
    ours, theirs = summarize(promised), summarize(real)
    assert ours.refusals == {} and ours.quantized == theirs.quantized
    if loose:
        return
    assert (ours.formats, ours.body_bits) == (theirs.formats, theirs.body_bits)
    alone, whole = (
        inspect_config(str(packed / "config.json"), device_name="cpu"),
        inspect(str(packed), device_name="cpu"),
    )
    for key in ("formats", "parameters", "quantized_parameters", "arithmetic", "runs"):
        assert alone[key] == whole[key], key
    # A file's headers are bytes too.
    size = sum(info.bytes for info in real.tensors.values())
    assert alone["bytes"] == size < whole["bytes"]


def undo(packed: Path, dense: Path, *modules: str) -> None:
    """Stores linears as in the dense model, which rounds some of them once more."""
    weights, path = load_file(dense / "model.safetensors"), packed / "model.safetensors"
    with safe_open(path, "pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(path)
    for module in modules:
        for key in [key for key in tensors if key.startswith(f"{module}.")]:
            del tensors[key]
        tensors[f"{module}.weight"] = weights[f"{module}.weight"].to(torch.bfloat16)
    save_file(tensors, path, metadata=metadata)


def scored(folder: Path) -> Any:
    return score(make_engine(folder, dtype="bfloat16", arithmetic="weights"), random_plan()).logprob


DENSE = [one for one in WHOLE if one.values[2] == "llama" and one.values[0].spare]


@pytest.mark.parametrize(("family", "case", "model"), DENSE)
def test_a_linear_that_is_stored_dense(family: Family, case: Case, model, tmp_path):
    """Where the library would quantize it on loading, or could not load it, it is an error that names
    it; where the library takes a linear for what it is stored as, so do we."""
    packed, dense = family.pair(tmp_path, model, case)
    expected = scored(packed)
    undo(packed, dense, *UPS)
    if family.claims:
        words = rf"{UPS[0]} is stored dense \(bf16\), and quantization_config says that it is quan"
        with pytest.raises(CheckpointError, match=words):
            make_engine(packed, arithmetic="weights")
    else:
        assert np.array_equal(scored(packed), expected)
    said = json.loads((packed / "config.json").read_text())["quantization_config"]
    assert family.spare is not None
    for module in UPS:
        family.spare(said, module)
    edit_config(packed, quantization_config=said)
    assert np.array_equal(scored(packed), expected)
