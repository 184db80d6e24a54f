"""Recipes: chosen of what parts do alone, and measured; they beat uniform quants of their size."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.families.qweight import LINEAR, Recipe, quantize
from support.models import edit_config, edit_tensors
from support.run_requests import request

from scoremode.checkpoint.files import open_checkpoint
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import UsageError
from scoremode.results.folders.store import seal_of
from scoremode.runs.recipe import search
from scoremode.runs.request import Swap
from scoremode.schemes.summary import summarize
from scoremode.text.corpus import from_string


@pytest.fixture(scope="module")
def quants(demo, tmp_path_factory):
    home = tmp_path_factory.mktemp("recipe")
    for variant in VARIANTS:
        if variant.name in ("W3A16-g32", "W4A16-g32", "W8A16"):
            quantize_folder(demo / "model", home / variant.name, variant)
    return home


@pytest.fixture(scope="module")
def asked(demo, quants, tmp_path_factory):
    return request(
        quants / "W4A16-g32",
        (demo / "heldout.txt").read_text()[:12_000],
        tmp_path_factory.mktemp("runs"),
        reference=str(demo / "model"),
        options=TorchOptions(device="cpu"),
    )


@pytest.fixture(scope="module")
def found(asked, quants):
    others = [str(quants / name) for name in ("W3A16-g32", "W8A16")]
    return search(asked, others, 4.5, "kind", write_recipe=quants / "recipe.yaml")


def test_the_choice_fits_and_beats_the_uniform_quant_of_its_size(found):
    value = found.value
    uniform = {c["name"]: c for c in value["candidates"]}["W4A16-g32"]
    assert uniform["bits_per_weight"] == pytest.approx(4.5)
    assert value["bits_per_weight"] <= 4.5
    assert value["predicted"] < uniform["predicted"]
    assert value["measured"]["value"] < uniform["measured"]["value"]
    assert value["measured"]["value"] == pytest.approx(value["predicted"], rel=0.3)
    assert len({choice["from"] for choice in value["choices"]}) > 1


def test_what_was_measured_is_what_was_chosen(found):
    """By the run's own record: so many modules of each format, and the bits of all."""
    formats = {
        label: f["modules"] for label, f in found.record.document["checkpoint"]["formats"].items()
    }
    wanted: dict[str, int] = {}
    for choice in found.value["choices"]:
        wanted[choice["format"]] = wanted.get(choice["format"], 0) + 3
    assert {label: formats[label] for label in wanted if label != "bf16"} == {
        label: n for label, n in wanted.items() if label != "bf16"
    }
    bits = found.record.document["checkpoint"]["bits_per_weight"]["body"]
    assert bits == found.value["bits_per_weight"]


def test_the_curve_falls_and_the_file_is_sealed(found, quants):
    curve = found.value["curve"]
    assert curve[0]["bits_per_weight"] == pytest.approx(3.5)
    assert curve[-1]["bits_per_weight"] == pytest.approx(16) and curve[-1]["predicted"] == 0
    bits, klds = ([point[n] for point in curve] for n in ("bits_per_weight", "predicted"))
    assert bits == sorted(bits) and klds == sorted(klds, reverse=True) and len(curve) <= 200
    value = json.loads((found.folder / "recipe.json").read_text())
    assert value == found.value and value["sha256"] == seal_of(value)
    assert "QuantizationModifier" in (quants / "recipe.yaml").read_text()


def gptq(source: Path, target: Path, recipe: Recipe) -> Path:
    """A copy of a dense model with its linears as GPTQ stores them, `g_idx` included."""

    def pack(tensors: dict[str, torch.Tensor]) -> None:
        for key in [key for key in tensors if LINEAR.search(key)]:
            stored, _ = quantize(tensors.pop(key), recipe)
            tensors |= {f"{key.removesuffix('weight')}{name}": t for name, t in stored.items()}

    shutil.copytree(source, target)
    edit_tensors(target, pack)
    fields = {"quant_method": "gptq", "bits": recipe.bits, "group_size": recipe.size}
    edit_config(
        target, quantization_config=fields | {"desc_act": recipe.ordered, "sym": recipe.symmetric}
    )
    return target


@pytest.mark.parametrize("ordered", [True, False])
def test_bits_are_the_records_to_the_last(demo, asked, tmp_path, ordered):
    """`g_idx` and zero points are counted, read or not; the least budget is that of all in 4 bits."""
    models = [
        gptq(
            demo / "model", tmp_path / f"{bits}", Recipe(bits, 32, symmetric=True, ordered=ordered)
        )
        for bits in (4, 8)
    ]
    few = from_string((demo / "heldout.txt").read_text()[:1500])
    asked = replace(asked, model=str(models[0]), corpus=few, output=tmp_path / "runs")
    whole = summarize(open_checkpoint(str(models[0]))).body_bits
    assert whole is not None
    with pytest.raises(UsageError, match="the smallest choice has"):
        search(asked, [], whole - 1e-3, "kind")
    for budget in (whole, whole + 1):
        found = search(asked, [str(models[1])], budget, "kind")
        bits = found.record.document["checkpoint"]["bits_per_weight"]["body"]
        assert found.value["bits_per_weight"] == bits <= budget
        sizes = {c["name"]: c["bits_per_weight"] for c in found.value["candidates"]}
        assert sizes == {
            model.name: summarize(open_checkpoint(str(model))).body_bits for model in models
        }


def test_another_budget_attributes_nothing_again(found, asked, quants, monkeypatch):
    """With `resume`: the quants' runs and what was found of them are there."""
    again: list[str] = []
    monkeypatch.setattr(
        "scoremode.runs.attribute.Variants.run",
        lambda *_: pytest.fail("attributed again"),
    )
    others = [str(quants / name) for name in ("W3A16-g32", "W8A16")]
    resumed = replace(asked, resume=True)
    other = search(resumed, others, 6.0, "kind", notify=again.append)
    assert sum(line.startswith("already attributed: ") for line in again) == 3
    assert other.value["predicted"] < found.value["predicted"]
    assert other.folder != found.folder
    same = search(resumed, others, 4.5, "kind")
    assert same.folder == found.folder
    drop = {"created", "sha256"}
    assert {k: v for k, v in same.value.items() if k not in drop} == {
        k: v for k, v in found.value.items() if k not in drop
    }


def test_what_can_not_be_chosen_is_refused(asked, quants):
    with pytest.raises(UsageError, match=r"the smallest choice has 4\.5 bits"):
        search(asked, [], 4.0, "layer")
    with pytest.raises(UsageError, match=r"--write-recipe .*none/r\.yaml: there is no such folder"):
        search(asked, [], 5.0, "layer", write_recipe=quants / "none" / "r.yaml")
    with pytest.raises(UsageError, match="is given twice"):
        search(asked, [asked.model], 5.0, "layer")
    with pytest.raises(UsageError, match="--swap: a recipe chooses"):
        search(replace(asked, swaps=(Swap("a", "b"),)), [], 5.0, "layer")


def kept_dense(source, target, dense, modules):
    """A copy of a quant with some modules as `dense` has them."""
    shutil.copytree(source, target)
    ours, theirs = (load_file(f / "model.safetensors") for f in (source, dense))
    for module in modules:
        for suffix in ("packed", "scale", "shape"):
            del ours[f"{module}.weight_{suffix}"]
        ours[f"{module}.weight"] = theirs[f"{module}.weight"]
    save_file(ours, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    config["quantization_config"]["ignore"] += modules
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize("by", ["layer", "kind", "module"])
def test_quants_that_leave_different_modules_dense(by, demo, quants, asked, tmp_path):
    """A part has the same modules in all of them, so that sizes compare and the choice is what is
    measured."""
    names = [f"model.layers.{i}.mlp.{kind}_proj" for i, kind in enumerate(("up", "down", "up"))]
    four = kept_dense(quants / "W4A16-g32", tmp_path / "four", demo / "model", names[:1])
    three = kept_dense(quants / "W3A16-g32", tmp_path / "three", demo / "model", names[1:])
    few = replace(asked, model=str(four), output=tmp_path / "runs")
    found = search(few, [str(three)], 5.2, by)
    value = found.value
    for candidate, folder in zip(value["candidates"], (four, three), strict=True):
        # All linears of the layers are quantized by either: the parts are the body.
        record = json.loads((Path(candidate["run"]) / "record.json").read_text())
        body = record["checkpoint"]["bits_per_weight"]["body"]
        assert candidate["bits_per_weight"] == pytest.approx(body), folder
    assert {choice["from"] for choice in value["choices"]} >= {"four", "three"}
    body = found.record.document["checkpoint"]["bits_per_weight"]["body"]
    assert value["bits_per_weight"] == pytest.approx(body) and body <= 5.2
    assert value["measured"]["value"] == pytest.approx(value["predicted"], rel=0.3)
