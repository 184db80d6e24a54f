import time

import pytest
import torch
from support.families.qweight import Recipe, quantize
from support.schemes import random_weight, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.awq import Gemv, GemvFast, parse_awq
from scoremode.schemes.resolve import resolve

# As AutoAWQ writes it.
CONFIG = {
    "bits": 4,
    "group_size": 32,
    "modules_to_not_convert": None,
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}

GEMM = Recipe(order="outputs")


@pytest.fixture
def resolved(tmp_path):
    def read(recipe: Recipe = GEMM, module: str = "m", **changes):
        tensors, _ = quantize(random_weight(64, 96, torch.float32), recipe)
        named = {f"{module}.{name}": t for name, t in tensors.items()}
        named["lm_head.weight"] = torch.zeros(5, 4)
        path = write_checkpoint(tmp_path, named, CONFIG | changes)
        return resolve(open_checkpoint(path))

    return read


def test_linears_with_qweight_are_quantized(resolved):
    schemes = resolved()
    assert {m: s.label for m, s in schemes.quantized.items()} == {"m": "AWQ W4A16 g32 asym"}
    assert schemes.groups == {"m": "awq"} and not schemes.claims("lm_head")
    assert schemes.config.kv_cache is None


def test_without_a_quant_method_or_with_a_kernels_name(resolved):
    assert list(resolved(quant_method=None).quantized) == ["m"]
    assert list(resolved(quant_method="awq_marlin").quantized) == ["m"]


def test_older_names_of_fields():
    config = parse_awq({"w_bit": 4, "q_group_size": 64, "version": "GEMM"})
    assert (config.declared.bits, config.declared.group_size) == (4, 64)


def test_words_of_four_outputs(tmp_path):
    tensors, _ = quantize(random_weight(8, 64, torch.float32), Recipe(order="gemv_fast"))
    named = {f"m.{name}": t for name, t in tensors.items()}
    path = write_checkpoint(tmp_path, named, CONFIG | {"version": "gemv_fast"})
    schemes = resolve(open_checkpoint(path))
    assert isinstance(schemes.quantized["m"], GemvFast) and schemes.groups == {"m": "awq"}


def test_rows_of_words(resolved):
    for said in ({"version": "gemv"}, {"version": None, "checkpoint_format": "GEMV"}):
        schemes = resolved(Recipe(order="gemv"), **said)
        assert isinstance(schemes.quantized["m"], Gemv) and schemes.groups == {"m": "awq"}


@pytest.mark.parametrize("version", ["marlin", "ipex", "llm-awq", "exllama"])
def test_other_layouts_are_refused_by_name(resolved, version):
    with pytest.raises(UnsupportedFormat, match=f"'awq' with version '{version}': not decoded"):
        resolved(version=version)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"bits": 8}, UnsupportedFormat, "'awq' with bits 8: not decoded"),
        ({"format": "gemv"}, UnsupportedFormat, "'awq' with format 'gemv': not decoded"),
        ({"checkpoint_format": "marlin"}, UnsupportedFormat, "checkpoint_format 'marlin'"),
        (
            {"version": "gemv", "group_size": 16},
            UnsupportedFormat,
            "'awq' with version 'gemv' and group_size 16: not decoded",
        ),
        (
            {"version": "gemv_fast", "group_size": 16},
            UnsupportedFormat,
            "'awq' with version 'gemv_fast' and group_size 16: not decoded",
        ),
        (
            {"version": "gemv_fast", "zero_point": False},
            UnsupportedFormat,
            "'awq' with version 'gemv_fast' and zero_point False: not decoded",
        ),
        ({"version": "gemv_fast"}, CheckpointError, "m.qweight has dtype I32, expected I16"),
        ({"version": "gemv"}, CheckpointError, "m.qzeros has shape [3, 8], expected [96, 4]"),
        ({"bits": "4"}, CheckpointError, "bits '4' is not an integer"),
        ({"group_size": 0}, CheckpointError, "group_size 0 is not a size"),
        ({"group_size": 128}, CheckpointError, "the config says 4 bits in groups of 128"),
        ({"zero_point": 1}, CheckpointError, "zero_point 1 is not true or false"),
        ({"modules_to_not_convert": ["m"]}, CheckpointError, "modules_to_not_convert names it"),
    ],
)
def test_refused(resolved, changes, error, words):
    with pytest.raises(error) as caught:
        resolved(**changes)
    assert caught.type is error and words in str(caught.value)


def test_names_of_others_count_by_whole_components(resolved):
    """`gate` is Mixtral's router, not its `gate_proj`."""
    assert resolved(module="a.gate_proj", modules_to_not_convert=["gate"]).quantized
    with pytest.raises(CheckpointError, match=r"a.visual.m: stored quantized"):
        resolved(module="a.visual.m", modules_to_not_convert=["visual"])


def test_gptqs_words_are_an_error(resolved):
    with pytest.raises(
        CheckpointError, match="words of inputs, as GPTQ's, and the config says AWQ"
    ):
        resolved(Recipe())


def test_a_scaled_activation_is_named(tmp_path):
    tensors, _ = quantize(random_weight(64, 96, torch.float32), GEMM)
    named = {f"mlp.down.{name}": tensor for name, tensor in tensors.items()}
    path = write_checkpoint(tmp_path, named | {"mlp.act.scales": torch.ones(96)}, CONFIG)
    with pytest.raises(UnsupportedFormat, match=r"divided by its tensor mlp\.act\.scales"):
        resolve(open_checkpoint(path))


def test_a_g_idx_is_not_awqs(tmp_path):
    tensors, _ = quantize(random_weight(64, 96, torch.float32), Recipe(order="outputs"))
    tensors["g_idx"] = torch.zeros(96, dtype=torch.int32)
    path = write_checkpoint(tmp_path, {f"m.{n}": t for n, t in tensors.items()}, CONFIG)
    with pytest.raises(CheckpointError, match="AWQ W4A16 g32 asym has no g_idx"):
        resolve(open_checkpoint(path))


def test_names_are_runs_of_components():
    names = ["visual", "layers.1", "mlp.gate", "a.b.c.d", ""]
    excepts = parse_awq({"modules_to_not_convert": names}).excepts
    for module in ("visual", "m.visual.x", "m.layers.1.q", "m.mlp.gate", "a.b.c.d", "m..x"):
        assert excepts(module), module
    for module in ("visuals", "m.layers.11.q", "m.mlp.gate_proj", "b.c.d", "gate.mlp", "m"):
        assert not excepts(module), module


def test_a_list_of_names_is_looked_up():
    """Of hundreds of attention's linears beside tens of thousands of experts."""
    names = [f"layers.{n}.attn.{p}" for n in range(200) for p in "abcdefghij"]
    excepts = parse_awq({"modules_to_not_convert": names}).excepts
    began = time.process_time()
    assert not any(excepts(f"m.layers.{n}.experts.{e}.up") for n in range(40) for e in range(250))
    assert time.process_time() - began < 3
    assert excepts("m.layers.199.attn.j")
