"""Linears that a config has quantized and that are stored dense.

Where the library would quantize one on loading, or could not load it, it is an error that names it;
where the library takes a linear for what it is stored as, so do we.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.engine import make_engine, score
from support.families.bitsandbytes import make_pair as bitsandbytes_pair
from support.families.hqq import make_pair as hqq_pair
from support.families.mlx import make_pair as mlx_pair
from support.families.quark import make_pair as quark_pair
from support.families.torchao import make_pair as torchao_pair
from support.models import edit_config, random_plan

from scoremode.errors import CheckpointError

Make = Callable[[Path], tuple[Path, Path]]
UPS = [f"model.layers.{n}.mlp.up_proj" for n in range(3)]
# What leaves the linears out, by the family's own list: HQQ's has kinds of them.
CLAIMED: dict[str, tuple[Make, list[str], dict]] = {
    "nf4": (
        lambda f: bitsandbytes_pair(f, "llama", "nf4"),
        UPS[1:2],
        {"llm_int8_skip_modules": ["lm_head", UPS[1]]},
    ),
    "int8": (
        lambda f: bitsandbytes_pair(f, "llama", "int8"),
        UPS[:2],
        {"llm_int8_skip_modules": UPS[:2]},
    ),
    "hqq": (
        lambda f: hqq_pair(f, "llama", 4, 16, 1),
        UPS,
        {"skip_modules": ["lm_head", "mlp.up_proj"]},
    ),
    "quark": (
        lambda f: quark_pair(f, "llama", "fp8"),
        UPS,
        {"exclude": ["lm_head", "*.mlp.up_proj"]},
    ),
}
TAKEN: dict[str, Make] = {
    "torchao": lambda f: torchao_pair(f, "llama", "Int8"),
    "mlx": lambda f: mlx_pair(f, "llama", key="quantization_config"),
}


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


def scored(folder: Path) -> np.ndarray:
    return score(make_engine(folder, dtype="bfloat16", arithmetic="weights"), random_plan()).logprob


@pytest.mark.parametrize("family", CLAIMED)
def test_what_its_library_would_not_run_is_an_error(family, tmp_path):
    make, modules, listed = CLAIMED[family]
    packed, dense = make(tmp_path)
    expected = scored(packed)
    undo(packed, dense, *modules)
    words = rf"{modules[0]} is stored dense \(bf16\), and quantization_config says that it is quan"
    with pytest.raises(CheckpointError, match=words):
        make_engine(packed, arithmetic="weights")
    said = json.loads((packed / "config.json").read_text())["quantization_config"]
    edit_config(packed, quantization_config=said | listed)
    assert np.array_equal(scored(packed), expected)


@pytest.mark.parametrize("family", TAKEN)
def test_what_its_library_takes_as_it_is(family, tmp_path):
    packed, dense = TAKEN[family](tmp_path)
    expected = scored(packed)
    undo(packed, dense, UPS[1])
    assert np.array_equal(scored(packed), expected)
