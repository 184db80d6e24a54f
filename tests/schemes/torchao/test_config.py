"""`quant_method: torchao`: what is read of it, and what is refused."""

from scoremode.schemes.torchao import parse_torchao

CONFIG = {
    "quant_method": "torchao",
    "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {}}},
    "modules_to_not_convert": None,
    "include_input_output_embeddings": False,
}


def test_what_transformers_writes():
    parsed = parse_torchao(CONFIG)
    assert parsed.kv_cache is None and not parsed.claims("m")
    assert not parsed.not_converted.name("lm_head")
    assert parse_torchao(CONFIG | {"modules_to_not_convert": ["lm"]}).not_converted.name("lm")
