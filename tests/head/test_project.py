"""The tiled head against one float64 log-softmax over all logits."""

import numpy as np
import pytest
import torch

from scoremode.head.project import Head, score_rows


def make(rows=70, width=24, entries=900, dtype=torch.float32, **settings):
    generator = torch.Generator().manual_seed(1)
    hidden = (torch.randn(rows, width, generator=generator)).to(dtype)
    weight = (torch.randn(entries, width, generator=generator) * 3 / width**0.5).to(dtype)
    bias = torch.randn(entries, generator=generator) if settings.pop("bias", False) else None
    vocabulary = settings.pop("vocabulary", entries)
    head = Head(weight, bias, settings.pop("scale", 1.0), settings.pop("softcap", None), vocabulary)
    target = torch.randint(0, vocabulary, (rows,), generator=generator)
    return head, hidden, target


def truth(head, hidden, target, dtype=torch.float64):
    z = hidden.to(dtype) @ head.weight.to(dtype).T
    if head.bias is not None:
        z = z + head.bias.to(dtype)
    z = z * head.scale
    if head.softcap is not None:
        z = head.softcap * torch.tanh(z / head.softcap)
    logprobs = z[:, : head.vocabulary].log_softmax(-1)
    return logprobs.gather(1, target[:, None])[:, 0], logprobs


SETTINGS = [
    {},
    {"bias": True},
    {"scale": 0.0625},
    {"softcap": 3.0},
    {"scale": 2.0, "softcap": 5.0, "bias": True},
    {"vocabulary": 800},
    {"entries": 1},
    {"rows": 1},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("tile", [(7, 13), (70, 900), (512, 4096), (1, 300)], ids=str)
def test_equals_float64_log_softmax(settings, tile):
    head, hidden, target = make(**settings)
    ours = score_rows(head, hidden, target, tile=tile)
    wanted, logprobs = truth(head, hidden, target)
    _, plain = truth(head, hidden, target, torch.float32)
    limit = max(2e-6, 1.1 * float((plain - logprobs).abs().max()))
    assert (ours.logprob - wanted).abs().max() < limit
    assert torch.equal(ours.top1, logprobs.argmax(1))
    assert (ours.top1_logprob - logprobs.amax(1)).abs().max() < limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hardly_depends_on_the_tile(dtype):
    head, hidden, target = make(rows=40, width=64, entries=20_000, dtype=dtype)
    results = [
        score_rows(head, hidden, target, tile=tile).logprob
        for tile in ((512, 4096), (40, 20_000), (3, 1000), (16, 257))
    ]
    for other in results[1:]:
        # A matmul library may sum a row in another order for another shape: a float32 rounding or
        # two of the largest logit in a single token, and nothing of that in the mean.
        assert (results[0] - other).abs().max() <= 4e-6
        assert (results[0] - other).mean().abs() <= 1e-6


def test_bf16_inputs_give_float32_logits():
    head, hidden, target = make(rows=50, width=256, entries=3000, dtype=torch.bfloat16)
    ours = score_rows(head, hidden, target).logprob
    wanted, _ = truth(head, hidden, target)
    rounded = (hidden @ head.weight.T).double().log_softmax(-1).gather(1, target[:, None])[:, 0]
    assert (ours - wanted).abs().max() < 1e-5 < (rounded - wanted).abs().max()


@pytest.mark.parametrize("lends", [True, False])
def test_lending_bf16_instructions_is_exact_for_bf16_inputs_and_leaves_no_trace(lends, monkeypatch):
    monkeypatch.setattr("scoremode.head.project.lends_bf16", lambda dtype, device: lends)
    head, hidden, target = make(rows=50, width=256, entries=3000, dtype=torch.bfloat16)
    before = torch.backends.mkldnn.matmul.fp32_precision
    lent = score_rows(head, hidden, target).logprob
    assert torch.backends.mkldnn.matmul.fp32_precision == before
    wanted, _ = truth(head, hidden, target)
    assert (lent - wanted).abs().max() < 1e-5


def test_ties_go_to_the_first_entry_across_tiles():
    weight = torch.zeros(10, 4)
    weight[[3, 6, 9]] = 1.0
    head = Head(weight, None, 1.0, None, 10)
    hidden, target = torch.ones(3, 4), torch.tensor([3, 6, 0])
    for tile in ((2, 2), (3, 10), (1, 4)):
        ours = score_rows(head, hidden, target, tile=tile)
        assert ours.top1.tolist() == [3, 3, 3]
        assert ours.logprob[0] == ours.logprob[1] == ours.top1_logprob[0]


def test_target_that_is_the_top1_gets_exactly_its_logprob():
    head, hidden, _ = make(rows=200)
    top1 = score_rows(head, hidden, torch.zeros(200, dtype=torch.int64)).top1
    ours = score_rows(head, hidden, top1, tile=(64, 100))
    assert torch.equal(ours.logprob, ours.top1_logprob)


@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 300.0, 1e4])
def test_no_magnitude_of_logits_overflows(magnitude):
    head, hidden, target = make()
    head = Head(head.weight * magnitude, None, 1.0, None, head.vocabulary)
    ours = score_rows(head, hidden, target, tile=(16, 100)).logprob
    wanted, _ = truth(head, hidden, target)
    assert torch.allclose(ours, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["hidden", "weight"])
def test_non_finite_input_is_never_hidden(bad, where):
    head, hidden, target = make()
    row = 5
    if where == "hidden":
        hidden[row, 3] = bad
        wrong = torch.zeros(len(hidden), dtype=torch.bool)
        wrong[row] = True
    else:
        head.weight[650, 3] = bad
        wrong = torch.ones(len(hidden), dtype=torch.bool)
    ours = score_rows(head, hidden, target, tile=(16, 100))
    finite = ours.logprob.isfinite() & ours.top1_logprob.isfinite()
    if where == "weight" and np.isinf(bad):
        # An infinite weight times a state is +inf in some rows and -inf, a zero probability, in
        # others: those with +inf have no distribution.
        wrong = (hidden[:, 3] * bad) > 0
        wrong |= target == 650
    assert torch.equal(~finite, wrong)


def test_no_rows_give_no_scores():
    head, hidden, target = make()
    ours = score_rows(head, hidden[:0], target[:0])
    assert len(ours.logprob) == len(ours.top1) == 0
