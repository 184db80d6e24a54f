"""AWQ's scaling: the same model, whose rounding errs less."""

import shutil

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from scoremode.demo.calibration import inputs_of_linears, scale_by_inputs
from scoremode.demo.rounding import asymmetric

SIZE = 32


def rounded(weight: torch.Tensor) -> torch.Tensor:
    q, zero, scale = asymmetric(weight, SIZE)
    return ((q - zero) * scale).flatten(1)


def test_the_model_stays_and_its_roundings_errors_shrink(demo, tmp_path):
    source = demo / "model"
    before = {n: t.float() for n, t in load_file(source / "model.safetensors").items()}
    after, inputs = dict(before), inputs_of_linears(source)
    scale_by_inputs(after, inputs, SIZE)
    logits = []
    for name, tensors in (("before", before), ("after", after)):
        shutil.copytree(source, tmp_path / name)
        save_file(tensors, tmp_path / name / "model.safetensors", metadata={"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32)
        logits.append(model(torch.arange(3, 67).unsqueeze(0)).logits)
    assert (logits[1] - logits[0]).abs().max() < 1e-3
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert not any("o_proj" in n or "embed" in n or n == "model.norm.weight" for n in changed)
    assert "model.layers.0.input_layernorm.weight" in changed
    totals = [0.0, 0.0]
    for module, of in inputs.items():
        name = f"{module}.weight"
        # What a linear's inputs were divided by: all rows tell the same.
        ratio = (after[name] / before[name]).nanmedian(0).values
        if module.endswith("up_proj"):
            # Its rows are divided as well, for down_proj.
            ratio = (
                after[f"{module[:-7]}gate_proj.weight"] / before[f"{module[:-7]}gate_proj.weight"]
            )
            ratio = ratio.nanmedian(0).values
        rows = (after[name] / before[name] / ratio).nanmedian(1, keepdim=True).values
        for i, error in enumerate(
            (
                rounded(before[name]) - before[name],
                rounded(after[name]) / ratio / rows - before[name],
            )
        ):
            totals[i] += float(((error.double() @ of.gram) * error).sum())
    assert totals[1] < 0.8 * totals[0]
