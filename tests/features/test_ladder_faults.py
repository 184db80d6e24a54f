"""A fault in a model's own files is named on the step `weights`; the torch engine's own computations of
a model are no alarm, whatever the model and the dtype; and a scale in the wrong dtype is one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support.engine import make_engine
from support.models import edit_config, edit_tensors, make_checkpoint, random_plan
from support.programs import run

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.base import Extras
from scoremode.engines.torch.engine import ModelReference, TorchEngine
from scoremode.results.folders.store import read_scores
from scoremode.results.scores import Scores, concatenate
from scoremode.results.statistics.alarms import Noise, judge_step
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.decoding.codes import Quantized
from scoremode.text.plan import Plan

LINEAR = "model.layers.1.mlp.down_proj"


def quantized(demo: Path, folder: Path, name: str) -> Path:
    (variant,) = (v for v in VARIANTS if v.name == name)
    quantize_folder(demo / "model", folder, variant)
    return folder


def climbed(capsys, demo: Path, model: Path, output: Path) -> tuple[int, dict, str]:
    """The exit code of a ladder of few windows, what it says, and what it says of errors."""
    text = ["-f", str(demo / "heldout.txt"), "--protocol", "disjoint", "-c", "64", "--limit", "4"]
    base = ["--reference", str(demo / "model"), "--dtype", "float32", "--device", "cpu"]
    code, out, err = run(capsys, "ladder", str(model), *base, *text, "-o", str(output), "--json")
    return code, json.loads(out) if out else {}, err


def alarms(found: dict) -> dict[str, str]:
    judged = {step["step"]: step["judged"] for step in found["findings"]["steps"]}
    return {name: said["words"] for name, said in judged.items() if said and said["alarm"]}


def test_scales_a_group_off_are_named(demo, tmp_path, capsys):
    model = quantized(demo, tmp_path / "m", "W4A16-g32")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{LINEAR}.weight_scale"] = tensors[f"{LINEAR}.weight_scale"].roll(1, 1)

    edit_tensors(model, change)
    code, found, _ = climbed(capsys, demo, model, tmp_path / "ladder")
    assert code == 3
    said = alarms(found)
    assert said.keys() == {"weights"}
    assert said["weights"].startswith(f"{LINEAR}: its scales are those of the group before")


def test_another_base_of_rope_is_named(demo, tmp_path, capsys):
    model = quantized(demo, tmp_path / "m", "W8A16")
    edit_config(model, rope_parameters={"rope_theta": 10100.0, "rope_type": "default"})
    code, found, _ = climbed(capsys, demo, model, tmp_path / "ladder")
    assert code == 3
    words = "rope_parameters.rope_theta is 10100.0, and the base's 10000.0"
    assert alarms(found) == {"weights": words}


def test_a_tokenizer_with_another_bos_ends_on_that_step(demo, tmp_path, capsys):
    """Other tokens can't be compared; with the base's they can, and its BOS is named."""
    model = quantized(demo, tmp_path / "m", "W8A16")
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"bos_token": config["eos_token"], "add_bos_token": True}))
    code, _, err = climbed(capsys, demo, model, tmp_path / "ladder")
    assert code == 1 and "weights: " in err
    assert "has other tokens of this text than" in err
    assert "token 0 is 0 ('<s>') and not 1 ('</s>')" in err
    text = ["-f", str(demo / "heldout.txt"), "--protocol", "disjoint", "-c", "64", "--limit", "4"]
    base = ["--reference", str(demo / "model"), "--tokenizer", str(demo / "model")]
    also = ["--dtype", "float32", "--device", "cpu", "-o", str(tmp_path / "again"), "--json"]
    code, out, _ = run(capsys, "ladder", str(model), *base, *text, *also)
    assert code == 3
    assert alarms(json.loads(out))["weights"].startswith("its BOS is 1 ('</s>'), and the base's 0")


def beside(base: TorchEngine, model: TorchEngine, plan: Plan) -> Scores:
    """Scores of a model beside those of a base."""
    schedule = model.schedule(plan)
    extras = Extras(ModelReference(base, plan, schedule))
    return concatenate(list(model.score(plan, schedule, extras=extras)))


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "olmo2", "qwen3_moe", "glm4_moe"])
def test_two_right_computations_of_a_random_model_are_no_alarm(name, tmp_path):
    """With another attention, and in other batches."""
    folder = make_checkpoint(tmp_path / name, name)
    plan = random_plan(64, 16, 0)
    exact = make_engine(folder, dtype="float32")
    eager = make_engine(folder, dtype="float32", attention="eager")
    noise = {"float32": Noise.of(beside(exact, eager, plan))}
    for dtype in ("float32", "float16", "bfloat16"):
        own = make_engine(folder, dtype=dtype)
        if dtype != "float32":
            noise[dtype] = Noise.of(beside(exact, own, plan))
        options: list[dict[str, Any]] = [{"attention": "eager"}, {"batch_windows": 3}]
        for how in options:
            other = make_engine(folder, dtype=dtype, **how)
            found = judge_step(beside(own, other, plan), noise[dtype], dtype=dtype)
            assert not found.alarm, (dtype, how, found.words)


def test_an_activation_scale_in_the_wrong_dtype(demo, tmp_path, capsys):
    """As an engine has it that makes codes by a scale in float32, and holds it in bfloat16. vLLM's CPU
    build has no FP8 product in float32, in which alone it shows: so the engine is ours."""
    model, quantize = quantized(demo, tmp_path / "m", "FP8_DYNAMIC"), Inputs.quantize

    def faulty(self: Inputs, *args: Any, **named: Any) -> Quantized:
        found = quantize(self, *args, **named)
        return replace(found, scale=found.scale.bfloat16().float())

    def scored(output: str, *flags: str) -> Scores:
        text = ["-f", str(demo / "heldout.txt"), "--protocol", "disjoint", "-c", "64"]
        more = [*text, "--limit", "24", "--dtype", "float32", "--device", "cpu", *flags]
        into = tmp_path / output
        command = "kld" if "--reference" in flags else "reference"
        assert run(capsys, command, str(model), *more, "-o", str(into))[0] == 0
        (record,) = into.rglob("record.json")
        return read_scores(record.parent)

    scored("before")
    before = ("--reference", str(tmp_path / "before"))
    noise = Noise.of(scored("noise", *before, "--attention", "eager"))
    assert noise.kld.mean() > 1e-9, "no code has fallen to another side"
    right = scored("right", *before, "--batch-size", "5")
    assert not judge_step(right, noise, dtype="float32").alarm
    with patch.object(Inputs, "quantize", faulty):
        wrong = scored("wrong", *before)
    found = judge_step(wrong, noise, dtype="float32")
    assert found.alarm and found.pattern == "everywhere" and found.kld > 1e-4
