"""The flags of a cache's format, as each engine is given them."""

import pytest
from support import specs

from scoremode.cli.engines import torch_options, vllm_options
from scoremode.cli.measure import Ppl
from scoremode.cli.variants import variants_of
from scoremode.engines.kv_formats import parse_kv_cache
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.vllm.options import VllmOptions
from scoremode.errors import UsageError


def flags(*words: str) -> Ppl:
    return specs.given(Ppl, "model", *words)


def test_the_torch_engines():
    assert torch_options(flags()).kv_cache == "none"
    assert torch_options(flags("--kv-cache", "as-declared")).kv_cache == "as-declared"
    assert torch_options(flags("--kv-cache", "k=none,v=none")).kv_cache == "none"
    found = torch_options(flags("--kv-cache", "v=int4-g32,k=int8")).kv_cache
    assert found == parse_kv_cache("k=int8,v=int4-g32")
    assert flags("--kv-cache", "int8").kv_cache == "int8-token", "one name in every record"
    given = torch_options(flags("--kv-cache", "fp8-head", "--kv-scales", "x.safetensors")).kv_cache
    assert not isinstance(given, str) and given.scales == "x.safetensors"
    with pytest.raises(UsageError, match="--kv-scales x: goes with --kv-cache FORMAT"):
        torch_options(flags("--kv-scales", "x"))
    with pytest.raises(UsageError, match="--kv-cache int3: is none of"):
        flags("--kv-cache", "int3")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("fp8_e4m3", "fp8_e4m3"),
        ("fp8_e5m2", "fp8_e5m2"),
        ("int8", "int8_per_token_head"),
        ("fp8_e4m3-token", "fp8_per_token_head"),
        ("bf16", "bfloat16"),
        ("nvfp4", "nvfp4"),
    ],
)
def test_vllms(name, dtype):
    assert vllm_options(flags("--kv-cache", name)).arguments["kv_cache_dtype"] == dtype


def test_what_vllm_has_not():
    for words in ((), ("--kv-cache", "as-declared")):
        assert "kv_cache_dtype" not in vllm_options(flags(*words)).arguments
    with pytest.raises(UsageError, match="--kv-cache int4-g32: vLLM has f16, bf16, fp8_e4m3"):
        vllm_options(flags("--kv-cache", "int4-g32"))
    with pytest.raises(UsageError, match="--kv-cache k=int8-token,v=fp8_e4m3: vLLM has"):
        vllm_options(flags("--kv-cache", "k=int8,v=fp8"))
    with pytest.raises(UsageError, match="--kv-cache bf16 stores keys"):
        vllm_options(flags("--kv-cache", "none"))
    with pytest.raises(UsageError, match="--kv-scales x: is for --engine torch"):
        vllm_options(flags("--kv-cache", "fp8", "--kv-scales", "x"))
    with pytest.raises(UsageError, match="kv_cache_dtype=fp8_e5m2 says another"):
        vllm_options(flags("--kv-cache", "fp8", "--engine-arg", "kv_cache_dtype=fp8_e5m2"))


def test_both_at_once():
    found = variants_of(flags("--kv-cache", "fp8"), "torch,vllm", [])
    torch, vllm = found["torch"].options, found["vllm"].options
    assert isinstance(vllm, VllmOptions) and isinstance(torch, TorchOptions)
    assert vllm.arguments["kv_cache_dtype"] == "fp8_e4m3"
    assert torch.kv_cache == parse_kv_cache("fp8")
    plain = variants_of(flags("--kv-cache", "none"), "torch,vllm", [])["vllm"].options
    assert isinstance(plain, VllmOptions) and "kv_cache_dtype" not in plain.arguments
