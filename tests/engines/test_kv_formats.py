"""Names of caches' formats: read, written, refused, and found again in a record."""

import pytest

from scoremode.engines.kv_formats import (
    KvCache,
    KvFormat,
    RecordedScales,
    cache_of,
    is_declared,
    parse_kv_cache,
)
from scoremode.errors import UsageError


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("int8", "int8-token"),
        ("fp8", "fp8_e4m3"),
        ("fp8_per_token_head", "fp8_e4m3-token"),
        ("int8_per_token_head", "int8-token"),
        ("bfloat16", "bf16"),
        ("fp8_e5m2-head", "fp8_e5m2-head"),
        ("int8-tensor-had", "int8-tensor-had"),
        ("k=q8_0-had,v=q4_0-had64", "k=q8_0-had,v=q4_0-had64"),
        ("v=int4-g32,k=int8", "k=int8-token,v=int4-g32"),
        ("k=nvfp4,v=nvfp4", "nvfp4"),
        ("q4_0-paired", "k=q4_0-paired,v=q4_0"),
        ("k=q8_0-paired-had,v=q4_0-had64", "k=q8_0-paired-had,v=q4_0-had64"),
        ("k=none,v=int2-g128", "k=none,v=int2-g128"),
    ],
)
def test_one_name_each(text, name):
    cache = parse_kv_cache(text)
    assert str(cache) == name and parse_kv_cache(name) == cache


def test_what_a_name_says():
    cache = parse_kv_cache("k=int4-g32-had64,v=fp8_e4m3-head")
    assert cache.k == KvFormat("int", bits=4, group=32, hadamard=64)
    assert (cache.k.block, cache.k.is_static, cache.k.rotated(128)) == (32, False, 64)
    assert (cache.v.block, cache.v.is_static, cache.v.rotated(128)) == (None, True, None)
    assert cache.is_static
    whole = parse_kv_cache("q8_0-had").k
    assert [whole.rotated(size) for size in (64, 96, 128, 80, 7)] == [64, 32, 128, 16, 1]
    assert parse_kv_cache("nvfp4").k.block == 16 and parse_kv_cache("f16").k.block is None
    assert not parse_kv_cache("nvfp4").is_static and parse_kv_cache("nvfp4-tensor").is_static


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int4", "int4: is none of none, f16"),
        ("fp8_e4m3-one", "is none of"),
        ("nvfp4-token", "is none of"),
        ("q8_0-tensor", "is none of"),
        ("f16-had", "is none of"),
        ("int4-g32-paired", "is none of"),
        ("k=q4_0,v=q4_0-paired", "-paired is for keys"),
        ("int8-had48", "is none of"),
        ("int9-g32", "is none of"),
        ("int4-g24", "is none of"),
        ("", "is none of"),
        ("k=int8", "says nothing of the other side"),
        ("k=int8,k=int8", "is not k=FORMAT,v=FORMAT"),
        ("q=int8,v=int8", "is not k=FORMAT,v=FORMAT"),
        ("k=int8,v=kivi", "k=int8,v=kivi: kivi keys are in groups of tokens"),
        ("turboquant_4bit_nc", "turboquant_4bit_nc not emulated; --engine vllm runs it"),
        ("iq4_nl", "searched for"),
        ("fp8_ds_mla", "compressed state"),
    ],
)
def test_what_is_no_name(text, said):
    with pytest.raises(UsageError, match=said):
        parse_kv_cache(text)


def test_the_cache_of_a_record():
    engine = {"engine": "torch", "arithmetic": "weights", "kv_cache_dtype": None}
    assert cache_of(engine) == "none"
    assert cache_of(engine | {"kv_cache_dtype": "float8 tensor static"}) == "as-declared"
    assert is_declared("float8 attn_head static") and not is_declared("fp8_e4m3-head")
    tool = engine | {"arithmetic": "llama.cpp", "kv_cache_dtype": "float16"}
    assert cache_of(tool) == "none"
    assert cache_of({"engine": "vllm", "kv_cache_dtype": "fp8_e4m3"}) == "none"
    named = engine | {"kv_cache_dtype": "k=int8-token,v=q4_0"}
    assert cache_of(named) == parse_kv_cache("k=int8-token,v=q4_0")
    static = engine | {
        "kv_cache_dtype": "k=int8-head,v=q4_0",
        "kv_cache": {"scales": {"source": "measured", "k": [[1.0, 2.0], [3.0, 4.0]]}},
    }
    cache = cache_of(static)
    assert isinstance(cache, KvCache)
    assert cache.scales == RecordedScales(((1.0, 2.0), (3.0, 4.0)), None)
    with pytest.raises(UsageError, match="of which only the hash is known"):
        cache_of(engine | {"kv_cache_dtype": "int8-head", "kv_scales_sha256": "0"})
