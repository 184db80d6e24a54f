"""`quant_method: torchao`: what is read of it, and what is refused."""

import pytest

from scoremode.errors import CheckpointError, UnsupportedFormat
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


def test_what_is_refused():
    words = "^quantization method 'torchao' with include_input_output_embeddings True: not decoded$"
    with pytest.raises(UnsupportedFormat, match=words):
        parse_torchao(CONFIG | {"include_input_output_embeddings": True})
    with pytest.raises(CheckpointError, match=r"modules_to_not_convert 'a' is not a list"):
        parse_torchao(CONFIG | {"modules_to_not_convert": "a"})
