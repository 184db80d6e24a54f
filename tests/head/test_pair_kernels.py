"""The kernels against float64 and against their twins in plain torch: on CUDA or interpreted, small."""

import itertools

import pytest
import torch
from support.pair_logits import gather, logits, on_cpu

from scoremode.head.divergence import PairSums
from scoremode.head.project import Head, HeadLogits, score_pairs, score_rows

triton = pytest.importorskip("triton", reason="needs Triton")
import triton.language as tl  # noqa: E402

from scoremode.head.pair_kernels import expm1  # noqa: E402

# Numpy, which interprets, says what no GPU does.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ROWS = 2


def few(entries=2500, **settings):
    """Logits whose tiles of 2100 have a whole chunk and a part of one."""
    return logits(ROWS, entries, **settings)


def divergences(base, model):
    """KL(base‖model) and KL(model‖base), by the definition."""
    p, q = base.double().log_softmax(1), model.double().log_softmax(1)

    def divergence(a, b):
        return (a.exp() * (a - b)).masked_fill(a == -torch.inf, 0.0).sum(1)

    return divergence(p, q), divergence(q, p)


def run(base, model, target, device, tile=(2, 2100)):
    return on_cpu(gather(base, model, target, tile, device).finish())


@pytest.mark.parametrize(
    "settings",
    [{}, {"noise": 0.01}, {"noise": 3.0}, {"offset": 100.0}, {"offset": -100.0},
     {"sharpness": 40.0, "noise": 40.0}, {"entries": 1}],
    ids=str,
)  # fmt: skip
def test_pairs_equal_float64(settings, kernels):
    base, model, target = few(**settings)
    ours = run(base, model, target, kernels)
    forward, reverse = divergences(base, model)
    spread = settings.get("sharpness", 3.0) + settings.get("noise", 0.3)
    limit = 3e-6 + 1e-6 * abs(settings.get("offset", 0.0)) + 1e-6 * spread
    assert (ours.kld - forward).abs().max() < limit
    assert (ours.kld_reverse - reverse).abs().max() < limit
    for scores, z in ((ours.base, base), (ours.model, model)):
        wanted = z.double().log_softmax(1)
        assert (scores.logprob - wanted.gather(1, target[:, None])[:, 0]).abs().max() < 1e-5
        assert torch.equal(scores.top1, wanted.argmax(1))


@pytest.mark.parametrize("offset", [0.0, 64.0, -96.0])
@pytest.mark.parametrize("noise", [1e-3, 0.5])
def test_small_divergences_keep_their_digits(noise, offset, kernels):
    base, model, target = few(noise=noise, offset=offset)
    ours = run(base, model, target, kernels)
    for found, wanted in zip((ours.kld, ours.kld_reverse), divergences(base, model), strict=True):
        assert ((found - wanted).abs() < 1e-8 + 2e-5 * wanted).all()


@pytest.mark.parametrize(
    "settings",
    [{}, {"noise": 1e-3}, {"noise": 3.0}, {"offset": 100.0}, {"sharpness": 40.0, "noise": 40.0},
     {"entries": 1}],
    ids=str,
)  # fmt: skip
def test_total_variation_equals_float64(settings, kernels):
    base, model, target = few(**settings)
    sums = gather(base, model, target, (2, 2100), kernels)
    for begin in range(0, base.shape[1], 2100):
        part = slice(begin, begin + 2100)
        sums.vary(slice(0, len(base)), *(z[:, part].clone().to(kernels) for z in (base, model)))
    p, q = (z.double().softmax(1) for z in (base, model))
    apart = on_cpu(sums.finish()).tv - (p - q).abs().sum(1) / 2
    assert apart.abs().max() < 1e-6 + 1e-6 * settings.get("offset", 0.0)


def test_a_model_against_itself_is_exactly_zero(kernels):
    base, _, target = few(sharpness=9.0)
    base[:, 17] = -torch.inf
    sums = gather(base, base, target, (2, 2100), kernels)
    sums.vary(slice(0, len(base)), base.to(kernels), base.to(kernels))
    assert sums.finish().tv.eq(0).all()
    for ours in (sums.finish(), PairSums.merged([sums.pack()]).finish()):
        assert ours.kld.eq(0).all() and ours.kld_reverse.eq(0).all()
        assert torch.equal(ours.model.logprob, ours.base.logprob)


@pytest.mark.parametrize(
    ("where", "offset"),
    [(slice(0, 1), 0.0), (slice(0, 2100), 100.0), (slice(2499, 2500), 0.0)],
    ids=str,
)
def test_entries_without_probability(where, offset, kernels):
    base, model, target = few(offset=offset)
    base[:, 2200], model[:, 2200] = 9.0, 9.0 + offset
    target = torch.full_like(target, 2300)
    both = base.clone(), model.clone()
    for z in both:
        z[:, where] = -torch.inf
    limit = 1e-6 + offset * 1e-7
    forward, reverse = divergences(*both)
    ours = run(*both, target, kernels)
    assert (ours.kld - forward).abs().max() < limit
    assert (ours.kld_reverse - reverse).abs().max() < limit
    # What only the base rules out makes the other way infinite, and the other way round.
    ours = run(both[0], model, target, kernels)
    assert (ours.kld - divergences(both[0], model)[0]).abs().max() < 3 * limit
    assert ours.kld_reverse.eq(torch.inf).all()
    ours = run(base, both[1], target, kernels)
    assert ours.kld.eq(torch.inf).all()
    assert (ours.kld_reverse - divergences(base, both[1])[1]).abs().max() < 3 * limit


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_what_is_not_finite_stays_so(bad, side, kernels):
    pair = list(few())
    pair[side][1, 2200] = bad
    ours = run(*pair, kernels)
    assert not ours.kld[1].isfinite() and not ours.kld_reverse[1].isfinite()
    assert ours.kld[0].isfinite() and ours.kld_reverse[0].isfinite()


def test_a_model_that_believes_in_nothing_of_the_base(kernels):
    base, model = torch.zeros(ROWS, 2500), torch.zeros(ROWS, 2500)
    base[:, 7], model[:, 2300] = 200.0, 300.0
    base[1] += 50.0
    ours = run(base, model, torch.zeros(ROWS, dtype=torch.int64), kernels)
    forward, reverse = divergences(base, model)
    assert torch.allclose(ours.kld, forward, rtol=1e-6)
    assert torch.allclose(ours.kld_reverse, reverse, rtol=1e-6)


def test_what_only_the_base_rules_out_is_not_forgotten(kernels):
    """The model has half of its mass where the base has none, and all that the base has comes later, in
    the same lane and so far above that nothing before it counts."""
    base, model = torch.zeros(ROWS, 2500), torch.zeros(ROWS, 2500)
    base[:, 5], model[:, 5] = -torch.inf, 200.0
    base[:, 5 + 2048], model[:, 5 + 2048] = 200.0, 200.0
    ours = run(base, model, torch.zeros(ROWS, dtype=torch.int64), kernels, (2, 2496))
    assert torch.allclose(ours.kld, divergences(base, model)[0], rtol=1e-6)
    assert ours.kld_reverse.eq(torch.inf).all()


def test_shards_of_the_vocabulary_merge_in_order(kernels):
    base, model, target = (x.to(kernels) for x in few(offset=5.0))
    packed = []
    for low, high in itertools.pairwise([0, 0, 1, 2300, 2500]):
        sums = PairSums(ROWS, kernels)
        if high > low:
            part = slice(low, high)
            sums.consume(slice(0, ROWS), base[:, part], model[:, part], target, low)
        packed.append(sums.pack())
    ours = PairSums.merged(packed).finish()
    forward, reverse = divergences(base, model)
    assert (ours.kld - forward).abs().max() < 3e-6
    assert (ours.kld_reverse - reverse).abs().max() < 3e-6


def test_kernel_and_twin_differ_by_rounding_only(kernels, monkeypatch):
    given = few()
    ours = run(*given, kernels)
    for module in ("rows", "divergence", "project"):
        monkeypatch.setattr(f"scoremode.head.{module}.has_kernels", lambda device: False)
    twin = run(*given, torch.device("cpu"))
    for name in ("kld", "kld_reverse", "log_sum_base", "log_sum_model"):
        assert (getattr(ours, name) - getattr(twin, name)).abs().max() < 1e-6


def test_a_row_has_the_same_bits_in_any_company(kernels):
    # All rows aligned, as those of `HeadLogits` are: others are shared out to other lanes.
    base, model, target = few(2560)
    wanted = run(base, model, target, kernels, (2, 2112))
    for again in (
        run(base, model, target, kernels, (2, 2112)),
        run(base, model, target, kernels, (1, 2112)),
    ):
        for name in ("kld", "kld_reverse", "log_sum_base", "log_sum_model"):
            assert torch.equal(getattr(again, name), getattr(wanted, name))
        assert torch.equal(again.model.logprob, wanted.model.logprob)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scores_of_heads(dtype, kernels):
    """An odd vocabulary, a bias and a cap; a model's scores are the same bits with a base beside it."""
    generator = torch.Generator().manual_seed(2)

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(kernels)

    model = Head((random(2301, 16) / 2).to(dtype), random(2301), 0.5, 4.0, 2301)
    base = Head((random(2400, 24) / 2).to(dtype), None, 1.0, None, 2301)
    states = random(3, 24).to(dtype), random(3, 16).to(dtype)
    target = torch.tensor([2300, 2099, 2100]).to(kernels)
    tile = (2, 2100)
    alone = score_rows(model, states[1], target, tile=tile)
    assert alone.logprob.device.type == kernels.type
    ours = score_pairs(
        target,
        2301,
        model=HeadLogits(model, states[1], tile),
        base=HeadLogits(base, states[0], tile),
        tile=tile,
    )
    assert torch.equal(ours.model.logprob, alone.logprob)
    assert torch.equal(ours.model.top1_logprob, alone.top1_logprob)
    assert torch.equal(ours.model.top1, alone.top1)
    z_base = (states[0].double() @ base.weight.double().T)[:, :2301]
    z_model = states[1].double() @ model.weight.double().T + model.bias.double()
    z_model = 4.0 * torch.tanh(z_model * 0.5 / 4.0)
    forward, reverse = divergences(z_base, z_model)
    assert (ours.kld - forward).abs().max() < 5e-6
    assert (ours.kld_reverse - reverse).abs().max() < 5e-6
    wanted = z_model.log_softmax(1).gather(1, target[:, None])[:, 0]
    assert (ours.model.logprob - wanted).abs().max() < 5e-6


@triton.jit
def _expm1_of(x, out, n: tl.constexpr):
    places = tl.arange(0, n)
    tl.store(out + places, expm1(tl.load(x + places)))


def test_expm1_keeps_relative_precision(kernels):
    parts = [
        torch.linspace(-1, 1, 4091), torch.linspace(-30, 80, 4096), torch.logspace(-20, -0.31, 4096),
        -torch.logspace(-20, -0.31, 4096),
        torch.tensor([0.0, -0.0, -torch.inf, torch.inf, 1000.0]),
    ]  # fmt: skip
    x = torch.cat(parts).to(kernels)
    out = torch.empty_like(x)
    _expm1_of[(1,)](x, out, len(x))
    wanted = x.double().expm1()
    is_finite = wanted.float().isfinite() & (wanted != 0)
    error = (out[is_finite].double() / wanted[is_finite] - 1).abs()
    # A rounding of the argument costs a large exponential more.
    assert (error < 4e-7 + 1.3e-7 * x[is_finite].abs()).all()
    assert out[-5:].tolist() == [0.0, 0.0, -1.0, torch.inf, torch.inf]
