"""The CUDA kernel against its plain-torch twin: on a GPU, or under Triton's interpreter."""

import pytest
import torch
from support.kv_cache_formats import states

from scoremode.engines.kv_formats import parse_kv_cache
from scoremode.engines.torch.kv_cache.formats import rounded

triton = pytest.importorskip("triton", reason="needs Triton")
from scoremode.engines.torch.kv_cache import kernels  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
# Its interpreter makes bfloat16 of float32 by leaving bits out.
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

NAMES = [
    *("fp8_e4m3", "fp8_e5m2", "fp8_e4m3-token", "fp8_e5m2-token", "int8-token", "nvfp4"),
    *("int4-g32", "int2-g16", "int8-g64", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"),
    *("int8-token-had", "q4_0-had", "int4-g32-had16", "fp8_e4m3-had64", "nvfp4-had32"),
]
STATIC = ["fp8_e4m3-tensor", "fp8_e5m2-head", "int8-head", "int8-tensor-had", "nvfp4-tensor"]


@pytest.mark.parametrize("name", NAMES + STATIC)
@pytest.mark.parametrize(("size", "dtype"), [(64, HALF), (192, torch.float32)])
def test_the_same_numbers(name, size, dtype):
    form, x = parse_kv_cache(name).k, states(dtype, size)
    scale = torch.ones(1)
    if form.is_static:
        scale = torch.tensor([0.013]) if form.scale == "tensor" else torch.tensor([0.02, 0.3, 0.05])
    wanted = rounded(x, form, scale)
    for inner, laid in ((37, x), (1, x.transpose(1, 2).contiguous())):
        given = laid.to(DEVICE)
        out = torch.full_like(given, torch.nan)
        kernels.round_heads(given, form, scale.to(DEVICE), 3, inner, out)
        found = out.cpu() if inner == 37 else out.cpu().transpose(1, 2)
        assert torch.equal(found, wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_gives_the_cpus_numbers(name):
    """Through the kernel, in each layout, and without it."""
    from scoremode.engines.torch.kv_cache.formats import _rounded
    from scoremode.lib import fallback

    form, x = parse_kv_cache(name).k, states(torch.bfloat16, 128)
    wanted, there = rounded(x, form), x.cuda()
    part = torch.cat([there, there], -1)[..., :128]
    for laid in (there, there.transpose(1, 2).contiguous().transpose(1, 2), part):
        assert torch.equal(rounded(laid, form).cpu(), wanted)
    assert fallback.ran()["KV cache"] == "triton"
    plain = _rounded(there[0].float(), form, torch.ones(1, 1, 1, device="cuda"))
    assert torch.equal(plain.bfloat16().cpu(), wanted[0])
