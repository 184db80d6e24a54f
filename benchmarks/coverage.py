"""Coverage of the 95 % intervals, by simulation: how often the interval of a text holds the truth.

    python benchmarks/coverage.py [--texts 400] [--data DIR] [--series NAME …] [--windows SPEC …]
    python benchmarks/coverage.py --verdicts [--texts 400] [--series NAME …] [--windows SPEC …]
    python benchmarks/coverage.py --chats [--texts 2000]

Every text is drawn from a process whose mean is known, cut into windows, and given to the very code
that makes a record's intervals. Beside it, what blocks of one window cover, which was the rule before.

- `articles`: nll of stories260K on WikiText-2, token by token, as measured; a text is articles drawn
  with replacement from all 62, 815,000 tokens. Needs DIR (SCOREMODE_DATA).
- `ar`, `ma`: an autoregression (0.99) and a moving average (over 300 tokens) under exponential noise.
- `documents`: every document has a level of its own (standard deviation 0.4 nats, lengths log-normal
  with a mean of 1,000), exponential noise; `long-documents`: the same with a mean of 4,500.
- `heavy`: log-normal values (sigma 1.6) times a document's log-normal level, as KLD is: a mean that few
  tokens make.

Texts of the last five are of 300,000 tokens. In a window tokens are easier the more precede them.

`--verdicts`: how often these texts give a wrong verdict (`results.statistics.verdict`), and how
often the one that they should:

- *false worse*: of a model that is as good as its base (of a KLD: whose KLD is the margin).
- *false equivalent*: of a model whose distance is the margin.
- *found*: `worse`, of a model as far off as the median text says it can tell with 80 %.
- *decided*: of a model half a margin off, by texts four times as long as those that ask for as much.

`--chats`: whole conversations instead, log-normally long (300 tokens, sigma 0.7), each with a level of
its own: `nll` normal (2.5, 0.4), the log of a `ratio` normal (0.02, 0.03), `nll` and `kld` log-normal
(sigma 1), the last under three times the noise. Beside it what the percentiles alone cover, which was
the rule before, how much wider both ends together are: the median, and one text in twenty; how often
the KLD of the margin is found worse, and equivalent.
"""

import argparse
import math
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scoremode.results.record.section import Metric
from scoremode.results.statistics.blocks import block_length
from scoremode.results.statistics.bootstrap import clusters, percentile_interval
from scoremode.results.statistics.means import Blocks, Mean, estimates
from scoremode.results.statistics.verdict import Verdict, verdicts

Draw = Callable[[np.random.Generator], np.ndarray]
LENGTH = 300_000
ARTICLES_LENGTH = 815_000
STRETCH = 64


def autoregression(rng: np.random.Generator, phi: float = 0.99) -> np.ndarray:
    memory = 2048
    drawn, kernel = rng.standard_normal(LENGTH + memory), phi ** np.arange(memory)
    size = len(drawn) + memory
    both = np.fft.irfft(np.fft.rfft(drawn, size) * np.fft.rfft(kernel, size), size)
    return 0.1 * both[memory : memory + LENGTH] + rng.exponential(2.5, LENGTH) - 2.5


def moving_average(rng: np.random.Generator, span: int = 300) -> np.ndarray:
    sums = np.concatenate([[0], rng.standard_normal(LENGTH + span).cumsum()])
    return (sums[span:] - sums[:-span])[:LENGTH] / span**0.5 + rng.exponential(2.5, LENGTH) - 2.5


def documents(mean: float) -> Draw:
    def draw(rng: np.random.Generator) -> np.ndarray:
        count = int(4 * LENGTH / mean) + 100
        lengths = 1 + rng.lognormal(math.log(mean) - 0.5, 1, count).astype(np.int64)
        level = np.repeat(rng.normal(0, 0.4, count), lengths)
        begin = rng.integers(lengths[:10].sum())
        return level[begin : begin + LENGTH] + rng.exponential(2.5, LENGTH) - 2.5

    return draw


def heavy(rng: np.random.Generator, mean: float = 1000, sigma: float = 1.6) -> np.ndarray:
    lengths = rng.geometric(1 / mean, int(2 * LENGTH / mean) + 100)
    level = np.repeat(rng.lognormal(-0.125, 0.5, len(lengths)), lengths)
    begin = rng.integers(lengths[:10].sum())
    values = np.exp(rng.normal(-sigma * sigma / 2, sigma, LENGTH))
    return level[begin : begin + LENGTH] * values - 1


def articles(data: Path) -> Draw:
    """Texts of WikiText's articles, their nll measured now."""
    nll, starts = _measured(data)
    parts = [nll[a:b] for a, b in zip(starts, [*starts[1:], len(nll)], strict=True)]
    lengths = np.array([len(part) for part in parts])
    mean = np.concatenate(parts).mean()

    def draw(rng: np.random.Generator) -> np.ndarray:
        # In the middle of an article, a long one more likely: then every place is like every other.
        first = rng.choice(len(parts), p=lengths / lengths.sum())
        drawn, size = [parts[first][rng.integers(lengths[first]) :]], 0
        while size < ARTICLES_LENGTH:
            drawn.append(parts[rng.integers(len(parts))])
            size += len(drawn[-1])
        return np.concatenate(drawn)[:ARTICLES_LENGTH] - mean

    return draw


def _measured(data: Path) -> tuple[np.ndarray, np.ndarray]:
    """float64: the nll of every token of WikiText-2; int: where its articles begin."""
    from tokenizers import Tokenizer

    from scoremode.engines.torch.options import TorchOptions
    from scoremode.results.folders.store import read_scores
    from scoremode.runs.measure import measure
    from scoremode.runs.request import Request
    from scoremode.text.corpus import from_dataset_file
    from scoremode.text.protocol import preset

    model = data / "stories260K"
    corpus = from_dataset_file(data / "wikitext2" / "wiki.test.raw", "text")
    protocol = preset("disjoint").override(context_length=512)
    with tempfile.TemporaryDirectory() as folder:
        request = Request(str(model), corpus, protocol, TorchOptions(device="cpu"), Path(folder))
        scores = read_scores(measure(request).folder)
    nll = np.full(int(scores.index.max()) + 1, scores.nll.mean())
    nll[scores.index] = scores.nll
    text = corpus.text(protocol.text)
    offsets = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).offsets
    heads = [found.start() for found in re.finditer(r"^ = [^=].*[^=] = $", text, re.M)]
    return nll, np.searchsorted([begin for begin, _ in offsets], heads)


def evaluated(
    values: np.ndarray, length: int, stride: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What windows of `length` every `stride` make of `values`, a row for each stretch of 64 tokens:
    its place, the mean of its evaluations, and how many they are.

    All blocks are whole stretches, so that sums over blocks are those of single evaluations.
    """
    assert length % stride == 0 and stride % STRETCH == 0 and length >= 2 * STRETCH
    values = values[: len(values) // length * length].reshape(-1, STRETCH)
    own, first = values.sum(1), values[:, 0]
    place = np.arange(len(own)) * STRETCH
    sums, counts = np.zeros(len(own)), np.zeros(len(own))
    for back in range(0, length, stride):
        begin = place - place % stride - back
        position = place - begin
        inside = (begin >= 0) & (begin + length <= values.size)
        # A window's first token is no target.
        is_first = position == 0
        harder_by = np.array([harder(p + np.arange(p == 0, STRETCH)).sum() for p in range(
            0, length, STRETCH)])[position // STRETCH]  # fmt: skip
        sums += inside * (own - is_first * first + harder_by)
        counts += inside * (STRETCH - is_first)
    return place, sums / counts, counts


def harder(position: np.ndarray) -> np.ndarray:
    """What a target loses, in nats, by having so few before it."""
    return 2 / np.sqrt(position)


def coverage(
    draw: Draw, windows: list[tuple[int, int]], texts: int
) -> dict[tuple[int, int], tuple]:
    """For each window: shares of texts covered by the chosen and by the former blocks, tokens of a
    chosen block (median), its interval's width beside the former's, texts without an interval."""
    means: dict[tuple[int, int], dict[tuple[str, int], Mean]] = {w: {} for w in windows}
    truth, lengths = {}, {w: [] for w in windows}
    for text in range(texts):
        values = draw(np.random.default_rng([20_481, text]))
        for window in windows:
            index, column, weight = evaluated(values, *window)
            truth[window] = float(harder(np.arange(1, window[0])).mean())
            chosen = block_length(index, {"nll": column}, window[0], weight).tokens
            lengths[window].append(chosen)
            for name, tokens in (("chosen", chosen), ("window", window[0])):
                mean = Blocks(index, tokens, weight).mean(column)
                assert mean is not None
                means[window][name, text] = mean
    found = {}
    for window in windows:
        metrics = estimates(means[window], 0)
        row = {}
        for name in ("chosen", "window"):
            ends = [m.ci95 for (of, _), m in metrics.items() if of == name and m.ci95]
            inside = np.mean([low <= truth[window] <= high for low, high in ends])
            row[name] = inside, np.median([high - low for low, high in ends]), texts - len(ends)
        wider = row["chosen"][1] / row["window"][1]
        found[window] = (row["chosen"][0], row["window"][0], int(np.median(lengths[window])),
                         wider, row["chosen"][2])  # fmt: skip
    return found


def verdict_shares(
    draw: Draw, windows: list[tuple[int, int]], texts: int, key: str
) -> dict[tuple[int, int], list[float]]:
    """For each window the shares of texts: false worse, false equivalent, found, decided; of texts of a
    quarter of the length, and of the whole ones."""
    means: dict[tuple[int, int], dict[tuple[int, int], Mean]] = {w: {} for w in windows}
    for text in range(texts):
        values = draw(np.random.default_rng([20_481, text]))
        for window in windows:
            index, column, weight = evaluated(values, *window)
            for parts in (1, 4):
                own = slice(len(index) // parts)
                of = {key: column[own]}
                length = block_length(index[own], of, window[0], weight[own]).tokens
                mean = Blocks(index[own], length, weight[own]).mean(column[own])
                assert mean is not None
                means[window][parts, text] = mean
    found = {}
    for window in windows:
        truth = float(harder(np.arange(1, window[0])).mean())
        measured: dict[int, list[Metric]] = {1: [], 4: []}
        for (parts, _), metric in estimates(means[window], 0).items():
            measured[parts].append(metric)

        def judge(
            away: float, margin: float, of: list[Metric], truth: float = truth
        ) -> list[Verdict]:
            """Verdicts on a ratio with this logarithm, or on a KLD so far from the margin."""
            then = math.exp if key == "ppl_ratio" else margin.__add__
            made = []
            for one in of:
                value, *ends = (then(x - truth + away) for x in (one.value, *(one.ci95 or ())))
                moved = Metric(value, (ends[0], ends[1]) if ends else None, one.n, one.note)
                made += verdicts({key: moved}, margin)
            return made

        def share(kind: str, *how: Any) -> float:
            return float(np.mean([verdict.kind == kind for verdict in judge(*how)]))

        def detectable(of: list[Metric]) -> float:
            told = [d for v in judge(0.0, 1e-9, of) if (d := v.detectable) is not None]
            typical = float(np.median(told))
            return math.log1p(typical) if key == "ppl_ratio" else typical

        whole = measured[1]
        far, aim = detectable(whole), detectable(measured[4]) / 2
        if key == "kld":
            at, decided = 0.0, share("undecided", aim, 1.0, whole)
        else:
            # Half a quarter's interval: a margin that asks for four times the text.
            at, half = 10 * far, aim / 1.4294
            decided = share("undecided", half, math.expm1(2 * half), whole)
        found[window] = [
            share("worse", 0.0, 1e-9, whole),
            share("equivalent", at, math.expm1(at) if at else 1.0, whole),
            share("worse", far, 1e-9, whole),
            1 - decided,
        ]
    return found


# Metric → how levels are drawn, their mean, and a token's noise in levels.
CHATS: dict[str, tuple[Callable[..., np.ndarray], float, float]] = {
    "nll, normal": (lambda rng, shape: rng.normal(2.5, 0.4, shape), 2.5, 1),
    "ratio, normal": (lambda rng, shape: rng.normal(0.02, 0.03, shape), 0.02, 10),
    "nll, log-normal": (lambda rng, shape: rng.lognormal(0, 1, shape), math.exp(0.5), 1),
    "kld, log-normal": (lambda rng, shape: rng.lognormal(-5, 1, shape), math.exp(-4.5), 3),
}


def chats(texts: int) -> None:
    """Prints what intervals over whole conversations cover."""
    print(
        "| levels | conversations | covered | percentiles alone | wider by | one in 20 "
        "| false worse | false equivalent |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, (drawn, truth, noise) in CHATS.items():
        for count in (8, 15, 30, 60, 100):
            inside, wider, kinds = [], [], []
            for part in range(0, texts, 250):
                rng = np.random.default_rng([20_481, count, part])
                tokens = (
                    rng.lognormal(math.log(300), 0.7, (min(250, texts - part), count)).round() + 1
                )
                level = drawn(rng, tokens.shape)
                mean = level + noise * level * rng.standard_normal(tokens.shape) / np.sqrt(tokens)
                found = clusters(mean * tokens, tokens)
                plain = found.value + percentile_interval(found.away, count)
                inside.append([(e[0] <= truth) & (truth <= e[1]) for e in (found.ends, plain)])
                wider.append((found.ends[1] - found.ends[0]) / (plain[1] - plain[0]))
                for value, *ends in zip(found.value, *found.ends, strict=True):
                    metric = {"kld": Metric(value, (ends[0], ends[1]), count)}
                    kinds += [v.kind for v in verdicts(metric, truth, clusters=count)]
            ours, percentiles = np.concatenate(inside, axis=1).mean(1)
            middle, far = np.quantile(np.concatenate(wider), [0.5, 0.95])
            cells = (
                name,
                count,
                f"{ours:.1%}",
                f"{percentiles:.1%}",
                f"{middle:.2f}×",
                f"{far:.2f}×",
                *(f"{np.mean(np.array(kinds) == kind):.1%}" for kind in ("worse", "equivalent")),
            )
            print("|", " | ".join(map(str, cells)), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--data", type=Path, default=os.environ.get("SCOREMODE_DATA"))
    parser.add_argument("--series", nargs="+")
    parser.add_argument("--windows", nargs="+", default=["128", "512", "2048/512", "2048", "8192"])
    parser.add_argument("--chats", action="store_true")
    parser.add_argument("--verdicts", action="store_true")
    args = parser.parse_args()
    if args.chats:
        chats(args.texts)
        return
    series: dict[str, Callable[[], Draw]] = {
        "articles": lambda: articles(Path(args.data)),
        "ar": lambda: autoregression,
        "ma": lambda: moving_average,
        "documents": lambda: documents(1000),
        "long-documents": lambda: documents(4500),
        "heavy": lambda: heavy,
    }
    windows = []
    for word in args.windows:
        length, _, stride = word.partition("/")
        windows.append((int(length), int(stride or length)))
    if args.verdicts:
        print("| series | windows | false worse | false equivalent | found | decided |")
        print("|---|---:|---:|---:|---:|---:|")
        for name in args.series or series:
            key = "kld" if name == "heavy" else "ppl_ratio"
            for window, shares in verdict_shares(series[name](), windows, args.texts, key).items():
                said = "/".join(map(str, dict.fromkeys(window)))
                print("|", " | ".join([name, said, *(f"{s:.1%}" for s in shares)]), "|", flush=True)
        return
    print("| series | windows | block | covered | by blocks of a window | wider by | no interval |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in args.series or series:
        if name == "articles" and args.data is None:
            print("articles: needs --data or SCOREMODE_DATA")
            continue
        found = coverage(series[name](), windows, args.texts)
        for (length, stride), (ours, theirs, block, wider, none) in found.items():
            window = f"{length}/{stride}" if stride < length else f"{length}"
            cells = (
                name,
                window,
                f"{block:,}",
                f"{ours:.1%}",
                f"{theirs:.1%}",
                f"{wider:.2f}×",
                none,
            )
            print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
