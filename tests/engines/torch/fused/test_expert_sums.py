"""What tokens get from their experts, by a kernel and by plain torch."""

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton")
from support.fused_cases import DEVICE, dtypes

from scoremode.engines.torch.fused.kernels import weighted_sums
from scoremode.engines.torch.fused.proofs import differing


@dtypes
@pytest.mark.parametrize("choices", [1, 2, 4, 8])
@pytest.mark.parametrize("weights_dtype", [torch.float32, None])
def test_sums_are_those_of_plain_torch(choices, weights_dtype, dtype):
    generator = torch.Generator().manual_seed(0)
    tokens, width = 5, 1500
    outputs = torch.randn(tokens * choices, width, generator=generator).to(DEVICE, dtype)
    places = torch.randperm(tokens * choices, generator=generator).view(tokens, choices)
    weights = torch.rand(tokens, choices, generator=generator).to(DEVICE, weights_dtype or dtype)
    out = torch.empty(tokens, width, dtype=dtype, device=DEVICE)
    weighted_sums(out, outputs, places.to(DEVICE), weights)
    expected = (outputs[places.to(DEVICE)] * weights.unsqueeze(-1)).sum(1).to(dtype)
    # Two orders of a float32 sum round to another short number now and then.
    assert differing(out, expected) <= 0.001


def test_no_tokens():
    out = torch.empty(0, 8, dtype=torch.float16, device=DEVICE)
    nothing = torch.empty(0, 2, dtype=torch.int64, device=DEVICE)
    weighted_sums(out, out, nothing, nothing.float())
    assert out.shape == (0, 8)
