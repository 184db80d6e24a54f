"""The second pass against the definitions, in float64 over all logits."""

import itertools
import math

import pytest
import torch
from support.pair_logits import gather, logits

from scoremode.head.full import TOP, FullSums


def second_pass(base, model, target, tile=(50, 700)):
    scores = gather(base, model, target, tile).finish()
    sums = FullSums(scores)
    rows, entries = tile
    for begin in range(0, base.shape[1], entries):
        for low in range(0, len(base), rows):
            block, part = slice(low, min(low + rows, len(base))), slice(begin, begin + entries)
            sums.consume(block, base[block, part], model[block, part], begin)
    return sums


def truth(base, model):
    p, q = base.double().softmax(1), model.double().softmax(1)
    m = (p + q) / 2

    def divergence(a):
        return torch.where(a > 0, a * (a / m).log(), 0.0).sum(1)

    return (divergence(p) + divergence(q)) / 2


def top(z, k):
    """By the words of the definition: the larger logit first, then the smaller id."""
    return [sorted(range(z.shape[1]), key=lambda i: (-row[i], i))[:k] for row in z.tolist()]


@pytest.mark.parametrize(
    "settings",
    [{}, {"noise": 0.01}, {"noise": 4.0}, {"offset": 100.0}, {"sharpness": 30.0, "noise": 30.0},
     {"entries": 1}, {"entries": 7}, {"rows": 1}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("tile", [(50, 700), (7, 130)], ids=str)
def test_equals_the_definitions(settings, tile):
    base, model, target = logits(**{"rows": 40, "entries": 900} | settings)
    # Ties, as logits rounded to bf16 have them.
    base, model = (base * 4).round() / 4, (model * 4).round() / 4
    ours = second_pass(base, model, target, tile).finish()
    wanted = truth(base, model)
    assert (ours.jsd - wanted).abs().max() < 1e-6
    assert (ours.jsd <= math.log(2) + 1e-6).all() and (ours.jsd >= 0).all()
    for z, entropy in ((base, ours.base_entropy), (model, ours.model_entropy)):
        by_torch = torch.distributions.Categorical(logits=z.double()).entropy()
        assert (entropy - by_torch).abs().max() < 1e-5 and (entropy >= 0).all()
    tops = top(base, TOP), top(model, TOP)
    for i, (a, b) in enumerate(zip(*tops, strict=True)):
        sets = sum((set(a[:k]) == set(b[:k])) << (k - 1) for k in range(1, TOP + 1))
        in_order = next((k for k in range(len(a)) if a[k] != b[k]), TOP)
        assert int(ours.topk_sets[i]) == sets
        assert int(ours.topk_order[i]) == in_order


def test_a_model_against_itself():
    base, _, target = logits()
    base[:, 4] = -torch.inf
    ours = second_pass(base, base, target).finish()
    assert ours.jsd.eq(0).all()
    assert ours.topk_sets.eq(2**TOP - 1).all() and ours.topk_order.eq(TOP).all()


def test_models_that_share_nothing():
    base, model = torch.full((1, 40), -torch.inf), torch.full((1, 40), -torch.inf)
    base[:, :20], model[:, 20:] = 0.0, 1.0
    ours = second_pass(base, model, torch.zeros(1, dtype=torch.int64)).finish()
    assert ours.jsd.item() == pytest.approx(math.log(2), abs=1e-12)
    assert ours.topk_sets.item() == 0 and ours.topk_order.item() == 0
    # Entries without probability add nothing.
    assert ours.base_entropy.item() == pytest.approx(math.log(20), abs=1e-12)
    assert ours.model_entropy.item() == pytest.approx(math.log(20), abs=1e-6)


def test_a_sure_prediction_has_an_entropy_of_0():
    z = torch.full((1, 40), -torch.inf)
    z[0, 3] = 2.0
    ours = second_pass(z, z, torch.zeros(1, dtype=torch.int64)).finish()
    assert str(ours.base_entropy.item()) == "0.0"


def test_entries_that_one_model_masks_by_the_least_float():
    base, model, target = logits(rows=8, entries=900)
    base[:, 300:] = torch.finfo(torch.float32).min
    ours = second_pass(base, model, target).finish()
    assert (ours.jsd - truth(base, model)).abs().max() < 1e-6


def test_signed_zeros_are_equal():
    base = torch.tensor([[0.0, -0.0, 0.0, -1.0]])
    model = torch.tensor([[-0.0, 0.0, 0.0, -1.0]])
    ours = second_pass(base, model, torch.zeros(1, dtype=torch.int64)).finish()
    assert ours.topk_order.item() == TOP


@pytest.mark.parametrize("edges", [[0, 900], [0, 300, 900], [0, 4, 890, 900]])
def test_shards_of_the_vocabulary_merge_in_order(edges):
    base, model, target = logits(rows=30, entries=900)
    scores = gather(base, model, target).finish()
    parts = []
    for low, high in itertools.pairwise(edges):
        sums = FullSums(scores)
        sums.consume(slice(0, 30), base[:, low:high], model[:, low:high], low)
        parts.append(sums.pack())
    merged = FullSums(scores)
    merged.merge_packed(parts)
    ours, whole = merged.finish(), second_pass(base, model, target).finish()
    # A sum that `pack` forgets would be the last rank's alone.
    for name, column in vars(whole).items():
        near = 1e-12 if column.is_floating_point() else 0
        torch.testing.assert_close(vars(ours)[name], column, rtol=0, atol=near, msg=name)
