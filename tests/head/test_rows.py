"""Row sums, in plain torch and in the Triton pass, against float64 over all logits at once."""

import sys
from itertools import pairwise

import pytest
import torch

from scoremode.errors import EngineError
from scoremode.head.divergence import PairSums
from scoremode.head.rows import RowSums

# Numpy, which interprets the kernels, says what no GPU does.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ALL = slice(None)


def logits(rows, entries, dtype, device, spread=4.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * entries)
    return (torch.randn(rows, entries, generator=generator) * spread).to(dtype).to(device)


def targets(rows, entries, device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, entries, (rows,), generator=generator).to(device)


def score(z, target, *, parts=(), entropy=True):
    """In parts that begin at the given entries."""
    sums = RowSums(len(z), z.device, entropy=entropy)
    edges = [0, *parts, z.shape[1]]
    for begin, end in pairwise(edges):
        sums.absorb(ALL, z[:, begin:end], target, begin)
    return sums.finish()


def truth(z, target):
    logprobs = z.double().log_softmax(1)
    entropy = -(logprobs.exp() * logprobs).nan_to_num(0.0).sum(1)
    return logprobs.gather(1, target[:, None])[:, 0], entropy, logprobs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("rows", "entries"), [(1, 1), (3, 2), (17, 1000), (5, 4096), (5, 4097), (2, 131_073)]
)
def test_equals_float64(rows, entries, dtype, device):
    z, target = logits(rows, entries, dtype, device), targets(rows, entries, device)
    ours = score(z, target)
    logprob, entropy, logprobs = truth(z, target)
    assert ours.entropy is not None
    # Exponentials of float32 differences, at most some tens.
    assert (ours.logprob - logprob).abs().max() < 2e-6
    assert (ours.entropy - entropy).abs().max() < 2e-5
    assert torch.equal(ours.top1, z.double().argmax(1))
    assert (ours.top1_logprob - logprobs.amax(1)).abs().max() < 2e-6


@pytest.mark.parametrize("parts", [(1,), (999,), (300, 301, 650), tuple(range(1, 50))], ids=len)
def test_any_parts_give_the_same(parts, device):
    rows = 5 if len(parts) < 10 else 2
    z, target = logits(rows, 1000, torch.float32, device), targets(rows, 1000, device)
    whole, cut = score(z, target), score(z, target, parts=parts)
    assert (whole.logprob - cut.logprob).abs().max() < 1e-6
    assert (whole.entropy - cut.entropy).abs().max() < 1e-5
    assert torch.equal(whole.top1, cut.top1)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_merge_in_their_order(ranks, device):
    z, target = logits(5, 1000, torch.bfloat16, device), targets(5, 1000, device)
    # One rank may hold nothing but padding.
    edges = [0, *[300 * r for r in range(1, ranks)], 1000, 1000]
    packed = []
    for begin, end in pairwise(edges):
        sums = RowSums(5, device, entropy=True)
        if end > begin:
            sums.absorb(ALL, z[:, begin:end], target, begin)
        packed.append(sums.pack())
    merged, whole = RowSums.merged(packed).finish(), score(z, target)
    assert (merged.logprob - whole.logprob).abs().max() < 1e-6
    assert (merged.entropy - whole.entropy).abs().max() < 1e-5
    assert torch.equal(merged.top1, whole.top1)


def test_the_first_of_equal_entries_is_the_top_one(device):
    z = torch.zeros(3, 9000, device=device)
    z[0, 5] = z[0, 4095] = z[0, 4096] = z[0, 8999] = 2.0
    z[1, 4096] = z[1, 8000] = 2.0
    target = torch.tensor([8999, 8000, 0], device=device)
    for parts in ((), (4096,), (6, 5000)):
        ours = score(z, target, parts=parts)
        assert ours.top1.tolist() == [5, 4096, 0]
        # The very same number, since the target's logit is the largest.
        assert torch.equal(ours.logprob, ours.top1_logprob)


def test_a_row_that_is_not_finite_says_so_and_no_other_does(device):
    z = logits(6, 9000, torch.float32, device)
    target = torch.tensor([7, 7, 7, 7, 7, 9001], device=device)
    z[0, 4500] = torch.nan
    z[1, 4500] = torch.inf
    z[2, 7] = -torch.inf
    z[3, :] = -torch.inf
    z[4, :7] = -torch.inf
    z[4, 4096:] = -torch.inf
    ours = score(z, target)
    finite = ours.logprob.isfinite().tolist()
    assert finite == [False, False, False, False, True, False]
    expected, entropy, _ = truth(z[4:5], target[4:5])
    assert (ours.logprob[4] - expected[0]).abs() < 2e-6
    assert (ours.entropy[4] - entropy[0]).abs() < 2e-5


def test_far_logits_keep_their_digits(device):
    z = logits(8, 5000, torch.float32, device, spread=1.0)
    target = targets(8, 5000, device)
    far = score(z + 1000, target)
    logprob, entropy, _ = truth(z + 1000, target)
    assert (far.logprob - logprob).abs().max() < 2e-6
    assert (far.entropy - entropy).abs().max() < 2e-5


def test_absorbing_leaves_the_logits_as_they_are(device):
    z = logits(8, 5000, torch.float32, device)
    before = z.clone()
    score(z, targets(8, 5000, device))
    assert torch.equal(z, before)


@pytest.mark.parametrize("sums", [RowSums, PairSums])
def test_without_triton_nothing_takes_the_kernels_place(sums, monkeypatch):
    for module in ("rows", "divergence"):
        monkeypatch.setattr(f"scoremode.head.{module}.has_kernels", lambda device: True)
    for module in ("kernels", "pair_kernels"):
        monkeypatch.setitem(sys.modules, f"scoremode.head.{module}", None)
    z, target = logits(2, 5, torch.float32, "cpu"), targets(2, 5, "cpu")
    given = (z, target) if sums is RowSums else (z, z, target)
    take = RowSums.absorb if sums is RowSums else PairSums.consume
    with pytest.raises(EngineError, match="needs Triton"):
        take(sums(2, z.device), slice(0, 2), *given, 0)


def test_no_rows(device):
    ours = score(
        torch.empty(0, 50, device=device), torch.empty(0, dtype=torch.int64, device=device)
    )
    assert ours.logprob.shape == ours.entropy.shape == (0,)
