"""Made Scores of a base and a model of it, from distributions that are there in full."""

import math

import numpy as np

from scoremode.results.scores import Comparison, Scores
from scoremode.results.statistics import bootstrap

VOCABULARY = 12


def log_softmax(z: np.ndarray) -> np.ndarray:
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def made(
    index: np.ndarray,
    *,
    window: np.ndarray | None = None,
    position: np.ndarray | None = None,
    noise: float = 0.1,
    seed: int = 0,
    full: bool = True,
    base_seed: int = 0,
) -> Scores:
    """Scores at the places `index` of a stream, the model's logits being the base's and `noise`.

    The base's predictions depend on `base_seed` and the place alone, the noise on `seed` and the
    row. Text is hard or easy over stretches of 50 tokens.
    """
    n, places = len(index), int(index.max()) + 1
    rng = np.random.default_rng(base_seed)
    level = np.repeat(rng.uniform(0.2, 4, places // 50 + 1), 50)[:places, None]
    z_base = (rng.normal(size=(places, VOCABULARY)) * level)[index]
    target = np.array([rng.integers(VOCABULARY) for _ in range(places)])[index]
    likely = (rng.random(places) < 0.6)[index]
    target = np.where(likely, z_base.argmax(1), target)
    z = z_base + noise * np.random.default_rng(seed + 1).normal(size=z_base.shape)
    lp, lq = log_softmax(z_base), log_softmax(z)
    p, q, rows = np.exp(lp), np.exp(lq), np.arange(n)
    further = {}
    if full:
        a, b = (np.argsort(-x, axis=1, kind="stable")[:, :10] for x in (lp, lq))
        sets = sum((np.sort(a[:, :k]) == np.sort(b[:, :k])).all(1) << (k - 1) for k in range(1, 11))
        order = (a == b).cumprod(1).sum(1)
        further = {
            # Exactly 0 for equal distributions, as an engine's.
            "jsd": -(p * np.log((1 + q / p) / 2) + q * np.log((1 + p / q) / 2)).sum(1) / 2,
            "base_entropy": -(p * lp).sum(1),
            "model_entropy": -(q * lq).sum(1),
            "topk_sets": np.asarray(sets, np.int16),
            "topk_order": order.astype(np.int8),
        }
    against = Comparison(
        lp[rows, target],
        lp.argmax(1).astype(np.int32),
        lp.max(1),
        (p * (lp - lq)).sum(1),
        (q * (lq - lp)).sum(1),
        np.abs(p - q).sum(1) / 2,
        **further,
    )
    first = np.zeros(n) if window is None else window
    second = np.arange(n) + 1 if position is None else position
    ints = [np.asarray(x).astype(np.int32) for x in (first, second, index, target)]
    return Scores(*ints, lq[rows, target], lq.argmax(1).astype(np.int32), lq.max(1), against)


def overlapping(tokens: int, length: int, stride: int) -> dict[str, np.ndarray]:
    """`window`, `position` and `index` of all targets of windows that lie over each other."""
    starts = range(0, tokens - length + 1, stride)
    rows = [(w, t, start + t) for w, start in enumerate(starts) for t in range(1, length)]
    return dict(zip(("window", "position", "index"), np.array(rows).T, strict=True))


def interval_by_hand(top, bottom, index, length, then=float):
    """Σ top / Σ bottom when blocks of the text are drawn again, one resample after the other."""
    blocks: dict[int, list[float]] = {}
    for t, b, i in zip(top, bottom, index, strict=True):
        sums = blocks.setdefault(int(i) // length, [0.0, 0.0])
        sums[0] += t
        sums[1] += b
    table = np.array([blocks[k] for k in sorted(blocks) if blocks[k][1] > 0])
    rng = np.random.default_rng(20_481)
    drawn = rng.integers(len(table), size=(10_000, len(table)))
    ratios = sorted(then(table[d, 0].sum() / table[d, 1].sum()) for d in drawn)
    tail = bootstrap._expanded_tail(len(table))
    ends = []
    for share in (tail, 1 - tail):
        place = share * 9999
        low = math.floor(place)
        ends.append(ratios[low] + (place - low) * (ratios[low + 1] - ratios[low]))
    return ends


def student_by_integration(v: int) -> float:
    """The 97.5 % quantile of Student's distribution of `v` degrees of freedom, by its density."""
    x = np.linspace(0, 12, 1_200_001)
    scale = math.exp(math.lgamma((v + 1) / 2) - math.lgamma(v / 2)) / math.sqrt(v * math.pi)
    density = scale * (1 + x**2 / v) ** (-(v + 1) / 2)
    area = np.concatenate([[0], ((density[1:] + density[:-1]) / 2 * np.diff(x)).cumsum()])
    return float(np.interp(0.475, area, x))
