"""What a module's quantized inputs, its cache and its leftovers must look like."""

import pytest
import torch
from support.schemes import arguments, build, compress, group, random_weight, refusal

from scoremode.errors import UnsupportedFormat

INT8 = {"num_bits": 8, "type": "int"}
STATIC = INT8 | {"strategy": "tensor", "dynamic": False}
LOCAL = {
    "num_bits": 4,
    "type": "float",
    "strategy": "tensor_group",
    "group_size": 16,
    "dynamic": "local",
}
CACHE = {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}


def linear(**more: torch.Tensor) -> dict[str, torch.Tensor]:
    args = arguments(4, "group", 32, symmetric=True)
    return compress(random_weight(5, 64, torch.bfloat16), args) | more


def with_inputs(fields: dict | None) -> dict:
    return group() | {"input_activations": fields}


@pytest.mark.parametrize(
    ("fields", "stored", "tensors"),
    [
        (None, {}, None),
        (INT8 | {"strategy": "token", "dynamic": True}, {}, ()),
        (STATIC, {"input_scale": torch.ones(1)}, ("input_scale",)),
        (STATIC, {"input_scale": torch.ones(())}, ("input_scale",)),
        # Older releases stored zero points of symmetric inputs too.
        (
            STATIC,
            {"input_scale": torch.ones(1), "input_zero_point": torch.zeros(1).char()},
            ("input_scale",),
        ),
        (
            STATIC | {"symmetric": False},
            {"input_scale": torch.ones(1), "input_zero_point": torch.ones(1).char()},
            ("input_scale", "input_zero_point"),
        ),
        (LOCAL, {"input_global_scale": torch.ones(1)}, ("input_global_scale",)),
        # Weights alone don't need one that calibration never set.
        (LOCAL, {}, ("input_global_scale",)),
        (STATIC, {}, ("input_scale",)),
    ],
)
def test_inputs_and_their_static_tensors(fields, stored, tensors):
    inputs = build(linear(**stored), with_inputs(fields)).inputs
    assert (inputs.tensors if inputs else None) == tensors


@pytest.mark.parametrize(
    ("fields", "stored", "words"),
    [
        (STATIC, {"input_scale": torch.ones(5)}, "input_scale has shape [5]"),
        (STATIC, {"input_scale": torch.ones(1).char()}, "input_scale has dtype I8"),
        (
            STATIC,
            {"input_scale": torch.ones(1), "input_zero_point": torch.ones(1).char()},
            "is symmetric, and its input_zero_point is not zero",
        ),
        (
            STATIC | {"symmetric": False},
            {"input_scale": torch.ones(1), "input_zero_point": torch.ones(1).byte()},
            "input_zero_point has dtype U8, expected I8",
        ),
        (
            INT8 | {"strategy": "group", "group_size": 48, "dynamic": True},
            {},
            "its 64 inputs are quantized in groups of 48",
        ),
    ],
)
def test_inputs_that_do_not_fit(fields, stored, words):
    assert words in refusal(linear(**stored), with_inputs(fields))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (INT8 | {"strategy": "channel", "dynamic": True}, "inputs dynamic int8 channel"),
        (INT8 | {"strategy": "block", "dynamic": True}, "inputs dynamic int8 block"),
        (INT8 | {"strategy": "attn_head", "dynamic": True}, "inputs dynamic int8 attn_head"),
        (INT8 | {"strategy": "token", "dynamic": False}, "inputs static int8 token"),
        (INT8 | {"strategy": "group", "group_size": 32}, "inputs static int8 group 32"),
        (INT8 | {"strategy": "group", "dynamic": True}, "inputs dynamic int8 group"),
        (
            INT8 | {"num_bits": 16, "strategy": "token", "dynamic": True},
            "inputs dynamic int16 token",
        ),
        (
            INT8 | {"type": "float", "num_bits": 5, "strategy": "token", "dynamic": True},
            "float5 token",
        ),
        (
            INT8 | {"type": "float", "strategy": "token", "dynamic": True, "symmetric": False},
            "float8 token asymmetric",
        ),
        (LOCAL | {"dynamic": True}, "inputs dynamic float4 group 16"),
        (LOCAL | {"strategy": "group"}, "inputs local float4 group 16"),
        (LOCAL | {"num_bits": 8}, "inputs local float8 group 16"),
    ],
)
def test_inputs_that_are_not_supported(fields, words):
    stored = linear(input_scale=torch.ones(1), input_global_scale=torch.ones(1))
    message = refusal(stored, with_inputs(fields), error=UnsupportedFormat)
    assert message.startswith("m: pack-quantized with inputs ")
    assert words in message


def test_quantized_outputs_are_not_supported():
    fields = group() | {"output_activations": INT8 | {"strategy": "tensor"}}
    expected = "m: pack-quantized with quantized outputs (int8 tensor) is not supported"
    assert refusal(linear(), fields, error=UnsupportedFormat) == expected


def test_tensors_of_the_cache_belong_to_it():
    cache = {"output_scale": torch.ones(1), "output_zero_point": torch.zeros(1).char()}
    assert build(linear(**cache), group(), **CACHE).tensors == ("weight_packed", "weight_scale")
    message = refusal(linear(**cache), group(), error=UnsupportedFormat)
    assert message == "m: pack-quantized with output_scale, output_zero_point is not supported"


@pytest.mark.parametrize("suffix", ["input_scale", "weight_g_idx_2", "lora_A", "pre_quant_scale"])
def test_leftovers_that_could_mean_something(suffix):
    message = refusal(linear(**{suffix: torch.ones(1)}), group(), error=UnsupportedFormat)
    assert message == f"m: pack-quantized with {suffix} is not supported"


def test_a_bias_is_none_of_the_weights_business():
    assert "bias" not in build(linear(bias=torch.ones(5)), group()).tensors
