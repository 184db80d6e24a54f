"""Whole models that ModelOpt would export, against dense ones of the same weights."""

import numpy as np
import pytest
import torch
from engine_helpers import make_engine, score
from modelopt_checkpoints import FORMATS, config, make_pair
from models import edit_config, edit_tensors, random_plan

from scoremode.errors import UnsupportedModel

MODELS = ["llama", "qwen3_moe", "deepseek_v3"]


@pytest.mark.parametrize("algorithm", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_dense_one_to_the_bit(name, algorithm, tmp_path):
    packed, dense = make_pair(tmp_path, name, algorithm)
    plan = random_plan()
    ours = score(make_engine(packed, dtype="bfloat16", arithmetic="weights"), plan)
    theirs = score(make_engine(dense, dtype="bfloat16"), plan)
    assert np.array_equal(ours.logprob, theirs.logprob)
    assert theirs.logprob.std() > 0.5


@pytest.mark.parametrize("algorithm", ["NVFP4", "FP8"])
def test_its_own_file_alone_says_the_same(algorithm, tmp_path):
    packed, dense = make_pair(tmp_path, "llama", algorithm, alone=True)
    plan = random_plan()
    ours = score(make_engine(packed, dtype="bfloat16", arithmetic="weights"), plan)
    assert np.array_equal(ours.logprob, score(make_engine(dense, dtype="bfloat16"), plan).logprob)


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
