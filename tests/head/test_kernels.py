"""The kernel of one model's sums against float64: on CUDA or interpreted, small."""

import pytest
import torch
from support.pair_logits import logits

from scoremode.head.rows import RowSums

pytest.importorskip("triton", reason="needs Triton")


# Numpy, which interprets, says what no GPU does.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
ROWS = 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_that_are_aligned_or_not(dtype, kernels):
    """Sixteen bytes at a time or entry by entry: other lanes, the same numbers."""
    _, z, target = (x.to(kernels) for x in logits(ROWS, 4100))
    z = z.to(dtype)
    wanted = z.double().log_softmax(1)
    memory = torch.full((ROWS, 4112), torch.nan, dtype=dtype, device=kernels)
    for view in (memory[:, :4100], memory[:, 1:4101], z.clone()):
        view.copy_(z)
        sums = RowSums(ROWS, kernels, entropy=True)
        sums.absorb(slice(None), view, target, 0)
        ours = sums.finish()
        assert (ours.logprob - wanted.gather(1, target[:, None])[:, 0]).abs().max() < 2e-6
        assert torch.equal(ours.top1, wanted.argmax(1))
        assert (ours.entropy + (wanted.exp() * wanted).sum(1)).abs().max() < 2e-5
