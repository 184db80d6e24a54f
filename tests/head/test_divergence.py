"""KL divergence in tiles against float64 over all logits."""

import itertools

import numpy as np
import pytest
import torch
from support.pair_logits import Given, gather, logits, on_cpu

from scoremode.head.divergence import PairSums
from scoremode.head.project import Head, HeadLogits, divergences, score_pairs, score_rows

VOCABULARY = 128_256
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs CUDA"))]  # fmt: skip


def truth(base, model):
    """KL(base‖model) and KL(model‖base), by the definition."""
    p, q = base.double().log_softmax(1), model.double().log_softmax(1)

    def divergence(a, b):
        terms = a.exp() * (a - b)
        return terms.masked_fill(a == -torch.inf, 0.0).sum(1)

    return divergence(p, q), divergence(q, p)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"noise": 0.01},
        {"noise": 3.0},
        {"offset": 100.0},
        {"offset": -100.0},
        {"sharpness": 12.0, "noise": 6.0},
        {"sharpness": 40.0, "noise": 40.0},
        {"entries": 1},
        {"entries": 2},
        {"rows": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("tile", [(50, 700), (64, 3000), (7, 13)], ids=str)
def test_equals_float64(settings, tile, device):
    base, model, target = logits(**settings)
    ours = on_cpu(gather(base, model, target, tile, device).finish())
    forward, reverse = truth(base, model)
    # Logits of 100 have 4e-6 between neighbours in float32, and their differences are no finer.
    spread = settings.get("sharpness", 3.0) + settings.get("noise", 0.3)
    limit = 3e-6 + 1e-6 * abs(settings.get("offset", 0.0)) + 1e-6 * spread
    assert (ours.kld - forward).abs().max() < limit
    assert (ours.kld_reverse - reverse).abs().max() < limit
    assert abs(float((ours.kld - forward).mean())) < limit / 3
    p, q = base.double().log_softmax(1), model.double().log_softmax(1)
    for scores, wanted in ((ours.base, p), (ours.model, q)):
        assert (scores.logprob - wanted.gather(1, target[:, None])[:, 0]).abs().max() < 1e-5
        assert torch.equal(scores.top1, wanted.argmax(1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("offset", [0.0, 100.0, -100.0])
@pytest.mark.parametrize("noise", [0.01, 0.1, 0.5])
def test_the_mean_is_right_to_1e_7_at_a_vocabulary_of_128k(noise, offset, device):
    """With the logits' own float32 rounding left out: both computations get the same."""
    base, model, target = logits(96, VOCABULARY, noise=noise, offset=offset)
    ours = on_cpu(gather(base, model, target, (512, 4096), device).finish())
    forward, reverse = truth(base, model)
    assert abs(float((ours.kld - forward).mean())) < 1e-7
    assert abs(float((ours.kld_reverse - reverse).mean())) < 1e-7


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("held", [None, 0], ids=["held", "made twice"])
@pytest.mark.parametrize("settings", [
    {}, {"noise": 1e-3}, {"noise": 3.0}, {"offset": 100.0}, {"sharpness": 40.0, "noise": 40.0},
    {"rows": 1}, {"entries": 1}, {"entries": 2}, {"rows": 150},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("tile", [(50, 700), (64, 3000), (7, 130)], ids=str)
def test_total_variation_equals_float64(settings, tile, held, device, monkeypatch):
    if held is not None:
        monkeypatch.setattr("scoremode.head.project._held_rows", lambda *_: (tile[0], False))
    base, model, target = logits(**settings)
    pair = [Given(z.to(device)) for z in (base, model)]
    ours = on_cpu(
        score_pairs(target.to(device), base.shape[1], base=pair[0], model=pair[1], tile=tile)
    )
    p, q = (z.double().softmax(1) for z in (base, model))
    wanted = (p - q).abs().sum(1) / 2
    offset = settings.get("offset", 0.0)
    assert (ours.tv - wanted).abs().max() < 1e-6 + 1e-6 * offset
    sums = on_cpu(gather(base, model, target, tile, device).finish())
    # Where rows are aligned, lanes of the kernel have other entries.
    assert torch.equal(sums.kld, ours.kld) or (device == "cuda" and not held)
    assert torch.allclose(sums.kld, ours.kld, atol=1e-6 + 1e-6 * offset)


def test_a_held_block_is_scored_like_one_that_is_made_twice(monkeypatch):
    """With two blocks held at a time, of five, the last one short."""
    base, model, target = logits(rows=230)
    found = []
    for rows, holds in ((100, True), (50, True), (50, False)):
        monkeypatch.setattr(
            "scoremode.head.project._held_rows", lambda *_, rows=rows, holds=holds: (rows, holds)
        )
        found.append(
            score_pairs(target, 3000, base=Given(base), model=Given(model), tile=(50, 700))
        )
    for other in found[1:]:
        for name in ("kld", "kld_reverse", "log_sum_model"):
            assert torch.equal(getattr(found[0], name), getattr(other, name))
    assert torch.equal(found[0].tv, found[1].tv)
    assert (found[0].tv - found[2].tv).abs().max() < 1e-7


def test_models_without_a_common_entry_have_a_total_variation_of_one():
    base, model, target = logits(3, 400)
    base[:, ::2] = model[:, 1::2] = -torch.inf
    ours = score_pairs(target, 400, base=Given(base), model=Given(model), tile=(2, 70))
    assert (ours.tv - 1).abs().max() < 1e-6


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"noise": 0.01},
        {"noise": 3.0},
        {"offset": 100.0},
        {"sharpness": 12.0, "noise": 6.0},
        {"entries": 2},
        {"entries": 40, "sharpness": 0.1},
    ],
    ids=str,
)
def test_one_less_the_total_variation_is_the_rate_at_which_drafts_are_accepted(settings):
    """Speculative sampling (Leviathan et al., 2023) with the model's drafts and the base as its target:
    100,000 tokens after one row."""
    base, model, target = logits(**{"rows": 1, **settings})
    entries, draws = base.shape[1], 100_000
    ours = score_pairs(target, entries, base=Given(base), model=Given(model), tile=(1, 700))
    p, q = (z[0].double().softmax(0).numpy() for z in (base, model))
    generator = np.random.default_rng(7)

    def drawn(weights, count):
        shares = np.cumsum(weights) / weights.sum()
        return shares.searchsorted(generator.random(count), side="right")

    drafts = drawn(q, draws)
    accepted = generator.random(draws) < p[drafts] / q[drafts]
    emitted = drafts.copy()
    emitted[~accepted] = drawn(np.maximum(p - q, 0), draws - accepted.sum())

    rate = 1 - float(ours.tv[0])
    assert abs(accepted.mean() - rate) < 3 * np.sqrt(rate * (1 - rate) / draws)

    def deviations(tokens):
        """How far their chi-square against p is above its mean, in standard deviations of it."""
        # Entries that are rarely drawn count as one.
        often = draws * p >= 5
        counts = np.bincount(tokens, minlength=entries)
        found = np.append(counts[often], counts[~often].sum())
        wanted = draws * np.append(p[often], p[~often].sum())
        terms = (found - wanted)[wanted > 0] ** 2 / wanted[wanted > 0]
        freedom = len(terms) - 1
        return (terms.sum() - freedom) / np.sqrt(2 * freedom)

    assert deviations(emitted) < 4
    if rate < 0.95:
        assert deviations(drafts) > 10


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tile", [(50, 700), (7, 13)], ids=str)
def test_a_model_against_itself_is_exactly_zero(tile, device):
    base, _, target = logits(sharpness=9.0)
    base[:, 17] = -torch.inf
    same = Given(base.to(device))
    apart = score_pairs(target.to(device), base.shape[1], base=same, model=same, tile=tile)
    assert apart.tv.eq(0).all()
    sums = gather(base, base, target, tile, device)
    for ours in (sums.finish(), PairSums.merged([sums.pack()]).finish()):
        assert ours.kld.eq(0).all()
        assert ours.kld_reverse.eq(0).all()
        assert torch.equal(ours.model.logprob, ours.base.logprob)


@pytest.mark.parametrize("offset", [0.0, 100.0, -100.0])
@pytest.mark.parametrize(
    "edges", [[0, 3000], [0, 1000, 3000], [0, 1, 2999, 3000], [0, 0, 1500, 3000]]
)
def test_shards_of_the_vocabulary_merge_in_order(edges, offset):
    base, model, target = logits(offset=offset)
    packed = []
    for low, high in itertools.pairwise(edges):
        sums = PairSums(len(base), base.device)
        if high > low:
            part = slice(low, high)
            rows = slice(0, len(base))
            sums.consume(rows, base[:, part].clone(), model[:, part].clone(), target, low)
        packed.append(sums.pack())
    ours = PairSums.merged(packed).finish()
    forward, reverse = truth(base, model)
    assert (ours.kld - forward).abs().max() < (2e-5 if offset else 1e-6)
    assert abs(float((ours.kld - forward).mean())) < (2e-6 if offset else 1e-7)
    assert abs(float((ours.kld_reverse - reverse).mean())) < (2e-6 if offset else 1e-7)
    same = PairSums.merged(
        [gather(base[:, :900], base[:, :900], target).pack(),
         gather(base[:, 900:], base[:, 900:], target).pack()]
    ).finish()  # fmt: skip
    assert same.kld.eq(0).all() and same.kld_reverse.eq(0).all()


@pytest.mark.parametrize("where", [0, 1500, 2999])
def test_entries_without_probability(where):
    base, model, target = logits()
    target = torch.full_like(target, 5)
    both = base.clone(), model.clone()
    for z in both:
        z[:, where] = -torch.inf
    forward, reverse = truth(*both)
    ours = gather(*both, target).finish()
    assert (ours.kld - forward).abs().max() < 1e-6
    assert (ours.kld_reverse - reverse).abs().max() < 1e-6
    # Where only the base rules an entry out, KL(base‖model) is finite, and the other way is not.
    ours = gather(both[0], model, target).finish()
    forward, _ = truth(both[0], model)
    assert (ours.kld - forward).abs().max() < 1e-6
    assert ours.kld_reverse.eq(torch.inf).all()
    ours = gather(base, both[1], target).finish()
    assert ours.kld.eq(torch.inf).all()
    assert ours.kld_reverse.isfinite().all()


def test_entries_without_probability_cost_no_digits():
    """Neither by themselves nor as a whole first tile."""
    base, model, target = logits(noise=0.001)
    base[:, :700] = model[:, :700] = -torch.inf
    target = torch.full_like(target, 900)
    ours = gather(base, model, target).finish()
    forward, reverse = truth(base, model)
    assert (ours.kld - forward).abs().max() < 1e-8
    assert (ours.kld_reverse - reverse).abs().max() < 1e-8


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_what_is_not_finite_stays_so(bad, side):
    pair = list(logits())
    pair[side][3, 100] = bad
    ours = gather(*pair).finish()
    assert not ours.kld[3].isfinite() and not ours.kld_reverse[3].isfinite()
    others = torch.arange(64) != 3
    assert ours.kld[others].isfinite().all()


def test_a_model_that_believes_in_nothing_of_the_base():
    """Differences far beyond what an exponential of float32 holds."""
    base, model, target = (
        torch.zeros(3, 400),
        torch.zeros(3, 400),
        torch.zeros(3, dtype=torch.int64),
    )
    base[:, 7], model[:, 300] = 200.0, 300.0
    base[1] += 50.0
    ours = gather(base, model, target, (2, 70)).finish()
    forward, reverse = truth(base, model)
    assert torch.allclose(ours.kld, forward, rtol=1e-6)
    assert torch.allclose(ours.kld_reverse, reverse, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tile", [(7, 13), (512, 4096)], ids=str)
def test_heads_of_two_models(dtype, tile):
    """Each with its own width, softcap, scale and bias; the model's scores are score_rows' own."""
    generator = torch.Generator().manual_seed(2)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    base = Head((random(1000, 24) / 2).to(dtype), None, 1.0, None, 900)
    model = Head((random(900, 16) / 2).to(dtype), random(900), 0.5, 4.0, 900)
    states = random(70, 24).to(dtype), random(70, 16).to(dtype)
    target = torch.randint(0, 900, (70,), generator=generator)
    ours = score_pairs(
        target,
        900,
        model=HeadLogits(model, states[1], tile),
        base=HeadLogits(base, states[0], tile),
        tile=tile,
    )
    alone = score_rows(model, states[1], target, tile=tile)
    assert torch.equal(ours.model.logprob, alone.logprob)
    assert torch.equal(ours.model.top1, alone.top1)
    assert torch.equal(ours.base.logprob, score_rows(base, states[0], target, tile=tile).logprob)
    z_base = (states[0].double() @ base.weight.double().T)[:, :900]
    z_model = states[1].double() @ model.weight.double().T + model.bias.double()
    z_model = 4.0 * torch.tanh(z_model * 0.5 / 4.0)
    forward, reverse = truth(z_base, z_model)
    assert (ours.kld - forward).abs().max() < 5e-6
    assert (ours.kld_reverse - reverse).abs().max() < 5e-6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("holds", [True, False])
def test_several_models_at_once_have_the_bits_of_one(dtype, device, holds, monkeypatch):
    """Of two heads, each with states of its own, in tiles that fill neither rows nor entries."""
    monkeypatch.setattr("scoremode.head.project._held_rows", lambda *_: (32, holds))
    torch.manual_seed(0)
    heads = [
        Head((3 * torch.randn(901, 32)).to(device, dtype), None, scale, cap, 895)
        for scale, cap in ((0.25, None), (0.3, 5.0))
    ]
    base, *states = (torch.randn(70, 32).to(device, dtype) for _ in range(5))
    target, tile = torch.randint(0, 895, (70,)).to(device), (32, 300)

    def logits(head, hidden):
        return HeadLogits(head, hidden, tile)

    first = [logits(head, states[0]) for head in heads]
    ours = divergences(
        target,
        895,
        base=logits(heads[0], base),
        models=[first[i % 2].beside(hidden) for i, hidden in enumerate(states)],
        tile=tile,
    )
    for i, (found, hidden) in enumerate(zip(ours, states, strict=True)):
        pair = score_pairs(
            target, 895, model=logits(heads[i % 2], hidden), base=logits(heads[0], base), tile=tile
        )
        assert torch.equal(found.kld, pair.kld) and found.kld.min() > 0
        assert torch.equal(found.tv, pair.tv) and found.tv.min() > 0
