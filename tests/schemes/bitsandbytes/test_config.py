"""`quant_method: bitsandbytes`: what is read of it, and what is refused."""

import pytest
from support.families.bitsandbytes import config
from transformers import BitsAndBytesConfig

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.bitsandbytes import parse_bitsandbytes
from scoremode.schemes.unsupported import method_of


@pytest.mark.parametrize(
    ("fields", "bits"),
    [
        (config("nf4"), 4),
        (config("fp4", double=True), 4),
        (config("int8"), 8),
        ({"load_in_4bit": True}, 4),
        ({"_load_in_8bit": True, "load_in_8bit": True, "llm_int8_threshold": 0}, 8),
        (BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4").to_dict(), 4),
        (BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=["lm_head"]).to_dict(), 8),
    ],
)
def test_what_transformers_writes(fields, bits):
    parsed = parse_bitsandbytes(fields)
    assert parsed.bits == bits and parsed.kv_cache is None and not parsed.claims("m")
    assert method_of(fields) == "bitsandbytes" or fields["quant_method"].value == "bitsandbytes"
    assert parsed.not_converted.name("lm_head") == bool(fields.get("llm_int8_skip_modules"))
    assert parsed.threshold == fields.get("llm_int8_threshold", 6)


# As published by Unsloth: DeepSeek-R1-Distill-Llama-8B, in two dynamic releases' words; and as
# transformers once matched them, by any part of a name.
UNSLOTH = [
    "lm_head",
    "multi_modal_projector",
    "merger",
    "modality_projection",
    "model.layers.1.mlp",
]


@pytest.mark.parametrize(
    ("listed", "module", "claimed"),
    [
        (None, "model.layers.1.mlp.up_proj", True),
        (None, "lm_head", False),
        (None, "language_model.lm_head", False),
        # transformers 5 has them as one, and leaves them.
        (None, "model.layers.1.mlp.experts.3.up_proj", False),
        (UNSLOTH, "model.layers.1.mlp.up_proj", False),
        (UNSLOTH, "model.layers.11.mlp.up_proj", True),
        (UNSLOTH, "model.language_model.layers.1.mlp.up_proj", False),
        (UNSLOTH, "lm_head", False),
        (["vision_tower"], "lm_head", False),
        (["vision_tower"], "model.layers.1.mlp.up_proj", True),
        (["temporal_block"], "model.layers.1.temporal_block.linear_y", False),
        (["language_model.model.layers.1.self_attn"], "model.layers.1.self_attn.q_proj", False),
        (["q_proj"], "model.layers.1.self_attn.q_proj", False),
    ],
)
def test_what_is_claimed(listed, module, claimed):
    for kind in ("nf4", "int8"):
        parsed = parse_bitsandbytes(config(kind, llm_int8_skip_modules=listed))
        assert parsed.claims(module) == claimed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"llm_int8_has_fp16_weight": True}, "llm_int8_has_fp16_weight True"),
        ({"bnb_4bit_quant_type": "af4"}, "bnb_4bit_quant_type 'af4'"),
    ],
)
def test_what_is_not_decoded_is_named(change, words):
    with pytest.raises(UnsupportedFormat) as error:
        parse_bitsandbytes(config() | change)
    assert str(error.value) == f"quantization method 'bitsandbytes' with {words}: not decoded"


@pytest.mark.parametrize(
    ("change", "words"),
    [
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
)
def test_what_cannot_be_understood(change, words):
    with pytest.raises(CheckpointError, match=r"^quantization_config can't be understood") as error:
        parse_bitsandbytes(config() | change)
    assert words in str(error.value) and "\n" not in str(error.value)
