"""Where the weights of each expert lie, in every layout, and what can be wrong with them."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.engine import make_engine, score
from support.families.mlx import switched
from support.families.packed_experts import FORMATS, Tensors, make_packed, unroll
from support.models import (
    edit_config,
    edit_tensors,
    make_checkpoint,
    random_plan,
)

from scoremode.errors import CheckpointError


@pytest.mark.parametrize("name", ["gpt_oss", "llama4_text"])
def test_unrolled_experts_equal_the_fused_ones(name, tmp_path):
    plan = random_plan()
    fused = score(make_engine(make_checkpoint(tmp_path, name)), plan)
    edit_tensors(tmp_path, unroll)
    unrolled = score(make_engine(tmp_path), plan)
    assert np.abs(fused.logprob - unrolled.logprob).max() < 1e-5


@pytest.mark.parametrize("convert", [unroll, switched])
def test_experts_as_linears_under_another_prefix(convert, tmp_path):
    """As Llama 4 is published, whose class for text alone takes `language_model` away."""
    folder, plan = make_checkpoint(tmp_path, "llama4_text"), random_plan()
    expected = score(make_engine(folder), plan).logprob

    def rename(tensors: Tensors) -> None:
        convert(tensors)
        for name in list(tensors):
            tensors[f"language_model.{name}"] = tensors.pop(name)

    edit_tensors(folder, rename)
    assert np.abs(score(make_engine(folder), plan).logprob - expected).max() < 1e-5


def remove(name: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        del tensors[name]

    return edit


def copy(name: str, new: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        tensors[new] = tensors[name].clone()

    return edit


def shorten(name: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        tensors[name] = tensors[name][:-1].clone()

    return edit


MIXTRAL = "model.layers.1.block_sparse_moe.experts"


OSS = "model.layers.1.mlp.experts"


DAMAGE = {
    "missing": ("mixtral", remove(f"{MIXTRAL}.3.w3.weight"), r"experts\.3\.w3\.weight .*expert 3"),
    "first missing": ("mixtral", remove(f"{MIXTRAL}.0.w2.weight"), r"experts\.0\.w2\.weight"),
    "last missing": ("mixtral", remove(f"{MIXTRAL}.5.w2.weight"), r"experts\.5\.w2\.weight"),
    "one too many": (
        "mixtral",
        copy(f"{MIXTRAL}.5.w1.weight", f"{MIXTRAL}.6.w1.weight"),
        r"1\.block_sparse_moe\.experts\.6\.w1\.weight is of expert 6, .* 6 experts",
    ),
    "shape": (
        "mixtral",
        shorten(f"{MIXTRAL}.2.w1.weight"),
        r"experts\.2\.w1\.weight has shape \[63, 32\], the model needs \[64, 32\]",
    ),
    "stray": (
        "mixtral",
        copy(f"{MIXTRAL}.2.w1.weight", f"{MIXTRAL}.2.w4.weight"),
        r"experts\.2\.w4\.weight belongs to a layer",
    ),
    "fused shape": (
        "gpt_oss fused",
        shorten(f"{OSS}.down_proj"),
        r"experts\.down_proj has shape \[5, 64, 32\], the model needs \[6, 64, 32\]",
    ),
    "fused bias missing": ("gpt_oss fused", remove(f"{OSS}.down_proj_bias"), "down_proj_bias"),
    "unrolled missing": ("gpt_oss", remove(f"{OSS}.4.up_proj.weight"), r"experts\.4\.up_proj"),
    "unrolled first missing": (
        "gpt_oss",
        remove(f"{OSS}.0.gate_proj.weight"),
        r"experts\.0\.gate_proj\.weight",
    ),
    "unrolled bias missing": (
        "gpt_oss",
        remove(f"{OSS}.4.down_proj.bias"),
        r"experts\.4\.down_proj\.bias",
    ),
    "unrolled one too many": (
        "gpt_oss",
        copy(f"{OSS}.4.down_proj.weight", f"{OSS}.6.down_proj.weight"),
        r"experts\.6\.down_proj\.weight belongs to a layer",
    ),
    "both": (
        "gpt_oss fused",
        copy(f"{OSS}.down_proj", f"{OSS}.0.down_proj.weight"),
        r"experts\.0\.down_proj\.weight belongs to a layer",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_experts_are_one_clear_error(damage, tmp_path):
    name, edit, message = DAMAGE[damage]
    family, _, fused = name.partition(" ")
    folder = make_checkpoint(tmp_path, family)
    if family == "gpt_oss" and not fused:
        edit_tensors(folder, unroll)
    edit_tensors(folder, edit)
    with pytest.raises(CheckpointError, match=message) as error:
        make_engine(folder)
    assert "\n" not in str(error.value)


def test_an_expert_that_is_stored_dense_and_declared_packed_is_refused(tmp_path):
    folder, _ = make_packed(tmp_path, "qwen3_moe", FORMATS[0])
    name = "model.layers.2.mlp.experts.4.up_proj"

    def unpack(tensors: Tensors) -> None:
        for suffix in ("weight_packed", "weight_scale", "weight_shape"):
            del tensors[f"{name}.{suffix}"]
        tensors[f"{name}.weight"] = torch.zeros(64, 32, dtype=torch.bfloat16)

    edit_tensors(folder, unpack)
    with pytest.raises(CheckpointError, match=rf"{re.escape(name)} is stored dense \(bf16\)"):
        make_engine(folder)


def test_fewer_experts_in_the_config_than_in_the_files_is_an_error(tmp_path):
    folder = make_checkpoint(tmp_path, "qwen3_moe")
    edit_config(folder, num_local_experts=4)
    with pytest.raises(CheckpointError, match=r"experts\.4\.\w+\.weight is of expert 4, .* has 4"):
        make_engine(folder)
