"""Whole models that ModelOpt would export, against dense ones of the same weights."""

import json

import numpy as np
import pytest
import torch
from support.engine import make_engine, score
from support.families.modelopt import FORMATS, config, make_pair
from support.families.modelopt_golden import tensors_below, write_export
from support.models import edit_config, edit_tensors, library_logprobs, random_plan
from transformers import AutoConfig, LlamaForCausalLM

from scoremode.errors import CheckpointError, UnsupportedFormat, UnsupportedModel
from scoremode.text.plan import make_plan
from scoremode.text.protocol import Protocol

MODELS = ["llama", "qwen3_moe", "deepseek_v3"]


def factors(folder, columns: int, pattern: str) -> dict[str, torch.Tensor]:
    """Adds factors of powers of two to the linears that `pattern` finds: exact in any dtype."""
    drawn = torch.Generator().manual_seed(columns)
    added = {}

    def add(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if n.endswith(".weight_scale") and pattern in n]:
            module = name.removesuffix(".weight_scale")
            powers = torch.randint(-2, 3, (columns,), generator=drawn)
            added[f"{module}.pre_quant_scale"] = torch.exp2(powers.float()).bfloat16()
        tensors |= added

    edit_tensors(folder, add)
    return added


@pytest.mark.parametrize("algorithm", ["W4A16_AWQ", "NVFP4_AWQ", "W4A8_AWQ"])
@pytest.mark.parametrize(
    ("name", "pattern", "columns"),
    [("llama", "down_proj", 64), ("qwen3_moe", "down_proj", 64), ("qwen3_moe", "experts", None)],
)
def test_factors_of_inputs(name, pattern, columns, algorithm, tmp_path):
    """Multiplied into the dense weight, which powers of two leave exact."""
    packed, dense = make_pair(tmp_path, name, algorithm)
    before = score(make_engine(packed, dtype="bfloat16", arithmetic="weights"), random_plan())
    if columns is None:
        added = factors(packed, 64, f"{pattern}.1.down_proj")
        added |= factors(packed, 32, f"{pattern}.2.gate_proj")
        added |= factors(packed, 32, f"{pattern}.2.up_proj")
    else:
        added = factors(packed, columns, pattern)
    assert added

    def multiply(tensors: dict[str, torch.Tensor]) -> None:
        for key, factor in added.items():
            tensors[key.replace("pre_quant_scale", "weight")] *= factor

    edit_tensors(dense, multiply)
    ours = score(make_engine(packed, dtype="bfloat16", arithmetic="weights"), random_plan())
    theirs = score(make_engine(dense, dtype="bfloat16"), random_plan())
    assert np.array_equal(ours.logprob, theirs.logprob)
    assert np.abs(ours.logprob - before.logprob).max() > 0.1


@pytest.mark.parametrize("algorithm", ["NVFP4_AWQ", "W4A8_AWQ"])
def test_inputs_are_multiplied_before_they_are_quantized(algorithm, tmp_path):
    """By factors of 8 under a scale of an eighth more: as if nothing had been done."""
    packed, _ = make_pair(tmp_path, "llama", algorithm)
    plan = random_plan()
    before = score(make_engine(packed, dtype="float32"), plan)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if n.endswith("down_proj.weight_scale_2")]:
            module = name.removesuffix(".weight_scale_2")
            tensors[f"{module}.pre_quant_scale"] = torch.full((64,), 8.0)
            tensors[f"{module}.input_scale"] *= 8
            tensors[name] /= 8
            if algorithm == "W4A8_AWQ":
                tensors[f"{module}.weight_scale"] /= 8

    edit_tensors(packed, change)
    engine = make_engine(packed, dtype="float32")
    assert engine.describe()["arithmetic"] == "weights+activations"
    assert np.array_equal(score(engine, plan).logprob, before.logprob)


def test_factors_outside_the_layers_are_refused(tmp_path):
    packed, _ = make_pair(tmp_path, "llama", "W4A16_AWQ")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        head = torch.cat((tensors.pop("lm_head.weight"), torch.zeros(1, 32).bfloat16()))
        stored = FORMATS["W4A16_AWQ"].store(head)
        tensors |= {f"lm_head.{suffix}": tensor for suffix, tensor in stored.items()}
        tensors["lm_head.pre_quant_scale"] = torch.ones(32)

    edit_tensors(packed, change)
    edit_config(packed, vocab_size=102, quantization_config=config("W4A16_AWQ"))
    edit_tensors(
        packed,
        lambda t: t.update(
            {"model.embed_tokens.weight": torch.zeros(102, 32, dtype=torch.bfloat16)}
        ),
    )
    words = r"lm_head.weight: the checkpoint has factors for its inputs \(lm_head.pre_quant_scale\)"
    with pytest.raises(UnsupportedModel, match=words):
        make_engine(packed)


EXPORTED = ["FP8", "NVFP4", "W4A16_AWQ", "W4A8_AWQ"]


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("algorithm", EXPORTED)
def test_modelopts_own_export(algorithm, alone, tmp_path):
    """As it wrote the files, against a model of the weights that they stand for: factors multiply
    inputs."""
    folder = write_export(tmp_path / "export", algorithm, alone=alone)
    plan = random_plan(vocabulary=32)
    engine = make_engine(folder, dtype="float32", arithmetic="weights")
    model = LlamaForCausalLM(AutoConfig.from_pretrained(folder)).float().eval()
    stored, form, found = tensors_below(f"{algorithm}/"), FORMATS[algorithm], 0
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) and f"{name}.weight" in stored:
            module.weight.data.copy_(stored[f"{name}.weight"])
        if not isinstance(module, torch.nn.Linear):
            continue
        own = {n.removeprefix(f"{name}."): t for n, t in stored.items() if n.startswith(f"{name}.")}
        if "weight_scale" not in own:
            module.weight.data.copy_(own["weight"])
            continue
        module.weight.data.copy_(form.weight(own, torch.float32))
        if (factor := own.get("pre_quant_scale")) is not None:
            module.register_forward_pre_hook(lambda _, args, f=factor: (args[0] * f.float(),))
            found += 1
    # The rest went into norms.
    assert found == (2 if "AWQ" in algorithm else 0)
    ours, theirs = score(engine, plan).logprob, library_logprobs(model, plan)
    assert np.abs(ours - theirs).max() < 1e-5 and theirs.std() > 0.5


@pytest.mark.parametrize(
    ("algorithm", "most"), [("W4A16_AWQ", 0.03), ("FP8", 0.15), ("W4A8_AWQ", 0.1)]
)
def test_logits_of_modelopts_own_forward(algorithm, most, tmp_path):
    """What it simulates, inputs quantized too. Its export rounds once more than what it simulates
    (w / scale of FP8 in bfloat16), so that one float8 in thirty is another: no number is the same, and
    quantized inputs have to bring us nearer."""
    folder = write_export(tmp_path / "export", algorithm)
    ids = tensors_below("ids")[""].numpy().astype(np.int32)
    logits = tensors_below(f"{algorithm}/logits")[""].log_softmax(-1)

    def far(arithmetic: str) -> float:
        away = []
        for row, expected in zip(ids, logits, strict=True):
            protocol = Protocol("test", context_length=len(row), tail="keep")
            engine = make_engine(folder, dtype="float32", arithmetic=arithmetic)
            ours = score(engine, make_plan(row, protocol.resolve(None))).logprob
            targets = torch.from_numpy(row[1:, None].astype(np.int64))
            away.append(np.abs(ours - expected[:-1].gather(1, targets)[:, 0].numpy()))
        return float(np.mean(away))

    assert far("auto") < most and float(logits.std()) > 1
    assert algorithm == "W4A16_AWQ" or far("auto") < 0.9 * far("weights")


@pytest.mark.parametrize("algorithm", ["NVFP4", "FP8"])
def test_a_model_that_also_sees(algorithm, tmp_path):
    """Under the names of `…ForConditionalGeneration`, the vision tower dense and excluded; by a list
    that has another beginning."""
    packed, dense = make_pair(tmp_path, "qwen3", algorithm)
    for folder in (packed, dense):
        text = json.loads((folder / "config.json").read_text())
        said = text.pop("quantization_config", None)
        text |= {"model_type": "qwen3_vl_text", "rope_scaling": {"mrope_section": [2, 1, 1]}}
        whole = {
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "model_type": "qwen3_vl",
            "text_config": text,
            "vision_config": {"model_type": "qwen3_vl", "hidden_size": 32},
            "tie_word_embeddings": False,
        }
        if said:
            said["ignore"] = ["model.visual*", "lm_head", "language_model.model.nothing*"]
            whole["quantization_config"] = said
        (folder / "config.json").write_text(json.dumps(whole))
        edit_tensors(folder, rename)
    plan = random_plan()
    ours = score(make_engine(packed, dtype="bfloat16", arithmetic="weights"), plan)
    theirs = score(make_engine(dense, dtype="bfloat16"), plan)
    assert np.array_equal(ours.logprob, theirs.logprob) and theirs.logprob.std() > 0.5
    said = json.loads((packed / "config.json").read_text())["quantization_config"]
    edit_config(packed, quantization_config=said | {"ignore": ["language_model.model.layers.1*"]})
    with pytest.raises(CheckpointError, match=r"layers.1.* exclude_modules name it"):
        make_engine(packed)


def rename(tensors: dict[str, torch.Tensor]) -> None:
    for name in [n for n in tensors if n.startswith("model.")]:
        inner = name.removeprefix("model.")
        tensors[f"model.language_model.{inner}"] = tensors.pop(name)
    tensors["model.visual.blocks.0.attn.qkv.weight"] = torch.zeros(96, 32, dtype=torch.bfloat16)


def test_what_quantized_layers_name_must_be_quantized(tmp_path):
    packed, _ = make_pair(tmp_path, "llama", "FP8")
    layers = {f"model.layers.{n}": {"quant_algo": "FP8"} for n in range(3)}
    said = config("MIXED_PRECISION", quantized_layers=layers)
    edit_config(packed, quantization_config=said)
    make_engine(packed)

    def decode(tensors: dict[str, torch.Tensor]) -> None:
        weight = tensors.pop("model.layers.1.mlp.up_proj.weight")
        del tensors["model.layers.1.mlp.up_proj.weight_scale"]
        del tensors["model.layers.1.mlp.up_proj.input_scale"]
        tensors["model.layers.1.mlp.up_proj.weight"] = weight.bfloat16()

    edit_tensors(packed, decode)
    words = r"model.layers.1.mlp.up_proj is stored dense \(bf16\), and quantization_config says"
    with pytest.raises(CheckpointError, match=words):
        make_engine(packed)
    # By one algorithm for all nothing is claimed: published lists of others are not to be relied on.
    edit_config(packed, quantization_config=config("FP8"))
    make_engine(packed)


def test_a_declared_cache(tmp_path):
    scheme = {"dynamic": False, "num_bits": 8, "type": "float"}
    packed, _ = make_pair(tmp_path, "llama", "NVFP4", kv_cache_scheme=scheme)
    names = [f"model.layers.{n}.self_attn.{p}_proj.{p}_scale" for n in range(3) for p in "kv"]
    edit_tensors(packed, lambda t: t.update({n: torch.tensor(0.004 * len(n)) for n in names}))
    plan = random_plan()
    plain = score(make_engine(packed, dtype="float32", kv_cache="none"), plan).logprob
    rounded = score(make_engine(packed, dtype="float32", kv_cache="as-declared"), plan).logprob
    assert 1e-4 < np.abs(plain - rounded).mean() < 2
    edit_config(packed, quantization_config=config("NVFP4", "lm_head", kv_cache_quant_algo="NVFP4"))
    make_engine(packed, kv_cache="none")
    with pytest.raises(
        UnsupportedFormat, match=r"KV cache scheme float4 group 16 static: not supp"
    ):
        make_engine(packed, kv_cache="as-declared")


@pytest.mark.parametrize("algorithm", ["NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8"])
@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_declared_inputs_are_quantized(name, algorithm, tmp_path):
    packed, _ = make_pair(tmp_path, name, algorithm)
    engine = make_engine(packed, dtype="float32")
    assert engine.describe()["arithmetic"] == "weights+activations"
    (inputs,) = {p["inputs"] for p in engine.describe()["products"]}
    assert (
        inputs
        == {
            "NVFP4": "float4 group 16 local",
            "FP8": "float8 tensor static",
            "FP8_PER_CHANNEL_PER_TOKEN": "float8 token",
            "MXFP8": "float8 group 32 ue8m0",
        }[algorithm]
    )
    plan = random_plan()
    ours = score(engine, plan).logprob
    plain = score(make_engine(packed, dtype="float32", arithmetic="weights"), plan).logprob
    assert 1e-3 < np.abs(ours - plain).mean() < 3
