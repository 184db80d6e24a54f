import pytest
import torch
from support.families.qweight import Recipe, quantize
from support.schemes import random_weight, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.gptq import parse_gptq
from scoremode.schemes.qweight import Qweight
from scoremode.schemes.resolve import resolve
from scoremode.schemes.summary import summarize

# As AutoGPTQ writes it.
CONFIG = {
    "bits": 4,
    "group_size": 32,
    "damp_percent": 0.1,
    "desc_act": False,
    "static_groups": False,
    "sym": True,
    "true_sequential": True,
    "model_name_or_path": None,
    "model_file_base_name": "model",
    "quant_method": "gptq",
}
SYMMETRIC = Recipe(symmetric=True, less_one=True)


@pytest.fixture
def checkpoint(tmp_path):
    def write(recipe: Recipe = SYMMETRIC, edit=None, module: str = "m", **changes):
        tensors, _ = quantize(random_weight(64, 96, torch.float32), recipe)
        if edit:
            edit(tensors)
        named = {f"{module}.{name}": t for name, t in tensors.items()}
        return open_checkpoint(write_checkpoint(tmp_path, named, CONFIG | changes))

    return write


@pytest.fixture
def scheme(checkpoint):
    def read(*args, **changes) -> Qweight:
        (found,) = resolve(checkpoint(*args, **changes)).quantized.values()
        assert isinstance(found, Qweight)
        return found

    return read


@pytest.fixture
def refusal(checkpoint):
    def refuse(error, *args, **changes) -> str:
        with pytest.raises(error) as caught:
            resolve(checkpoint(*args, **changes))
        assert caught.type is error and "\n" not in str(caught.value)
        return str(caught.value)

    return refuse


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("less_one", [False, True])
@pytest.mark.parametrize("says", [None, "gptq", "gptq_v2"])
def test_symmetric_zero_points_tell_the_format(scheme, bits, less_one, says):
    """Whatever the config says: some say the first and hold the second."""
    recipe = Recipe(bits, symmetric=True, less_one=less_one)
    found = scheme(recipe, bits=bits, checkpoint_format=says)
    assert found.zero_offset == less_one and found.label == f"GPTQ W{bits}A16 g32"


def test_symmetric_zero_points_that_are_neither(refusal):
    def edit(tensors):
        tensors["qzeros"].fill_(0x66666666)

    words = refusal(CheckpointError, edit=edit)
    assert (
        "are neither all 7 (stored less one, checkpoint_format gptq) nor all 8 (gptq_v2)" in words
    )


@pytest.mark.parametrize(("says", "less_one"), [(None, True), ("gptq", True), ("gptq_v2", False)])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_others_are_as_the_config_says(scheme, bits, says, less_one):
    recipe = Recipe(bits, less_one=less_one)
    found = scheme(recipe, bits=bits, sym=False, checkpoint_format=says)
    assert found.zero_offset == less_one and found.label == f"GPTQ W{bits}A16 g32 asym"


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_zero_point_that_one_cannot_be_added_to(refusal, scheme, bits):
    def edit(tensors):
        tensors["qzeros"][2, -1] = -1

    words = refusal(CheckpointError, Recipe(bits), edit, bits=bits, sym=False)
    most = (1 << bits) - 1
    assert f"a zero point is stored as {most}, to which the format gptq has one added" in words
    found = scheme(Recipe(bits), edit, bits=bits, sym=False, checkpoint_format="gptq_v2")
    assert not found.zero_offset


def test_activation_order(scheme, refusal):
    ordered = Recipe(symmetric=True, ordered=True)
    assert scheme(ordered, desc_act=True).label == "GPTQ W4A16 g32 g_idx"
    assert scheme(SYMMETRIC, desc_act=True).label == "GPTQ W4A16 g32"
    assert "desc_act is not true" in refusal(CheckpointError, ordered)


def test_dynamic_values_that_change_nothing(scheme):
    """What the module has anyway, and anything of one that is not quantized."""
    same = {"format": "gptq", "method": "gptq", "pack_dtype": "torch.int32", "adapter": None}
    dynamic = {".*": same, "-:.*skipped": {"format": "gptq_v2", "adapter": {"name": "lora"}}}
    assert scheme(module="a.m", dynamic=dynamic, pack_dtype="torch.int32").elements.bits == 4


def test_activation_order_of_some_modules(scheme, refusal):
    ordered = Recipe(symmetric=True, less_one=True, ordered=True)
    dynamic = {".*wide": {"desc_act": True}}
    assert scheme(ordered, module="a.wide", desc_act=False, dynamic=dynamic).g_idx
    words = refusal(CheckpointError, ordered, module="a.wide", desc_act=False)
    assert "activation order, and desc_act is not true" in words


def test_dynamic_overrides(scheme, refusal):
    dynamic = {"-:.*skipped.*": {}, "+:.*wide": {"bits": 8}, r".*\.few\.m$": {"group_size": 48}}
    eight = Recipe(8, symmetric=True, less_one=True)
    assert scheme(eight, module="a.wide", dynamic=dynamic).elements.bits == 8
    few = Recipe(4, 48, symmetric=True, less_one=True)
    assert scheme(few, module="a.few.m", dynamic=dynamic).scaling.size == 48
    assert scheme(module="a.m", dynamic=dynamic).elements.bits == 4
    # Another one's override: patterns are of GPTQModel's names, which needn't be the checkpoint's.
    assert scheme(eight, module="b.m", dynamic=dynamic).elements.bits == 8
    words = refusal(CheckpointError, module="a.skipped.m", dynamic=dynamic)
    assert words == "a.skipped.m: stored quantized, and dynamic says that it isn't"
    three = Recipe(3, symmetric=True, less_one=True)
    assert "stored in 3 bits and 3 groups" in refusal(CheckpointError, three, dynamic=dynamic)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"checkpoint_format": "marlin"}, UnsupportedFormat, "checkpoint_format 'marlin'"),
        ({"checkpoint_format": "gptq_p"}, UnsupportedFormat, "checkpoint_format 'gptq_p'"),
        ({"format": "bitblas"}, UnsupportedFormat, "format 'bitblas': not decoded"),
        (
            {"checkpoint_format": "gptq_v2", "format": "gptq"},
            CheckpointError,
            "format 'gptq' is not its checkpoint_format 'gptq_v2'",
        ),
        ({"is_marlin_format": True}, UnsupportedFormat, "is_marlin_format True"),
        ({"adapter": {"name": "lora"}}, UnsupportedFormat, "with adapter {'name': 'lora'}"),
        ({"pack_dtype": "int16"}, UnsupportedFormat, "pack_dtype 'int16'"),
        ({"pack_dtype": "torch.int8"}, UnsupportedFormat, "pack_dtype 'torch.int8'"),
        (
            {"dynamic": {"+:.*q_proj": {"adapter": {"name": "lora", "rank": 8}}}},
            UnsupportedFormat,
            "dynamic, +:.*q_proj, adapter {'name': 'lora', 'rank': 8}",
        ),
        (
            {"dynamic": {".*q_proj": {"format": "gptq_v2"}}},
            UnsupportedFormat,
            "dynamic, .*q_proj, format 'gptq_v2'",
        ),
        (
            {"dynamic": {".*q_proj": {"pack_dtype": "int8"}}},
            UnsupportedFormat,
            "dynamic, .*q_proj, pack_dtype 'int8'",
        ),
        (
            {"dynamic": {".*q_proj": {"method": "qqq"}}},
            UnsupportedFormat,
            "dynamic, .*q_proj, method 'qqq'",
        ),
        ({"bits": None}, CheckpointError, "bits None is not a number of bits"),
        ({"bits": 3}, CheckpointError, "stored in 4 bits and 3 groups of 96 inputs"),
        ({"group_size": 128}, CheckpointError, "the config says 4 bits in groups of 128"),
        ({"sym": "yes"}, CheckpointError, "sym 'yes' is not true or false"),
        ({"dynamic": {"(": {}}}, CheckpointError, "dynamic: pattern '(' is not a regular"),
        ({"dynamic": {".*": 4}}, CheckpointError, "dynamic, .* 4 is not an object"),
        ({"dynamic": [4]}, CheckpointError, "dynamic [4] is not an object"),
    ],
)
def test_refused(refusal, changes, error, words):
    assert words in refusal(error, **changes)


def test_awqs_words_are_an_error(refusal):
    words = refusal(CheckpointError, Recipe(order="outputs"))
    assert "qweight has words of outputs, as AWQ's, and the config says GPTQ" in words


def test_bits_per_weight(checkpoint):
    """Codes, scales, zero points and groups of inputs: all that is stored."""
    summary = summarize(checkpoint())
    assert summary.parameters == 64 * 96
    assert summary.body_bits == pytest.approx(4 + (16 + 4) / 32 + 32 / 64)


def test_the_method_may_be_a_kernels_name(scheme):
    assert scheme(quant_method="gptq_marlin").label == "GPTQ W4A16 g32"


def test_fields_that_mean_nothing_here():
    config = parse_gptq(CONFIG | {"meta": {"quantizer": ["gptqmodel:7.7"]}, "lm_head": True})
    assert config.all == (config.declared,) and not config.claims("lm_head")
