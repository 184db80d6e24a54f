"""Whole models whose activations are quantized, against compressed-tensors' forward in transformers."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.quantization import QuantizationStatus
from compressed_tensors.quantization.lifecycle.forward import set_forward_quantized
from safetensors.torch import load_file, save_file
from support.engine import make_engine, score
from support.models import (
    edit_config,
    edit_tensors,
    library_logprobs,
    library_model,
    make_checkpoint,
    random_plan,
)
from support.quantized import LibraryLinear, preset

from scoremode.engines.base import Schedule
from scoremode.engines.torch.engine import TorchEngine
from scoremode.errors import CheckpointError, UnsupportedModel, UsageError


def quantize(
    dense: Path, target: Path, name: str | list[str], head: bool = False
) -> dict[str, LibraryLinear]:
    """A copy of the model whose decoder linears (and head) the library quantizes by a preset, or
    those of each layer by its own of a list."""
    target.mkdir()
    groups: dict[str, dict[str, Any]] = {}
    tensors = load_file(dense / "model.safetensors")
    linears: dict[str, LibraryLinear] = {}
    generator = torch.Generator().manual_seed(5)
    for key in list(tensors):
        if key.endswith("_proj.weight") or (head and key == "lm_head.weight"):
            module = key.removesuffix(".weight")
            weight = tensors.pop(key)
            calibration = 3 * torch.randn(64, weight.shape[1], generator=generator)
            own = name if isinstance(name, str) else name[int(module.split(".")[2])]
            linears[module] = LibraryLinear(weight, preset(own), calibration)
            (group,) = linears[module].config()["config_groups"].values()
            if isinstance(name, list):
                group |= {"targets": [*groups.get(own, {"targets": []})["targets"], module]}
            groups[own] = group
            stored = linears[module].stored()
            tensors |= {f"{module}.{suffix}": value for suffix, value in stored.items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(dense / "config.json", target / "config.json")
    first = next(iter(linears.values()))
    ignore = [] if head else ["lm_head"]
    numbered = {f"group_{i}": group for i, group in enumerate(groups.values())}
    config = first.config() | {"config_groups": numbered, "ignore": ignore}
    edit_config(target, quantization_config=config)
    return linears


def change_inputs(folder: Path, **changes: Any) -> None:
    """Changes the fields of the inputs of every group."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    for group in config["config_groups"].values():
        group["input_activations"] |= changes
    edit_config(folder, quantization_config=config)


def library_quantized(dense: Path, linears: dict[str, LibraryLinear]) -> Any:
    """transformers' model with the library's fake-quantized forward in each of those linears."""
    model = library_model(dense, torch.float32)
    for name, linear in linears.items():
        module = model.get_submodule(name)
        for key, value in linear.linear.named_parameters():
            if key != "weight":
                module.register_parameter(key, value)
        module.quantization_scheme = linear.scheme
        module.quantization_status = QuantizationStatus.FROZEN
        set_forward_quantized(module)
    return model


def engine(folder: Path, **options: Any) -> TorchEngine:
    return make_engine(folder, **{"dtype": "float32"} | options)


@pytest.fixture(scope="module")
def dense(tmp_path_factory) -> Path:
    """Wide enough for groups of 128."""

    def widen(settings: dict[str, Any]) -> None:
        settings |= {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}

    return make_checkpoint(tmp_path_factory.mktemp("dense") / "llama", "llama", change=widen)


# One of each kind of codes and scales; test_linears has every preset, without what is said below.
PRESETS = [
    "FP8", "FP8_BLOCK", "FP8_DYNAMIC", "MXFP4", "MXFP4XFP8", "MXFP6A8", "MXFP8", "NVFP4", "W4A8",
    "W4AFP8", "W8A8",
]  # fmt: skip


def agree(ours: np.ndarray, theirs: np.ndarray, others: np.ndarray) -> None:
    """A state at the border of two codes may fall to either side, which is a step of quantization,
    and all that follows it differs. What meets none agrees as two float32 forwards do, which nothing
    does of `others`, of other arithmetic."""
    agreeing, differing = (np.quantile(np.abs(x - theirs), 0.2) for x in (ours, others))
    assert agreeing < 1e-4
    assert differing > 20 * agreeing


@pytest.mark.parametrize("name", PRESETS)
def test_equals_the_library_in_transformers(name, dense, tmp_path):
    linears = quantize(dense, tmp_path / "model", name)
    plan = random_plan(length=24, windows=4)
    quantized = engine(tmp_path / "model")
    theirs = library_logprobs(library_quantized(dense, linears), plan)
    weights = score(engine(tmp_path / "model", arithmetic="weights"), plan).logprob
    agree(score(quantized, plan).logprob, theirs, weights)
    said = quantized.identity()
    assert said["arithmetic"] == "weights+activations"
    assert said["activations"]["ran"] == "quantized"
    assert sum(p["linears"] for p in said["products"]) == len(linears)


@pytest.mark.parametrize("name", ["NVFP4", "W8A8", "FP8", "FP8_BLOCK"])
def test_a_head_may_have_quantized_inputs(name, dense, tmp_path):
    linears = quantize(dense, tmp_path / "model", name, head=True)
    assert "lm_head" in linears
    plan = random_plan(length=24, windows=4)
    quantized = engine(tmp_path / "model")
    theirs = library_logprobs(library_quantized(dense, linears), plan)
    body = {k: v for k, v in linears.items() if k != "lm_head"}
    only_body = library_logprobs(library_quantized(dense, body), plan)
    agree(score(quantized, plan).logprob, theirs, only_body)
    assert sum(p["linears"] for p in quantized.identity()["products"]) == len(linears)


def test_what_is_declared_and_what_ran(dense, tmp_path):
    quantize(dense, tmp_path / "w4a4", "NVFP4")
    quantize(dense, tmp_path / "w4a16", "NVFP4A16")
    weights = engine(tmp_path / "w4a4", arithmetic="weights").identity()
    assert weights["arithmetic"] == "weights" and weights["products"] == []
    assert weights["activations"] == {
        "declared": "float4 group 16 local",
        "ran": "not quantized",
    }
    plain = engine(tmp_path / "w4a16").identity()
    assert plain["arithmetic"] == "weights"
    assert plain["activations"] == {"declared": None, "ran": None}
    with pytest.raises(UsageError, match="declares no quantized activations"):
        engine(tmp_path / "w4a16", arithmetic="weights+activations")
    asked = engine(tmp_path / "w4a4", arithmetic="weights+activations").identity()
    assert asked == engine(tmp_path / "w4a4").identity()


@pytest.mark.parametrize("bits", [("float", 8), ("int", 8), ("int", 4)], ids=str)
def test_a_dynamic_scale_a_tensor_is_one_a_window(bits, dense, tmp_path):
    """Windows do not meet, and the proof that the model is causal is not misled: such a scale spans
    tokens to come."""
    quantize(dense, tmp_path / "model", "FP8_DYNAMIC" if bits[0] == "float" else "W8A8")
    change_inputs(tmp_path / "model", strategy="tensor", type=bits[0], num_bits=bits[1])
    plan = random_plan(length=24, windows=4, tail=0)
    alone = score(engine(tmp_path / "model"), plan, Schedule(4, 1)).logprob
    together = score(engine(tmp_path / "model"), plan, Schedule(4, 4)).logprob
    # Float32 matmuls of other sizes may move a state over a border.
    assert np.quantile(np.abs(alone - together), 0.2) < 1e-4
    (product,) = engine(tmp_path / "model").identity()["products"]
    assert product["inputs"] == f"{bits[0]}{bits[1]} tensor"


def test_so_is_a_head_s(dense, tmp_path):
    """Whichever windows share a pass, and whichever of a window's tokens are scored."""
    quantize(dense, tmp_path / "model", "FP8_DYNAMIC", head=True)
    change_inputs(tmp_path / "model", strategy="tensor")
    plan = random_plan(length=24, windows=4, tail=0)
    alone = score(engine(tmp_path / "model"), plan, Schedule(1, 1))
    together = score(engine(tmp_path / "model"), plan, Schedule(4, 1))
    assert np.array_equal(alone.logprob, together.logprob)
    overlapping = random_plan(length=24, windows=4, tail=0, stride=12, scored="new")
    some = score(engine(tmp_path / "model"), overlapping, Schedule(1, 1))
    # The same window, of which only the later targets count.
    found = some.logprob[some.window == 2]
    assert len(found) < 23
    assert np.array_equal(found, alone.logprob[alone.window == 1][-len(found) :])


@pytest.mark.parametrize(
    ("name", "part", "words"),
    [
        ("mixtral", ".experts.", r"experts\.0\.w1\.weight is an expert's"),
        ("qwen2_moe", "shared_expert.", r"gate_proj gets its tokens as \[2, 32\]"),
        ("opt", ".fc1", r"layers\.0\.fc1 gets its tokens as \[2, 32\]"),
    ],
)
def test_windows_that_are_not_apart_have_no_scale_each(name, part, words, tmp_path):
    """A scale over whatever windows share a batch would make scores depend on the batch."""
    folder = make_checkpoint(tmp_path / "model", name)
    tensors = load_file(folder / "model.safetensors")
    modules = [k.removesuffix(".weight") for k in tensors if part in k and k.endswith(".weight")]
    for module in modules:
        weight = tensors.pop(f"{module}.weight")
        linear = LibraryLinear(weight, preset("FP8_DYNAMIC"), weight)
        tensors |= {f"{module}.{k}": v for k, v in linear.stored().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = linear.config()
    config["config_groups"]["group_0"]["targets"] = modules
    edit_config(folder, quantization_config=config)
    assert engine(folder).identity()["arithmetic"] == "weights+activations"
    change_inputs(folder, strategy="tensor")
    with pytest.raises(UnsupportedModel, match=f"{words}.*--arithmetic weights"):
        engine(folder)
    assert engine(folder, arithmetic="weights").identity()["activations"]["ran"] == "not quantized"


@pytest.mark.parametrize(
    "names",
    [["W8A8", "FP8_DYNAMIC", "W8A8"], ["FP8_DYNAMIC", "W8A8", "NVFP4"], ["NVFP4", "W4A16", "W8A8"]],
    ids="-".join,
)
def test_layers_of_different_formats_share_the_slot(names, dense, tmp_path):
    linears = quantize(dense, tmp_path / "model", names)
    plan = random_plan(length=24, windows=4)
    mixed = engine(tmp_path / "model")
    theirs = library_logprobs(library_quantized(dense, linears), plan)
    weights = score(engine(tmp_path / "model", arithmetic="weights"), plan).logprob
    agree(score(mixed, plan).logprob, theirs, weights)
    declaring = [n for n in names if "A16" not in n]
    assert sum(p["linears"] for p in mixed.identity()["products"]) == 7 * len(declaring)


@pytest.mark.parametrize("value", [0.0, -0.5, float("nan"), float("inf")])
def test_a_static_scale_is_positive(value, dense, tmp_path):
    quantize(dense, tmp_path / "model", "FP8")
    name = "model.layers.1.mlp.up_proj.input_scale"
    edit_tensors(tmp_path / "model", lambda t: t.update({name: torch.tensor([value])}))
    words = rf"tensor {name} is {value:g}, not a positive scale; --arithmetic weights"
    with pytest.raises(CheckpointError, match=words):
        engine(tmp_path / "model")
    engine(tmp_path / "model", arithmetic="weights")


def test_what_only_other_parts_declare_did_not_run(tmp_path):
    """A vision tower's linears, of which nothing runs here."""
    folder = make_checkpoint(tmp_path / "model", "llama")
    weight = torch.randn(16, 32)
    linear = LibraryLinear(weight, preset("FP8_DYNAMIC"), weight)
    stored = {f"vision.proj.{k}": v for k, v in linear.stored().items()}
    edit_tensors(folder, lambda t: t.update(stored))
    config = linear.config()
    config["config_groups"]["group_0"]["targets"] = ["vision.proj"]
    edit_config(folder, quantization_config=config)
    said = engine(folder).identity()
    assert said["arithmetic"] == "weights" and said["products"] == []
    assert said["activations"] == {"declared": "float8 token", "ran": "not quantized"}
    with pytest.raises(UsageError, match="declares float8 token only for what is no part"):
        engine(folder, arithmetic="weights+activations")


def test_a_layer_is_loaded_anew_and_memory_is_not(dense, tmp_path):
    quantize(dense, tmp_path / "model", "FP8_BLOCK")
    plan = random_plan(length=24, windows=4)
    quantized = engine(tmp_path / "model")
    first = score(quantized, plan)
    held = quantized.parts.slot.bytes
    assert np.array_equal(first.logprob, score(quantized, plan).logprob)
    assert quantized.parts.slot.bytes == held


def test_a_linear_of_its_own_kind_is_refused(dense, tmp_path):
    """GPT-2's projections are no linears: their weights lie transposed."""
    folder = make_checkpoint(tmp_path / "gpt2", "gpt2")
    tensors = load_file(folder / "model.safetensors")
    key = next(k for k in tensors if k.endswith("h.0.mlp.c_proj.weight"))
    weight = tensors.pop(key)
    linear = LibraryLinear(weight, preset("FP8_DYNAMIC"), torch.randn(8, weight.shape[1]))
    stored = linear.stored()
    tensors |= {f"{key.removesuffix('.weight')}.{k}": v for k, v in stored.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = linear.config()
    config["config_groups"]["group_0"]["targets"] = [key.removesuffix(".weight")]
    edit_config(folder, quantization_config=config)
    with pytest.raises(UnsupportedModel, match=r"c_proj is a Conv1D.*--arithmetic weights"):
        engine(folder)
    assert engine(folder, arithmetic="weights").identity()["activations"]["ran"] == "not quantized"


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_embeddings_and_heads_may_be_quantized(tied, tmp_path):
    """Each by a group of its own, with other bits than the linears'."""

    def widen(settings: dict[str, Any]) -> None:
        settings |= {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
        settings["tie_word_embeddings"] = tied

    dense = make_checkpoint(tmp_path / "dense", "llama", change=widen)
    tensors = load_file(dense / "model.safetensors")
    names = {"model.embed_tokens": "W8A16", "lm_head": "W6A16"}
    names |= {k.removesuffix(".weight"): "W4A16" for k in tensors if k.endswith("_proj.weight")}
    names = {name: p for name, p in names.items() if f"{name}.weight" in tensors}
    assert ("lm_head" in names) == (not tied)
    decoded, groups = {}, {}
    for name, p in sorted(names.items()):
        weight = tensors.pop(f"{name}.weight")
        linear = LibraryLinear(weight, preset(p), weight)
        tensors |= {f"{name}.{k}": v for k, v in linear.stored().items()}
        decoded[f"{name}.weight"] = linear.decompressed()
        (group,) = linear.config()["config_groups"].values()
        kind = "Embedding" if "embed" in name else "Linear" if "_proj" in name else name
        groups[kind] = group | {"targets": [kind]}
    shutil.copytree(dense, tmp_path / "model")
    save_file(tensors, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    config = linear.config() | {"config_groups": groups}
    edit_config(tmp_path / "model", quantization_config=config)
    edit_tensors(dense, lambda t: t.update(decoded))
    plan = random_plan(length=24, windows=4)
    # What stays is held once, and not in the Slot too.
    layer = 4 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 256 * 128)
    assert engine(tmp_path / "model").parts.slot.bytes == layer
    theirs = library_logprobs(library_model(dense, torch.float32), plan)
    assert np.abs(score(engine(tmp_path / "model"), plan).logprob - theirs).max() < 1e-5


def library_experts(model: Any, linears: dict[str, LibraryLinear], plan) -> np.ndarray:
    """transformers' model with each expert a gate, an up and a down of the library's linears."""

    def forward(prefix: str):
        def run(hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            total = torch.zeros_like(hidden)
            for expert in index.unique().tolist():
                token, choice = torch.where(index == expert)
                gate, up, down = (
                    linears[f"{prefix}.{expert}.{part}"] for part in ("w1", "w3", "w2")
                )
                x = hidden[token]
                y = down.forward(torch.nn.functional.silu(gate.forward(x)) * up.forward(x))
                total.index_add_(0, token, y * weights[token, choice, None])
            return total

        return run

    for i, layer in enumerate(model.model.layers):
        layer.mlp.experts.forward = forward(f"model.layers.{i}.block_sparse_moe.experts")
    return library_logprobs(model, plan)


@pytest.mark.parametrize("memory", [None, 100_000], ids=["fits", "in groups"])
@pytest.mark.parametrize("name", ["NVFP4", "W8A8", "FP8_DYNAMIC"])
def test_experts_quantize_their_inputs(name, memory, tmp_path):
    def widen(settings: dict[str, Any]) -> None:
        settings |= {"hidden_size": 64, "intermediate_size": 128}

    dense = make_checkpoint(tmp_path / "mixtral", "mixtral", change=widen)
    tensors = load_file(dense / "model.safetensors")
    linears = {}
    for key in [k for k in tensors if ".experts." in k]:
        weight = tensors.pop(key)
        module = key.removesuffix(".weight")
        calibration = 2 * torch.randn(
            64, weight.shape[1], generator=torch.Generator().manual_seed(1)
        )
        linears[module] = LibraryLinear(weight, preset(name), calibration)
        tensors |= {f"{module}.{k}": v for k, v in linears[module].stored().items()}
    assert linears
    shutil.copytree(dense, tmp_path / "model")
    save_file(tensors, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    config = next(iter(linears.values())).config()
    config["config_groups"]["group_0"]["targets"] = ["re:.*experts.*"]
    edit_config(tmp_path / "model", quantization_config=config)
    plan = random_plan(length=24, windows=4)
    quantized = engine(tmp_path / "model", max_memory=memory, batch_windows=1)
    if memory:
        assert quantized.describe()["experts"] != "a layer at a time"
    of_experts = quantized.parts.weights.experts
    bindings = [b for layer in of_experts for w in layer for e in range(6) for b in w.bindings(e)]
    theirs = library_experts(library_model(dense, torch.float32), linears, plan)
    weights = score(engine(tmp_path / "model", arithmetic="weights"), plan).logprob
    agree(score(quantized, plan).logprob, theirs, weights)
    # Neither codes nor scales outlive their layer.
    assert all(b.matmul is not None and b.matmul._loaded is None for b in bindings)
    assert sum(p["linears"] for p in quantized.identity()["products"]) == len(linears)
