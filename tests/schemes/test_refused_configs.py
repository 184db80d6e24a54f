"""Configs that are refused: fields that change a weight's meaning and aren't decoded, and values of
another type than their field's."""

import pytest
from support.families import bitsandbytes, exl3, float8_blocks, hqq, quark

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.bitsandbytes import parse_bitsandbytes
from scoremode.schemes.exl3 import parse_exl3
from scoremode.schemes.fp8 import parse_fp8
from scoremode.schemes.hqq import parse_hqq
from scoremode.schemes.mlx import parse_mlx
from scoremode.schemes.mxfp4 import parse_mxfp4
from scoremode.schemes.quark import parse_quark
from scoremode.schemes.torchao import parse_torchao

# How a library's config is read, and one that is.
LIBRARIES = {
    "bitsandbytes": (parse_bitsandbytes, bitsandbytes.config()),
    "exl3": (parse_exl3, exl3.config()),
    "fp8": (parse_fp8, float8_blocks.config()),
    "hqq": (parse_hqq, hqq.config()),
    "mlx": (parse_mlx, {"bits": 4, "group_size": 64}),
    "mxfp4": (parse_mxfp4, {"quant_method": "mxfp4"}),
    "quark": (parse_quark, quark.config("fp8")),
    "torchao": (parse_torchao, {"quant_method": "torchao"}),
}


def of_hqq(where: str | None = None, **fields) -> dict:
    quant = hqq.config()["quant_config"]
    (quant[where] if where else quant).update(fields)
    return {"quant_config": quant}


def of_weight(**fields) -> dict:
    return {"global_quant_config": {"weight": quark.KINDS["ptpc"][0] | fields}}


FLOAT8, INT4 = quark.spec("fp8_e4m3", "per_tensor"), quark.KINDS["int4"][0]
NOT_DECODED = {
    "bitsandbytes": [
        ({"llm_int8_has_fp16_weight": True}, "llm_int8_has_fp16_weight True"),
        ({"bnb_4bit_quant_type": "af4"}, "bnb_4bit_quant_type 'af4'"),
    ],
    "exl3": [({"codebook": "2mad"}, "codebook '2mad'")],
    "fp8": [
        ({"activation_scheme": "sometimes"}, "activation_scheme 'sometimes'"),
        ({"fmt": "e5m2"}, "fmt 'e5m2'"),
        ({"scale_fmt": "e4m3"}, "scale_fmt 'e4m3'"),
        ({"expert_dtype": "fp6"}, "expert_dtype 'fp6'"),
        ({"modules_to_convert": ["embed_tokens"]}, "modules_to_convert ['embed_tokens']"),
        ({"config_groups": {"g": {}}}, "config_groups {'g': {}}"),
        ({"dequantize": True}, "dequantize True"),
    ],
    "hqq": [
        (of_hqq(scale_quant_params={"nbits": 8}), "quant_config, scale_quant_params {'nbits': 8}"),
        (of_hqq(zero_quant_params={"nbits": 8}), "quant_config, zero_quant_params {'nbits': 8}"),
        (of_hqq("weight_quant_params", channel_wise=False), "channel_wise False"),
    ],
    "mlx": [
        ({"bits": 7}, "7 bits in groups of 64"),
        ({"group_size": 48}, "4 bits in groups of 48"),
        ({"mode": "fp4"}, "mode 'fp4'"),
        ({"bits": 8, "group_size": 32, "mode": "mxfp4"}, "mode 'mxfp4' of 8 bits in groups of 32"),
        ({"m": {"bits": 1}}, "1 bits in groups of 64"),
        ({"linear_class": "x"}, "linear_class 'x'"),
        ({"m": 0}, "m 0"),
        ({"quantize_input": True}, "quantize_input True"),
        ({"m": {"mode": "mxfp8", "quantize_input": True}}, "quantize_input True"),
    ],
    "mxfp4": [
        ({"dequantize": True}, "dequantize True"),
        ({"config_groups": {"g": {}}}, "config_groups {'g': {}}"),
        ({"global_quant_config": {"weight": 1}}, "global_quant_config {'weight': 1}"),
        ({"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme {'num_bits': 8}"),
        ({"activation_scheme": "static"}, "activation_scheme 'static'"),
    ],
    "quark": [
        (of_weight(dtype="uint4"), "weight, symmetric True"),
        (of_weight(dtype="int3"), "weight, dtype 'int3'"),
        (of_weight(zero_point_type="float32"), "weight, zero_point_type 'float32'"),
        ({"export": {"pack_method": "other"}}, "pack_method 'other'"),
        ({"global_quant_config": {"input_tensors": INT4}}, "input_tensors, dtype 'int4'"),
        (of_weight(ch_axis=1), "weight, ch_axis 1"),
        (of_weight(symmetric=False), "weight, symmetric False"),
        (of_weight(scale_format="e5m3"), "weight, scale_format 'e5m3'"),
        (of_weight(dtype="fp4", qscheme="per_group", ch_axis=-1), "ch_axis -1 and group_size None"),
        ({"layer_type_quant_config": {"Embedding": {}}}, "layer_type_quant_config {"),
        ({"softmax_quant_spec": {"dtype": "fp8_e4m3"}}, "softmax_quant_spec {"),
        ({"export": {"weight_format": "fake_quantized"}}, "weight_format 'fake_quantized'"),
        ({"global_quant_config": {"weight": [FLOAT8] * 2}}, "global_quant_config, weight [{"),
        (
            {"global_quant_config": {"output_tensors": FLOAT8}},
            "global_quant_config, output_tensors 'float8 tensor static'",
        ),
        ({"global_quant_config": {"bias": {"dtype": "int8"}}}, "bias {'dtype': 'int8'}"),
        ({"export": None}, "out export (Quark before 1.0)"),
    ],
    "torchao": [
        ({"include_input_output_embeddings": True}, "include_input_output_embeddings True")
    ],
}
BLOCKS = [[], [128], [0, 1], [-1, 128], [True, 1], ["1", 1], 128, "128x128", [1, 2, 3], {}]
NOT_UNDERSTOOD = {
    "bitsandbytes": [
        ({"load_in_8bit": True}, "both of load_in_4bit and load_in_8bit"),
        ({"load_in_4bit": False, "_load_in_4bit": False}, "neither of load_in_4bit and"),
        ({"load_in_4bit": 1}, "load_in_4bit 1 is not true or false"),
        ({"llm_int8_threshold": -1.0}, "llm_int8_threshold -1.0 is not a number that is not neg"),
        ({"llm_int8_threshold": True}, "llm_int8_threshold True"),
        ({"llm_int8_threshold": float("nan")}, "llm_int8_threshold nan"),
        ({"bnb_4bit_quant_type": 4}, "bnb_4bit_quant_type 4 is not a string"),
        ({"llm_int8_skip_modules": "lm_head"}, "llm_int8_skip_modules 'lm_head' is not a list"),
        ({"llm_int8_skip_modules": ["("]}, "llm_int8_skip_modules: pattern"),
    ],
    "exl3": [
        ({"bits": "4"}, "bits '4' is not a number"),
        ({"head_bits": True}, "head_bits True is not a number"),
        ({"codebook": 3}, "codebook 3 is not a string"),
    ],
    "fp8": [
        *(({"weight_block_size": size}, "is not rows and columns") for size in BLOCKS),
        *(({"weight_block_size": size}, "is not rows and") for size in ([1 << 31, 1], [1.0, 1])),
        *(({"activation_scheme": value}, "activation_scheme") for value in (1, [], True)),
        *(({"fmt": value}, "is not a string") for value in (8, {})),
        *(({"scale_fmt": value}, "is not a string") for value in (1, [])),
        *(
            ({"modules_to_not_convert": value}, "modules_to_not_convert")
            for value in ("lm_head", [1], {}, [None], ["("], ["a{9999999999999999}"])
        ),
        *(({"ignored_layers": value}, "is not a list of names") for value in ("lm_head", [1])),
    ],
    "hqq": [
        (of_hqq("weight_quant_params", nbits="4"), "nbits '4' is not a number"),
        (of_hqq("weight_quant_params", group_size=1.5), "group_size 1.5 is not an integer"),
        (of_hqq("weight_quant_params", axis=True), "axis True is not an integer"),
        ({"quant_config": 4}, "quant_config 4 is not an object"),
        ({"quant_config": {"self_attn.q_proj": 4}}, "self_attn.q_proj 4 is not an object"),
        ({"skip_modules": "lm_head"}, "skip_modules 'lm_head' is not a list of names"),
    ],
    "mlx": [
        ({"bits": "4"}, "bits '4' is not an integer"),
        ({"group_size": 64.0}, "group_size 64.0 is not an integer"),
        ({"bits": True}, "bits True is not an integer"),
        ({"mode": 4}, "mode 4 is not a string"),
        ({"m": {"bits": [4]}}, "m: bits [4] is not an integer"),
    ],
    "mxfp4": [
        ({"modules_to_not_convert": value}, "modules_to_not_convert")
        for value in ("lm_head", [1], {}, ["("])
    ],
    "quark": [
        (of_weight(ch_axis="0"), "ch_axis '0' is not an integer"),
        (of_weight(is_dynamic=True), "weights with dynamic scales"),
        (of_weight(is_dynamic=1), "is_dynamic 1 is not true or false"),
        ({"exclude": "lm_head"}, "exclude 'lm_head' is not a list of names"),
        ({"layer_quant_config": {"a": 4}}, "layer_quant_config, a 4 is not an object"),
        ({"layer_quant_config": True}, "layer_quant_config True is not an object"),
        ({"kv_cache_quant_config": [1]}, "kv_cache_quant_config [1] is not an object"),
        ({"global_quant_config": []}, "global_quant_config [] is not an object"),
        *(
            (of_weight(qscheme="per_block", block_size=size), "is not rows and columns")
            for size in (None, [128], [0, 128], "128x128")
        ),
    ],
    "torchao": [({"modules_to_not_convert": "a"}, "modules_to_not_convert 'a' is not a list")],
}


def flat(table: dict[str, list]) -> list[tuple]:
    return [(library, *row) for library, rows in table.items() for row in rows]


@pytest.mark.parametrize(("library", "change", "words"), flat(NOT_DECODED))
def test_what_is_not_decoded_is_named(library, change, words):
    parse, config = LIBRARIES[library]
    with pytest.raises(UnsupportedFormat) as error:
        parse(config | change)
    text = str(error.value)
    assert f"quantization method '{library}' with" in text and words in text
    assert text.endswith(": not decoded") and "\n" not in text


@pytest.mark.parametrize(("library", "change", "words"), flat(NOT_UNDERSTOOD))
def test_what_can_not_be_understood(library, change, words):
    parse, config = LIBRARIES[library]
    with pytest.raises(CheckpointError, match=r"^quantization_config can't be understood") as error:
        parse(config | change)
    text = str(error.value)
    assert type(error.value) is CheckpointError and words in text and "\n" not in text
