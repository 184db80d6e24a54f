"""`quant_method: bitsandbytes`: what is read of it, and what is refused."""

import pytest
from support.families.bitsandbytes import config
from transformers import BitsAndBytesConfig

from scoremode.schemes.bitsandbytes import parse_bitsandbytes
from scoremode.schemes.resolve import method_of


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
