"""llama.cpp's KLD in tiles, against its definition over whole rows."""

import math

import numpy as np
import pytest
import torch
from support.llama_cpp.files import decode, kld_llama_cpp
from support.pair_logits import Given, logits, on_cpu

from scoremode.head.full import full_pairs
from scoremode.head.project import Head, HeadLogits, score_pairs, score_rows
from scoremode.llama_cpp.reference import LlamaCppSums
from scoremode.llama_cpp.rows import encode
from scoremode.results.scores import Scores, check_values

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs CUDA"))]  # fmt: skip


def stored(z: torch.Tensor, nats=16) -> torch.Tensor:
    """float32 log-probabilities as they come back from a file."""
    return torch.from_numpy(decode(encode(z.numpy(), nats), 0, z.shape[1]))


def gather(base, model, tile=(50, 700)) -> LlamaCppSums:
    sums = LlamaCppSums(len(base), base.device)
    for begin in range(0, base.shape[1], tile[1]):
        for low in range(0, len(base), tile[0]):
            block = slice(low, min(low + tile[0], len(base)))
            part = slice(begin, begin + tile[1])
            sums.consume(block, base[block, part], model[block, part])
    return sums


def compared(base, model, target, tile=(50, 700)):
    return on_cpu(
        score_pairs(
            target,
            base.shape[1],
            model=Given(model),
            base=Given(base),
            extra=LlamaCppSums,
            tile=tile,
        )
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("nats", [16, 24])
@pytest.mark.parametrize("tile", [(50, 700), (64, 3000), (7, 13)], ids=str)
@pytest.mark.parametrize(
    "settings", [{}, {"noise": 0.0}, {"sharpness": 8.0, "noise": 3.0}, {"entries": 3}], ids=str
)
def test_equals_the_definition(settings, tile, nats, device):
    z, model, target = logits(**settings)
    base = stored(z, nats)
    ours = compared(base.to(device), model.to(device), target.to(device), tile)
    wanted = kld_llama_cpp(base.numpy(), model.numpy())
    kld = ours.extra["kld_llama_cpp"]
    assert kld.dtype == torch.float64
    # What remains is the rounding of exponentials to float32 in the model's normalizer.
    error = kld.numpy() - wanted
    assert np.abs(error).max() < 1e-6 and abs(error.mean()) < 2e-7


def test_the_bases_scores_are_the_files_and_all_others_of_renormalized_ones():
    z, model, target = logits(rows=200)
    base = stored(z)
    ours = compared(base, model, target)
    usual = score_pairs(target, 3000, model=Given(model), base=Given(base), tile=(50, 700))
    rows = torch.arange(200)
    assert torch.equal(ours.base.logprob, base[rows, target].double())
    assert torch.equal(ours.base.top1_logprob, base.amax(1).double())
    assert torch.equal(ours.base.top1, base.argmax(1))
    mass = base.double().exp().sum(1).log()
    assert mass.abs().max() > 1e-6
    assert (ours.base.logprob - mass - usual.base.logprob).abs().max() < 1e-6
    for name in ("kld", "kld_reverse", "log_sum_base", "log_sum_model"):
        assert torch.equal(getattr(ours, name), getattr(usual, name)), name
    assert torch.equal(ours.model.logprob, usual.model.logprob)
    assert not usual.extra and "kld_llama_cpp" not in usual.columns()
    assert LlamaCppSums.columns == tuple(ours.extra) == ("kld_llama_cpp",)
    kld = ours.extra["kld_llama_cpp"].numpy()
    assert np.array_equal(ours.columns()["kld_llama_cpp"], kld)
    # The second pass has the distributions of the first.
    full = full_pairs(ours, 3000, model=Given(model), base=Given(base), tile=(50, 700))
    p, q = base.double().log_softmax(1), model.double().log_softmax(1)
    m = torch.logaddexp(p, q) - math.log(2)
    jsd = (p.exp() * (p - m) + q.exp() * (q - m)).sum(1) / 2
    assert (full.jsd - jsd).abs().max() < 1e-6


def test_a_files_raised_tail_is_no_sign_of_wrong_scores():
    """150,000 entries at the border of 16 nats add 1.7 % to a base that is sure: the file's probability
    of the target is further from the model's than the renormalized distributions are."""
    z = torch.randn(1, 150_000, generator=torch.Generator().manual_seed(0))
    model = 0.1 * z
    z[:, 7], model[:, 7] = 30, 14
    pair = compared(stored(z), model, torch.tensor([7]))
    assert pair.tv is not None
    apart = (pair.model.logprob.exp() - pair.base.logprob.exp()).abs()
    assert pair.tv < apart - 0.01
    label = {name: np.array([1], "i4") for name in ("window", "position", "index")}
    columns = {**label, "target": np.array([7], "i4"), **pair.columns()}
    check_values(Scores.from_columns(columns))


def test_a_models_own_scores_are_those_without_a_file():
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(900, 64, generator=generator)
    hidden = torch.randn(70, 64, generator=generator) / 4
    target = torch.randint(0, 900, (70,), generator=generator)
    head = Head(weight, None, 1.0, None, 900)
    alone = score_rows(head, hidden, target, tile=(30, 128))
    base = Given(stored(hidden @ weight.T))
    model = HeadLogits(head, hidden, (30, 128))
    pair = score_pairs(target, 900, model=model, base=base, extra=LlamaCppSums, tile=(30, 128))
    assert torch.equal(pair.model.logprob, alone.logprob)
    assert torch.equal(pair.model.top1_logprob, alone.top1_logprob)


def test_ranks_merge_in_the_order_of_their_entries():
    z, model, target = logits()
    base = stored(z)
    ranks = [slice(0, 1000), slice(1000, 1000), slice(1000, 2900), slice(2900, 3000)]
    parts = [gather(base[:, r], model[:, r]) for r in ranks]
    merged = LlamaCppSums.merged([part.pack() for part in parts])
    whole = gather(base, model)
    assert (merged.mass - whole.mass).abs().max() < 1e-14
    assert (merged.cross - whole.cross).abs().max() < 1e-12
    pair = score_pairs(target, 3000, model=Given(model), base=Given(base))
    kld = merged.finish(pair).extra["kld_llama_cpp"]
    assert np.abs(kld.numpy() - kld_llama_cpp(base.numpy(), model.numpy())).max() < 1e-6


def test_many_rows_in_blocks_are_as_one(monkeypatch):
    z, model, _ = logits()
    base = stored(z)
    whole = gather(base, model)
    monkeypatch.setattr("scoremode.llama_cpp.reference._BLOCK", 2000)
    again = gather(base, model)
    assert torch.equal(whole.mass, again.mass) and torch.equal(whole.cross, again.cross)


def test_what_the_model_rules_out():
    """Infinitely far where the file has a probability that counts, and nothing where it has none."""
    base = torch.tensor([[-0.7, -0.7], [0.0, -16.0], [0.0, -15.99]])
    model = torch.tensor([[0.0, -torch.inf]] * 3)
    kld = compared(base, model, torch.zeros(3, dtype=torch.int64)).extra["kld_llama_cpp"]
    assert kld.tolist() == [math.inf, 0.0, math.inf]


def test_a_logit_that_is_not_a_number_is_not_lost():
    base = torch.tensor([[0.0, -20.0]])
    model = torch.tensor([[0.0, torch.nan]])
    kld = compared(base, model, torch.zeros(1, dtype=torch.int64)).extra["kld_llama_cpp"]
    assert kld.isnan().all()
