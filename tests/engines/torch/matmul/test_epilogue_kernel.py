"""The epilogue's CUDA kernel against its plain-torch twin: on a GPU, or interpreted."""

import pytest
import torch
from support.triton_interpreter import DEVICE

from scoremode.engines.torch.matmul import sums
from scoremode.engines.torch.matmul.sums import Operands
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Quantized

triton = pytest.importorskip("triton", reason="needs Triton")
from scoremode.engines.torch.matmul.kernels import finish_sums  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")
# The interpreter takes the bits of bfloat16 for integers.
HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16


@pytest.mark.parametrize("shape", [(1, 1), (9, 513), (17, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_the_epilogue_is_the_same_bits(dtype, shape):
    generator = torch.Generator().manual_seed(0)
    total = torch.randint(-(1 << 30), 1 << 30, shape, generator=generator).to(dtype)
    rows, columns = (torch.rand(n, 1, generator=generator) + 0.5 for n in shape)
    bias = torch.randn(shape[1], generator=generator) * 1e9
    for x, w in (
        (rows, columns),
        (rows[:1], columns),
        (rows, columns[:1]),
        (rows[:1], columns[:1]),
    ):
        for b in (None, bias, bias.half()):
            for out_dtype in (torch.float32, HALF):
                # So small that float16 holds it.
                w_scale = w * (1e-6 if out_dtype == torch.float16 else 1.0)
                sides = Quantized(total, x), Quantized(total, w_scale)
                expected = sums.finished(total.clone(), Operands(*sides, Scratch(), b, out_dtype))
                out = torch.empty(shape, dtype=out_dtype, device=DEVICE)
                finish_sums(
                    total.to(DEVICE), x.to(DEVICE), w_scale.to(DEVICE),
                    None if b is None else b.to(DEVICE), out,
                )  # fmt: skip
                assert torch.equal(out.cpu(), expected)
