"""Every family in a model that also sees: the language model's scores are those of the plain one.

As published, its tensors have one of two beginnings, and lists of what isn't quantized may have the
other, since the library has renamed modules and saves them under their old names.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.engine import make_engine, score
from support.families.float8_blocks import make_pair as float8_pair
from support.families.modelopt import file as modelopt_file
from support.families.modelopt import make_pair as modelopt_pair
from support.families.modelopt import write_file
from support.families.mxfp4_experts import make_pair as mxfp4_pair
from support.families.qweight import Recipe
from support.families.qweight import make_pair as qweight_pair
from support.family import Case, Family, all_families, listed
from support.models import make_checkpoint, random_plan

from scoremode.cli.inspect import inspect, inspect_config
from scoremode.demo.quantize import VARIANTS, quantize_folder

Config = dict[str, Any]
# Left dense, and named so: by the family's own list.
SPARED = "model.layers.1.mlp.up_proj"
# How names begin: the decoder's, the head's.
NEW, OLD = ("model.language_model.", "lm_head"), ("language_model.model.", "language_model.lm_head")
INTEGERS = {"bits": 4, "group_size": 32}


def compressed(variant: str) -> Callable[[Path], tuple[Path, Path]]:
    def make(folder: Path) -> tuple[Path, Path]:
        dense, packed = folder / "dense", folder / "packed"
        make_checkpoint(dense, "llama", dtype=torch.bfloat16)
        quantize_folder(dense, packed, next(v for v in VARIANTS if v.name == variant))
        return packed, dense

    return make


def of_families() -> dict[str, tuple[Any, Any]]:
    """The first of a family's cases for each way in which inputs are quantized."""

    def make(family: Family, case: Case, folder: Path) -> tuple[Path, Path]:
        return family.pair(folder, "llama", case)

    return {
        f"{name} {case.inputs}": (partial(make, family, case), family.spare)
        for name, family in all_families().items()
        for case in reversed(family.cases if family.spare else ())
        if "llama" in case.models
    }


def named(field: str, value: Any, prefix: str = "") -> Callable[[Config, str], None]:
    def add(config: Config, name: str) -> None:
        config.setdefault(field, {})[f"{prefix}{name}"] = value

    return add


NOT_CONVERTED = listed("modules_to_not_convert")
# What makes a pair of packed and dense models, and what spares a module.
FAMILIES: dict[str, tuple[Callable[[Path], tuple[Path, Path]], Callable[[Config, str], None]]] = {
    "W4A16": (compressed("W4A16-g32"), listed("ignore")),
    "NVFP4": (compressed("NVFP4"), listed("ignore")),
    "fp8": (lambda f: float8_pair(f, "llama", (32, 32)), NOT_CONVERTED),
    "awq": (
        lambda f: qweight_pair(
            f, "llama", Recipe(order="outputs"), quant_method="awq", version="gemm", **INTEGERS
        ),
        NOT_CONVERTED,
    ),
    "gptq": (
        lambda f: qweight_pair(
            f, "llama", Recipe(less_one=True), quant_method="gptq", sym=False, **INTEGERS
        ),
        named("dynamic", {}, "-:"),
    ),
    "auto-round": (
        lambda f: qweight_pair(
            f, "llama", Recipe(symmetric=True, less_one=True), quant_method="auto-round",
            packing_format="auto_round:auto_gptq", **INTEGERS,
        ),
        named("extra_config", {"bits": 16}),
    ),
    **of_families(),
}  # fmt: skip


# The maker stores an order of inputs beside it, which AutoRound does not.
UNTOLD = ("auto-round",)


def read(folder: Path) -> Config:
    return json.loads((folder / "config.json").read_text())


def write(folder: Path, config: Config) -> None:
    (folder / "config.json").write_text(json.dumps(config))


def respelled(name: str, spelling: tuple[str, str]) -> str:
    decoder, head = spelling
    if name.startswith("model."):
        return decoder + name.removeprefix("model.")
    return head + name.removeprefix("lm_head") if name.startswith("lm_head") else name


def rewritten(
    folder: Path,
    change: Callable[[dict[str, torch.Tensor]], None],
    name: Callable[[str], str] = lambda key: key,
) -> None:
    """Changes the tensors of a file, then their names, in its metadata too."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    with safe_open(path, "pt") as opened:
        metadata = opened.metadata() or {}
    change(tensors)
    renamed = {name(key): tensor for key, tensor in tensors.items()}
    save_file(renamed, path, metadata={name(key): text for key, text in metadata.items()})


def spare(packed: Path, dense: Path) -> None:
    """Stores the one module dense."""
    weight = load_file(dense / "model.safetensors")[f"{SPARED}.weight"]

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for key in [key for key in tensors if key.startswith(f"{SPARED}.")]:
            del tensors[key]
        tensors[f"{SPARED}.weight"] = weight

    rewritten(packed, change)


def wrap(folder: Path, spelling: tuple[str, str], *, nested: bool) -> None:
    """Makes the model's a LLaVA, its quantization at the top or beside the language model's."""
    text = read(folder)
    quantization = text.pop("quantization_config", None)
    vision = {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 16}
    vision |= {"num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    whole = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "image_token_index": 100,
        "vision_config": vision,
        "text_config": text,
    }
    if quantization:
        (text if nested else whole)["quantization_config"] = quantization
    write(folder, whole)
    tower = "model.vision_tower." if spelling == NEW else "vision_tower."

    def see(tensors: dict[str, torch.Tensor]) -> None:
        name = "vision_model.encoder.layers.0.self_attn.q_proj"
        tensors[f"eye.{name}.weight"] = torch.zeros(16, 16, dtype=torch.bfloat16)

    def name(key: str) -> str:
        return key.replace("eye.", tower) if key.startswith("eye.") else respelled(key, spelling)

    rewritten(folder, see, name)


def respell_names(config: Config, spelling: tuple[str, str]) -> None:
    """The names of MLX's modules."""
    for key in [key for key in config if key.startswith(("model.", "lm_head"))]:
        config[respelled(key, spelling)] = config.pop(key)


CASES = [
    (NEW, NEW, False),
    (OLD, OLD, True),
    # Saved by the library under names that its modules don't have any more.
    (OLD, NEW, False),
    (NEW, OLD, True),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_the_plain_models(family, tmp_path):
    make, add = FAMILIES[family]
    packed, dense = make(tmp_path)
    spare(packed, dense)
    config = read(packed)
    plan = random_plan()

    def scored(folder: Path) -> np.ndarray:
        return score(make_engine(folder, dtype="bfloat16", arithmetic="weights"), plan).logprob

    add(config["quantization_config"], SPARED)
    write(packed, config)
    expected = scored(packed)
    assert expected.std() > 0.3
    files = (packed / "model.safetensors").read_bytes(), read(packed)
    for tensors, names, nested in CASES:
        (packed / "model.safetensors").write_bytes(files[0])
        config = json.loads(json.dumps(files[1]))
        said = config["quantization_config"]
        before = json.dumps(said)
        respell_names(said, names)
        text = json.dumps(said).replace(SPARED, respelled(SPARED, names))
        config["quantization_config"] = json.loads(text.replace('"lm_head"', f'"{names[1]}"'))
        assert json.dumps(config["quantization_config"]) != before
        write(packed, config)
        wrap(packed, tensors, nested=nested)
        assert np.array_equal(scored(packed), expected), (tensors, names)
        value = inspect(str(packed), device_name="cpu")
        assert value["refusals"] == []


def test_modelopts_own_file_beside_a_wrapper(tmp_path):
    packed, _ = modelopt_pair(tmp_path, "llama", "FP8")
    plan = random_plan()
    expected = score(make_engine(packed, dtype="bfloat16", arithmetic="weights"), plan).logprob
    config = read(packed)
    del config["quantization_config"]
    write(packed, config)
    wrap(packed, OLD, nested=False)
    write_file(packed, modelopt_file("FP8", "language_model.lm_head", "vision_tower*"))
    ours = score(make_engine(packed, dtype="bfloat16", arithmetic="weights"), plan).logprob
    assert np.array_equal(ours, expected)


@pytest.mark.parametrize("spelling", [NEW, OLD])
def test_experts_in_mxfp4(spelling, tmp_path):
    packed, _ = mxfp4_pair(tmp_path)
    plan = random_plan()
    expected = score(make_engine(packed, dtype="bfloat16"), plan).logprob
    wrap(packed, spelling, nested=spelling == OLD)
    ours = score(make_engine(packed, dtype="bfloat16"), plan).logprob
    assert np.array_equal(ours, expected) and expected.std() > 0.3


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in UNTOLD])
def test_a_config_alone(family, tmp_path):
    """What it says of the language model is what the tensors say."""
    packed, _ = FAMILIES[family][0](tmp_path)
    config = read(packed)
    respell_names(config["quantization_config"], NEW)
    write(packed, config)
    wrap(packed, NEW, nested=family.startswith("quark"))
    whole = inspect(str(packed), device_name="cpu")["formats"]
    alone = inspect_config(str(packed / "config.json"), device_name="cpu")
    assert alone["runs"]["possible"], alone["refusals"]
    for label, found in alone["formats"].items():
        # The vision tower's one linear is seen among tensors alone.
        more = 1 if label == "bf16" else 0
        assert found["modules"] + more == whole[label]["modules"], label
        assert more or found == whole[label]
    assert alone["formats"].keys() | {"bf16"} == whole.keys()
