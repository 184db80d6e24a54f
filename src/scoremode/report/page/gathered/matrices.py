"""Who differs from whom: all pairs of a section's runs, by the same blocks of the text."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scoremode.report.page.definition import Difference, Matrix
from scoremode.report.page.gathered.summary import Summary, Units
from scoremode.results.statistics.block_length import BlockLength
from scoremode.results.statistics.bootstrap import MIN_BLOCKS, WHOLE, too_few
from scoremode.results.statistics.means import estimates
from scoremode.results.statistics.pairs import Pair, pairs
from scoremode.results.statistics.places import Places

__all__ = ["Cut", "cut", "matrices"]

Floats = NDArray[np.float64]


class Cut:
    """A section's text cut into blocks, one way for all its runs.

    - `chosen`: the blocks' length, and why. `weights`: float64 [blocks], of those that weigh anything.
    """

    def __init__(self, chosen: BlockLength, units: Units):
        self.chosen = chosen
        block = np.arange(len(units.weights)) // (chosen.tokens // units.tokens)
        self._block = block
        weights = np.bincount(block, weights=units.weights).astype(np.float64)
        self._filled = weights > 0
        self.weights = weights[self._filled]

    def sums(self, of_units: Floats) -> Floats:
        """Sums over blocks, of sums over units."""
        summed = np.bincount(self._block, weights=of_units).astype(np.float64)
        return summed[self._filled]

    def metrics(self, units: Units) -> dict[str, Any]:
        """How sure the `means` of a run are by these blocks: `ci95` and `note` of each, as a record has
        them."""
        filled = self._block[units.weights > 0]
        means = {
            name: replace(
                mean,
                sums=np.bincount(filled, mean.sums, len(self._filled))[self._filled],
                totals=self.weights,
            )
            for name, mean in units.means.items()
        }
        found = estimates(means, self.chosen.tokens)
        return {name: {"ci95": m.ci95, "note": m.note} for name, m in found.items()}


def cut(ordered: Sequence[Summary]) -> Cut:
    """Blocks for all of a section's runs, which are in the order of their rank.

    Their length is what any run, or any two neighbours' difference, asks for, as for `compare`.
    """
    columns: dict[str, Floats] = {}
    all_units = [summary.units for summary in ordered]
    for i, units in enumerate(all_units):
        columns[f"nll {i}"] = units.nll
        if units.kld is not None:
            columns[f"kld {i}"] = units.kld
    for i, (a, b) in enumerate(pairwise(all_units)):
        columns[f"nll {i} - {i + 1}"] = a.nll - b.nll
        if a.kld is not None and b.kld is not None:
            columns[f"kld {i} - {i + 1}"] = a.kld - b.kld
    first = all_units[0]
    filled = np.flatnonzero(first.weights > 0)
    weights = first.weights[filled]
    # A unit stands for its evaluations, by its first place in the stream; the last one by the last.
    index = filled * first.tokens
    index[-1] = first.last
    means = {name: sums[filled] / weights for name, sums in columns.items()}
    places = Places(index, index if first.are_conversations else None)
    return Cut(places.chosen(means, first.tokens, weights), first)


def matrices(ordered: Mapping[str, Summary], blocks: Cut) -> list[Matrix]:
    """KLD where runs have one, and nll, of runs by their ids, best first."""
    found = []
    by_kld = {id_: s.units.kld for id_, s in ordered.items() if s.units.kld is not None}
    by_nll = {id_: s.units.nll for id_, s in ordered.items()}
    if len(by_kld) > 1:
        found.append(_matrix("kld", by_kld, blocks))
    if len(by_nll) > 1:
        found.append(_matrix("nll", by_nll, blocks))
    return found


def _matrix(of: Literal["kld", "nll"], units: Mapping[str, Floats], blocks: Cut) -> Matrix:
    ids = list(units)
    sums = np.stack([blocks.sums(of_run) for of_run in units.values()])
    few, whole = len(blocks.weights) < MIN_BLOCKS, blocks.chosen.tokens == WHOLE
    return {
        "of": of,
        "unit": "nats",
        "order": ids,
        "pairs": [_difference(of, pair, ids) for pair in pairs(sums, blocks.weights, whole=whole)],
        "note": too_few(len(blocks.weights), blocks.chosen.tokens) if few else None,
    }


def _difference(of: str, pair: Pair, ids: Sequence[str]) -> Difference:
    lower, upper = pair.ci95 or (None, None)
    with np.errstate(over="ignore"):
        ratio = float(np.exp(pair.value))
    return {
        "a": ids[pair.a],
        "b": ids[pair.b],
        "value": pair.value,
        "lower": lower,
        "upper": upper,
        "ratio": ratio if of == "nll" and np.isfinite(ratio) else None,
        "p": pair.p,
        "p_holm": pair.p_holm,
        "verdict": pair.verdict,
    }
