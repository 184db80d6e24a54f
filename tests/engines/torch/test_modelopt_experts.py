"""Llama 4 and gpt-oss as ModelOpt exports them, their experts stored as one: its own files."""

import json
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.engine import make_engine, score
from support.families.modelopt import FORMATS
from support.families.modelopt_golden import EXPERTS, tensors_below, write_export
from support.models import edit_config, edit_tensors, library_logprobs, random_plan
from transformers import AutoConfig, AutoModelForCausalLM

from scoremode.engines.base import Schedule
from scoremode.engines.torch.weights import experts
from scoremode.errors import CheckpointError

MODELS = ["llama4_text", "gpt_oss"]
ALGORITHMS = ["FP8", "NVFP4", "W4A16_NVFP4"]
PLAN = random_plan(vocabulary=32)


@pytest.fixture
def export(tmp_path):
    def write(model: str, algorithm: str):
        return write_export(tmp_path / "export", f"{model}/{algorithm}", file=EXPERTS)

    return write


def dense_weights(folder, algorithm: str) -> dict[str, torch.Tensor]:
    """float32, of every linear and of experts as the library's parameters lie, each by itself."""
    stored, form, dense = load_file(folder / "model.safetensors"), FORMATS[algorithm], {}
    for name, tensor in stored.items():
        module, _, last = name.rpartition(".")
        own = {s: stored[n] for s in ("weight_scale", "weight_scale_2")
               if (n := f"{name}_{s}" if last != "weight" else f"{module}.{s}") in stored}  # fmt: skip
        if not own:
            if "_scale" not in name:
                dense[name] = tensor.float()
        elif last == "weight":
            dense[name] = form.weight(own | {"weight": tensor}, torch.float32)
        else:
            each = []
            for expert, entry in enumerate(tensor):
                scales = {s: t[expert].T if t.dim() == 3 else t for s, t in own.items()}
                each.append(form.weight(scales | {"weight": entry.T.contiguous()}, torch.float32).T)
            dense[name] = torch.stack(each)
    return dense


def library_of(folder, algorithm: str):
    """The library's model in float32, every weight decoded."""
    config: Any = AutoConfig.from_pretrained(folder)
    del config.quantization_config
    # Its own loop over experts.
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.load_state_dict(dense_weights(folder, algorithm))
    return model


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("model", MODELS)
def test_equals_the_librarys_forward_of_what_it_stands_for(model, algorithm, export):
    folder = export(model, algorithm)
    engine = make_engine(folder, dtype="float32", arithmetic="weights")
    ours = score(engine, PLAN).logprob
    theirs = library_logprobs(library_of(folder, algorithm), PLAN)
    assert np.abs(ours - theirs).max() < 1e-5 and theirs.std() > 0.5


def lies_alike(monkeypatch) -> None:
    """Dense parameters lie transposed, which a product on a CPU may sum in another order."""

    def apply(part, x):
        return torch.nn.functional.linear(x, part.weight.contiguous(), part.bias)

    monkeypatch.setattr(experts.ExpertPart, "apply", apply)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("model", MODELS)
def test_equals_the_one_with_dense_experts_to_the_bit(model, algorithm, export, monkeypatch):
    """Those that the library's own dequantizer made."""
    lies_alike(monkeypatch)
    folder = export(model, algorithm)
    ours = score(make_engine(folder, dtype="bfloat16", arithmetic="weights"), PLAN).logprob
    made = tensors_below(f"{model}/{algorithm}/dense/", EXPERTS)

    def decode(tensors):
        for name in [n for n in tensors if n.startswith(tuple(made)) and n.endswith("_scale_2")]:
            del tensors[name]
        for name in [n for n in tensors if n.startswith(tuple(made)) and n.endswith("_scale")]:
            del tensors[name]
        tensors |= made

    edit_tensors(folder, decode)
    theirs = score(make_engine(folder, dtype="bfloat16", arithmetic="weights"), PLAN).logprob
    assert np.array_equal(ours, theirs) and theirs.std() > 0.5


@pytest.mark.parametrize("algorithm", ["FP8", "NVFP4"])
@pytest.mark.parametrize("model", MODELS)
def test_inputs_are_quantized_as_declared_one_expert_at_a_time_or_all(model, algorithm, export):
    folder, schedule = export(model, algorithm), Schedule(pass_windows=4, batch_windows=2)
    engine = make_engine(folder, dtype="float32")
    roomy = score(engine, PLAN, schedule).logprob
    said = engine.describe()
    assert said["arithmetic"] == "weights+activations" and said["experts"] == "a layer at a time"
    inputs = {p["inputs"] for p in said["products"]}
    assert inputs == {"float8 tensor static" if algorithm == "FP8" else "float4 group 16 local"}
    # Two products of each expert, or three where gate and up are linears of their own.
    assert sum(p["linears"] for p in said["products"]) == 4 + 6 + 3 * (model == "llama4_text")
    engine = make_engine(folder, dtype="float32", max_memory=120 * 2**10)
    assert engine.describe()["experts"] == "1 at a time"
    assert np.array_equal(score(engine, PLAN, schedule).logprob, roomy)
    plain = score(make_engine(folder, dtype="float32", arithmetic="weights"), PLAN).logprob
    assert 1e-3 < np.abs(roomy - plain).mean() < 3


@pytest.mark.parametrize("model", MODELS)
def test_equals_the_librarys_forward_with_its_inputs_rounded(model, export):
    """Each to float8 by its scale, those of experts within the library's own modules."""
    folder = export(model, "FP8")
    engine = make_engine(folder, dtype="float32")
    ours = score(engine, PLAN).logprob
    library, stored = library_of(folder, "FP8"), load_file(folder / "model.safetensors")

    def rounded(x, name):
        scale = stored[name]
        return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale

    def run_llama4(module, home, states):
        states = rounded(states.view(3, -1, 32), f"{home}.gate_up_proj_input_scale")
        gate, up = torch.bmm(states, module.gate_up_proj).chunk(2, dim=-1)
        states = rounded(up * module.act_fn(gate), f"{home}.down_proj_input_scale")
        return torch.bmm(states, module.down_proj).view(-1, 32)

    def run_gpt_oss(module, home, states, chosen, weights):
        states, out = rounded(states, f"{home}.gate_up_proj_input_scale"), torch.zeros_like(states)
        for token, (experts_of, scales) in enumerate(zip(chosen, weights, strict=True)):
            for e, scale in zip(experts_of.tolist(), scales, strict=True):
                first = states[token] @ module.gate_up_proj[e] + module.gate_up_proj_bias[e]
                inner = rounded(module._apply_gate(first), f"{home}.down_proj_input_scale")
                out[token] += scale * (inner @ module.down_proj[e] + module.down_proj_bias[e])
        return out

    run = run_llama4 if model == "llama4_text" else run_gpt_oss
    for name, module in library.named_modules():
        if (scale := f"{name}.input_scale") in stored:
            module.register_forward_pre_hook(lambda _, args, s=scale: (rounded(args[0], s),))
        elif name.endswith(".experts"):
            module.forward = partial(run, module, name)
    theirs = library_logprobs(library, PLAN)
    # A float8 may flip.
    away = np.abs(ours - theirs)
    assert np.median(away) < 1e-5 and away.mean() < 0.01


def test_experts_of_another_count_or_shape_than_the_models(export):
    folder = export("gpt_oss", "NVFP4")
    edit_config(folder, num_local_experts=4)
    with pytest.raises(CheckpointError, match=r"has shape \[3, .*\], the model needs \[4, "):
        make_engine(folder)
    edit_config(folder, num_local_experts=3, intermediate_size=64)
    with pytest.raises(
        CheckpointError, match=r"experts\.gate_up_proj has shape \[3, 32, 96\], the mod"
    ):
        make_engine(folder)
    assert json.loads((folder / "config.json").read_text())["quantization_config"]
