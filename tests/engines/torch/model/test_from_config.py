"""Checkpoints by their configs alone, against the same ones by their headers."""

import json
from pathlib import Path

import pytest
import torch
from support.families.bitsandbytes import make_pair as bitsandbytes_pair
from support.families.float8_blocks import make_pair as float8_pair
from support.families.mlx import make_pair as mlx_pair
from support.families.modelopt import FORMATS
from support.families.modelopt import make_pair as modelopt_pair
from support.families.quark import make_pair as quark_pair
from support.families.qweight import Recipe
from support.families.qweight import make_pair as qweight_pair
from support.models import make_checkpoint

from scoremode.checkpoint.files import Checkpoint, open_checkpoint, opened_config
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.torch.model.from_config import checkpoint_by_config
from scoremode.errors import UnsupportedFormat, UnsupportedModel
from scoremode.schemes.library import Library
from scoremode.schemes.resolve import READ
from scoremode.schemes.summary import summarize


def headers(checkpoint: Checkpoint) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {n: (i.dtype, i.shape) for n, i in checkpoint.tensors.items()}


def by_config(folder: Path) -> Checkpoint:
    config = json.loads((folder / "config.json").read_text())
    return checkpoint_by_config(Checkpoint(folder, "x", config, {}))


def check(folder: Path, *, dtypes: bool = True) -> None:
    promised, real = headers(by_config(folder)), headers(open_checkpoint(str(folder)))
    assert promised.keys() == real.keys()
    for name, (dtype, shape) in real.items():
        # One of a tensor has any rank.
        assert promised[name][1] == shape or shape in ((), (1,), (1, 1)), name
        # Scales may be wider than the model.
        if dtypes:
            assert promised[name][0] == dtype, name


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_compressed_tensors_as_they_are_written(demo, tmp_path, variant):
    quantize_folder(demo / "model", tmp_path / "q", variant)
    check(tmp_path / "q")


@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen3_moe", "mixtral"])
def test_names_of_a_dense_model(tmp_path, name):
    make_checkpoint(tmp_path / "m", name, dtype=torch.bfloat16)
    check(tmp_path / "m")


@pytest.mark.parametrize(
    ("recipe", "config"),
    [
        (Recipe(order="outputs"), {"quant_method": "awq", "bits": 4, "group_size": 32}),
        (Recipe(order="gemv"),
         {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"}),
        (Recipe(order="gemv_fast"),
         {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv_fast"}),
        (Recipe(), {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False,
                    "checkpoint_format": "gptq_v2"}),
        (Recipe(symmetric=True, order="outputs"),
         {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True,
          "packing_format": "auto_round:auto_awq"}),
    ],
)  # fmt: skip
def test_integers_in_words(tmp_path, recipe, config):
    packed, _ = qweight_pair(tmp_path, "llama", recipe, **config)
    promised, real = headers(by_config(packed)), headers(open_checkpoint(str(packed)))
    assert promised == real


@pytest.mark.parametrize("scale", [torch.float32, torch.float8_e8m0fnu])
def test_blocks_of_float8(tmp_path, scale):
    said = {"scale_fmt": "ue8m0"} if scale == torch.float8_e8m0fnu else {}
    packed, _ = float8_pair(
        tmp_path, "llama", (32, 32), scale, modules_to_not_convert=["lm_head"], **said
    )
    check(packed)


@pytest.mark.parametrize("algorithm", FORMATS)
@pytest.mark.parametrize("alone", [False, True])
def test_modelopts(tmp_path, algorithm, alone):
    packed, _ = modelopt_pair(tmp_path, "llama", algorithm, alone=alone)
    with opened_config(str(packed / "config.json")) as (given, _):
        promised = headers(checkpoint_by_config(given))
    assert promised == headers(open_checkpoint(str(packed)))


def test_modelopts_experts(tmp_path):
    packed, _ = modelopt_pair(tmp_path, "qwen3_moe", "NVFP4")
    assert headers(by_config(packed)) == headers(open_checkpoint(str(packed)))


@pytest.mark.parametrize(("name", "kind"), [("llama", "nf4"), ("mixtral", "int8")])
def test_bitsandbytes(tmp_path, name, kind):
    packed, _ = bitsandbytes_pair(tmp_path, name, kind)
    promised = by_config(packed)
    assert headers(promised) == headers(open_checkpoint(str(packed)))
    # Records and tables are read.
    assert summarize(promised).refusals == {}


def test_modules_are_in_the_models_order(tmp_path):
    """So that their table is the same whenever it is made."""
    folder, _ = quark_pair(tmp_path, "llama", "int4")
    kinds = summarize(by_config(folder)).formats["W4A16 g32"].kinds
    of_attention = [f"{which}_proj" for which in "qkvo"]
    assert list(kinds) == [*of_attention, "gate_proj", "up_proj", "down_proj"]


def test_modules_of_mlx_that_have_bits_of_their_own(tmp_path):
    packed, _ = mlx_pair(tmp_path, "qwen3", 5, 32, "quantization_config", down_proj=6, lm_head=8)
    assert headers(by_config(packed)) == headers(open_checkpoint(str(packed)))


def test_what_only_tensors_tell_is_refused(demo, monkeypatch):
    monkeypatch.setattr(READ["awq"], "promise", Library.promise)
    config = json.loads((demo / "model" / "config.json").read_text())
    config |= {"quantization_config": {"quant_method": "awq", "bits": 4}}
    with pytest.raises(
        UnsupportedFormat, match="method 'awq' is read, and what it means for a mod"
    ):
        checkpoint_by_config(Checkpoint(demo / "model", "x", config, {}))


def test_an_unknown_model_is_refused(tmp_path):
    config = {"model_type": "nothing", "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="model_type nothing"):
        by_config(tmp_path)
