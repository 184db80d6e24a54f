"""Bounds of what lies between a base and a model whose likeliest ids alone are known."""

import numpy as np
import pytest
import torch

from scoremode.head.bounds import SLACK, bound_rows
from scoremode.head.project import Head, HeadLogits

ROWS, WIDTH, ENTRIES = 40, 16, 300
TILE = 7, 64


@pytest.fixture(scope="module")
def pair():
    """A base's states and head, and float64 log-probabilities of it and of a model that is near."""
    torch.manual_seed(1)
    head = Head(torch.randn(ENTRIES, WIDTH), None, 1.0, None, ENTRIES)
    hidden = torch.randn(ROWS, WIDTH)
    base = (hidden @ head.weight.T).double()
    model = base + 0.3 * torch.randn(ROWS, ENTRIES, dtype=torch.float64)
    return head, hidden, base.log_softmax(1), model.log_softmax(1)


def bounds(pair, top, *, tile=TILE):
    """The bounds from the model's `top` likeliest ids, as float32 gives them, and each row's target."""
    head, hidden, _, model = pair
    target = torch.arange(ROWS) * 7 % ENTRIES
    ids = model.topk(top).indices
    ids = torch.cat([ids, torch.where((ids == target[:, None]).any(1), -1, target)[:, None]], 1)
    known = torch.where(ids < 0, -torch.inf, model.gather(1, ids.clamp_min(0)).float().double())
    return bound_rows(target, ENTRIES, HeadLogits(head, hidden, tile), ids, known, tile=tile)


@pytest.mark.parametrize("top", [1, 5, 20, 100, ENTRIES])
def test_bounds_hold_in_every_row_and_more_ids_never_loosen_them(pair, top):
    _, _, base, model = pair
    kld = (base.exp() * (base - model)).sum(1)
    tv = (base.exp() - model.exp()).abs().sum(1) / 2
    found, fewer = bounds(pair, top), bounds(pair, max(1, top // 2))
    assert (found.kld_least <= kld).all() and (found.kld_least >= 0).all()
    assert (found.tv_least <= tv).all() and (tv <= found.tv_most).all()
    assert (found.kld_least >= fewer.kld_least - SLACK).all()
    assert (found.tv_least >= fewer.tv_least - SLACK).all()
    assert (found.tv_most <= fewer.tv_most + SLACK).all()
    if top == ENTRIES:
        # All is known, and rounding alone is allowed for.
        torch.testing.assert_close(found.kld_least, kld, rtol=0, atol=1e-5)
        torch.testing.assert_close(found.tv_least, tv, rtol=0, atol=1e-5)
        torch.testing.assert_close(found.tv_most, tv, rtol=0, atol=2e-5)


def test_a_bound_is_the_divergence_of_the_merged_distributions(pair):
    """Float64 by hand: the ids that are known, and one event of all others."""
    _, _, base, model = pair
    found = bounds(pair, 3)
    for row in range(ROWS):
        target = row * 7 % ENTRIES
        ids = list(dict.fromkeys([*model[row].topk(3).indices.tolist(), target]))
        p, q = (x[row, ids].exp().numpy() for x in (base, model))
        p, q = (np.append(x, 1 - x.sum()) for x in (p, q))
        assert found.kld_least[row].item() == pytest.approx((p * np.log(p / q)).sum(), abs=2e-5)
        assert found.tv_least[row].item() == pytest.approx(np.abs(p - q).sum() / 2, abs=1e-5)
        known = np.abs(p[:-1] - q[:-1]).sum() / 2 + (p[-1] + q[-1]) / 2
        assert found.tv_most[row].item() == pytest.approx(known, abs=1e-5)


def test_the_base_is_scored_as_anywhere(pair):
    base, found = pair[2], bounds(pair, 5).base
    target = torch.arange(ROWS) * 7 % ENTRIES
    own = base.gather(1, target[:, None])[:, 0]
    torch.testing.assert_close(found.logprob, own, rtol=0, atol=1e-5)
    assert torch.equal(found.top1, base.argmax(1))


def test_tiles_change_nothing(pair):
    one, two = bounds(pair, 5), bounds(pair, 5, tile=(64, 512))
    for name in ("kld_least", "tv_least", "tv_most"):
        torch.testing.assert_close(getattr(one, name), getattr(two, name), rtol=0, atol=1e-6)


def test_equal_distributions_have_no_bound_above_0(pair):
    head, hidden, base, _ = pair
    found = bounds((head, hidden, base, base), 20)
    assert (found.kld_least == 0).all() and (found.tv_least < 1e-6).all()


def test_what_the_model_finds_impossible_is_infinitely_far(pair):
    head, hidden, _, _ = pair
    ids, known = torch.tensor([[3, 5]]), torch.tensor([[-torch.inf, 0.0]], dtype=torch.float64)
    logits = HeadLogits(head, hidden[:1], TILE)
    found = bound_rows(torch.tensor([3]), ENTRIES, logits, ids, known, tile=TILE)
    assert found.kld_least.isinf().all() and 0 < found.tv_least.item() <= 1


def test_what_adds_up_to_more_than_1_is_no_distribution(pair):
    head, hidden, _, _ = pair
    ids = torch.tensor([[3, 5]])
    known = torch.tensor([[0.7, 0.4]], dtype=torch.float64).log()
    found = bound_rows(
        torch.tensor([3]), ENTRIES, HeadLogits(head, hidden[:1], TILE), ids, known, tile=TILE
    )
    assert found.kld_least.isnan().all() and found.tv_most.isnan().all()


def test_an_id_that_the_base_lacks_has_no_probability_there(pair):
    head, hidden, _, _ = pair
    ids, known = torch.tensor([[ENTRIES + 9]]), torch.tensor([[0.5]], dtype=torch.float64).log()
    found = bound_rows(
        torch.tensor([3]), ENTRIES, HeadLogits(head, hidden[:1], TILE), ids, known, tile=TILE
    )
    # The base has all of its probability in the other half.
    assert found.kld_least.item() == pytest.approx(np.log(2), abs=1e-4)
    assert found.tv_least.item() == pytest.approx(0.5, abs=1e-4)
