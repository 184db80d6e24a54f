"""How many tokens a model and its base generate alike, from their predictions on one text.

A text is followed unit by unit: by replies of a chat, or by windows. Each has a weight W(n), how far it
is whole after n tokens, and parts at a token with a probability x.

- `sampled`: x is the total variation TV of the two predictions. No way to draw one token from each
  parts more rarely, and one, the maximal coupling, parts as rarely (Lindvall, Lectures on the Coupling
  Method, 1992). It keeps a token that the base drew with min(1, q/p), as speculative sampling does. So
  on text that the base itself sampled W = Π min(1, q/p), whose mean is exactly the share of its samples
  that the model draws as well. On any other text that weight means nothing, and W = Π (1 − TV) is how
  far the two would agree on this text.
- `greedy`: x is 1 where the two find another token likeliest, else 0, and W = Π (1 − x). On text that
  the base generated greedily that is where greedy generation of both parts, since until then they read
  the same. Where the base's own likeliest token isn't the text's (a tie, or another arithmetic than the
  text was made with), the base as it is here would have gone on otherwise: the unit is followed until
  there.

Units have unequal lengths, and one that ends whole says nothing of later tokens. The curve is Kaplan
and Meier's (JASA 53, 1958) with fractions of events: of r_n = Σ W(n − 1), over units that have a token
n, d_n = Σ W(n − 1)·x part there, and S(n) = Π (1 − d_n / r_n). The half-life is the first n at which
S(n) is at most ½. Intervals resample the text's blocks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.results.scores import Scores
from scoremode.results.statistics.blocks import CONVERSATION, Places
from scoremode.results.statistics.bootstrap import (
    MIN_BLOCKS,
    WHOLE,
    Resamples,
    percentile_interval,
    too_few,
)
from scoremode.results.statistics.divergence import rare
from scoremode.results.statistics.means import Blocks, estimates

Floats = NDArray[np.float64]
# What a template writes follows from these.
_OF_TEMPLATE = ("sha256", "arguments", "date")
# Points of a curve in a record.
_POINTS = 200
# As many for every token as for other metrics would be seconds, whenever a run is read.
_RESAMPLES = 1_000
# Tokens that are resampled at a time, then twice as many: most half-lives are short. And the most of
# them times the blocks that reach them: 32 MiB.
_FIRST, _CELLS = 64, 1 << 22


def survival_section(
    scores: Scores, extras: Mapping[str, Any], block_length: int, record: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The record's section `survival`; None without a base.

    - `block_length`: tokens of a bootstrap block. `record`: its `corpus`, `protocol`, `reference`.
    """
    against = scores.against
    if against is None:
        return None
    turn_place, conversation = extras.get("turn_place"), extras.get(CONVERSATION)
    begins = np.diff(scores.window, prepend=-1) != 0
    if turn_place is not None:
        begins |= turn_place == 0
    begin = np.flatnonzero(begins)
    block = Places.of(scores, extras).numbered // block_length
    made: dict[str, Any] = {"units": "windows" if turn_place is None else "replies"}
    made["n"] = len(begin)
    by_base = not _not_by_base(record, 1, begin, conversation)
    kept = np.exp(np.minimum(scores.logprob - against.base_logprob, 0)) if by_base else None
    sampled = follow(against.tv, begin, block, block_length, kept=kept)
    made["sampled"] = {**sampled.to_json(), "by_base": by_base}
    if words := _not_by_base(record, 0, begin, conversation):
        return made | {"greedy_note": words}
    assert conversation is not None
    unlike = against.base_top1 != scores.target
    parts = (scores.top1 != against.base_top1).astype(np.float64)
    found = follow(parts, begin, block, block_length, until=unlike)
    # What is whole where it can't be followed further doesn't tell of its end.
    told = found.parted | ~found.stopped
    ends = Blocks(conversation[begin][told], WHOLE) if told.any() else None
    mean = None if ends is None else ends.mean(~found.parted[told])
    identical = None if mean is None else rare(estimates({"": mean}, WHOLE)[""]).to_json()
    return made | {
        "greedy": {
            **found.to_json(),
            "parted": int(found.parted.sum()),
            "stopped": int((found.stopped & ~found.parted).sum()),
            "unlike": int(unlike.sum()),
            "identical": identical,
        }
    }


def _not_by_base(
    record: Mapping[str, Any],
    temperature: int,
    begin: NDArray[np.int64],
    conversation: NDArray[np.integer] | None,
) -> str | None:
    """Why the units aren't what the base generated at this temperature, of its whole distribution; None
    where they are."""
    corpus = record["corpus"]
    if (generated := corpus.get("generated")) is None:
        return "the text is none that scoremode generate wrote"
    sampling = generated["sampling"]
    if sampling.get("temperature") != temperature:
        return f"the text was generated at temperature {sampling.get('temperature')}, not {temperature}"
    if temperature and (sampling.get("top_p") != 1 or sampling.get("top_k") != 0):
        return "the text was sampled of the likeliest tokens alone"
    base = record["reference"].get("checkpoint") or {}
    if not base.get("files") or base["files"] != generated["base"].get("files"):
        return f"the text was generated by {generated['base'].get('source')}, which isn't this base"
    ours, theirs = corpus["conversations"]["template"], generated.get("template")
    if ours and theirs and any(ours[name] != theirs[name] for name in _OF_TEMPLATE):
        return "the text was generated by another chat template, or one that was told otherwise"
    if record["protocol"]["scored"] not in ("assistant", "completion"):
        return "tokens are scored that the base didn't generate"
    is_split = record["protocol"].get("long") == "split" and corpus["conversations"]["long"]
    if conversation is None or is_split or len(np.unique(conversation[begin])) < len(begin):
        return (
            "a conversation has several turns, of which the base generated the last, or several "
            "windows: --score completion and --long truncate follow one"
        )
    return None


@dataclass(frozen=True, eq=False)
class Survival:
    """What became of G units.

    - `curve` float64 [L]: the share that is whole after 1 … L tokens, as many as the longest unit has.
    - `half_life`: its half-life, and `interval` that of the resamples; None where they are beyond L
      (of an interval, which is None itself for too few blocks, one end or both). `note`: why there is
      none.
    - `parted`, `stopped` bool [G]: whether nothing of a unit is whole where it was left, and whether
      that was before its end.
    """

    curve: Floats
    half_life: int | None
    interval: tuple[int | None, int | None] | None
    note: str | None
    parted: NDArray[np.bool_]
    stopped: NDArray[np.bool_]

    def to_json(self) -> dict[str, Any]:
        at = np.unique(np.geomspace(1, len(self.curve), _POINTS).astype(int))
        return {
            "half_life": self.half_life,
            "ci95": None if self.interval is None else list(self.interval),
            "note": self.note,
            "longest": len(self.curve),
            "tokens": at.tolist(),
            "whole": self.curve[at - 1].tolist(),
        }


def follow(
    x: Floats,
    begin: NDArray[np.int64],
    block: NDArray[np.integer],
    block_length: int,
    *,
    kept: Floats | None = None,
    until: NDArray[np.bool_] | None = None,
) -> Survival:
    """Follows units that begin at rows `begin` [G], one behind the other, and part with `x` [N].

    - `block`: int [N], the bootstrap block of each row, of so many tokens; a unit is of its first's.
    - `kept`: float64 [N], what a row leaves of a unit's weight; None for 1 − `x`.
    - `until`: bool [N], the rows before which a unit is left; None for none.
    """
    # Rounding puts a total variation as little as that beside 0 and 1.
    x = np.clip(x, 0, 1)
    kept = 1 - x if kept is None else kept
    whole, followed = np.empty(len(x)), np.ones(len(x), bool)
    parted, stopped = np.zeros(len(begin), bool), np.zeros(len(begin), bool)
    for i, (first, behind) in enumerate(zip(begin, [*begin[1:], len(x)], strict=True)):
        after = np.cumprod(kept[first:behind])
        whole[first], whole[first + 1 : behind] = 1, after[:-1]
        if until is not None and (ends := until[first:behind]).any():
            stopped[i] = True
            followed[first + ends.argmax() : behind] = False
        left = after[followed[first:behind]]
        parted[i] = len(left) > 0 and left[-1] == 0
    sizes = np.diff(np.append(begin, len(x)))
    place = np.arange(len(x)) - np.repeat(begin, sizes)
    _, of = np.unique(np.repeat(block[begin], sizes), return_inverse=True)
    blocks, longest = int(of.max()) + 1, int(place[followed].max(initial=0)) + 1
    rows = followed & (whole > 0)
    of, place, whole, parting = of[rows], place[rows], whole[rows], (whole * x)[rows]
    d, r = (np.bincount(place, w, longest).astype(float) for w in (parting, whole))
    curve = np.cumprod(1.0 - np.divide(d, r, out=np.zeros(longest), where=r > 0), dtype=np.float64)
    half_life = int(_first_below(curve[None])[0])
    interval = note = None
    if blocks < MIN_BLOCKS:
        note = too_few(blocks, block_length)
    else:
        found = np.sort(_resampled_half_lives(of, place, whole, parting, blocks, longest))
        # Of their ranks: between a half-life and one that is beyond all units lies none.
        low, high = percentile_interval(np.arange(_RESAMPLES, dtype=np.float64), blocks)
        low, high = (int(found[int(rank)]) for rank in (np.floor(low), np.ceil(high)))
        interval = _reached(low, longest), _reached(high, longest)
    return Survival(curve, _reached(half_life, longest), interval, note, parted, stopped)


def _resampled_half_lives(
    block: NDArray[np.integer],
    place: NDArray[np.integer],
    whole: Floats,
    parting: Floats,
    blocks: int,
    longest: int,
) -> Floats:
    """float64 [_RESAMPLES]: the half-life of each resample of blocks; beyond `longest`, one more."""
    found = np.full(_RESAMPLES, longest + 1.0)
    resamples, order = Resamples(blocks, _RESAMPLES), np.argsort(place, kind="stable")
    block, place, whole, parting = block[order], place[order], whole[order], parting[order]
    left, begin, size = np.ones(_RESAMPLES), 0, _FIRST
    while begin < longest and (waiting := found > longest).any():
        first = int(np.searchsorted(place, begin))
        # Units that are whole here at all, of which there are the fewer the further on.
        alive = int(np.searchsorted(place, begin, "right")) - first
        if not alive:
            break
        count = max(1, min(size, longest - begin, _CELLS // alive))
        rows = slice(first, int(np.searchsorted(place, begin + count)))
        of, number = np.unique(block[rows], return_inverse=True)
        cell = (place[rows] - begin) * len(of) + number
        sums = [
            np.bincount(cell, w[rows], count * len(of)).astype(np.float64).reshape(count, len(of))
            for w in (parting, whole)
        ]
        parted, totals = np.split(resamples.sums(np.concatenate(sums), of), 2, axis=1)
        # A resample none of whose units reaches a token loses none at it.
        hazard = np.divide(parted, totals, out=np.zeros_like(parted), where=totals > 0)
        curves = left[:, None] * np.cumprod(1 - hazard, axis=1)
        at = _first_below(curves)
        reached = waiting & (at <= count)
        found[reached] = begin + at[reached]
        left, begin, size = curves[:, -1], begin + count, 2 * size
    return found


def _first_below(curves: Floats) -> NDArray[np.int64]:
    """int64 [M]: after how many tokens each of `curves` [M, L] is at most ½, or L + 1."""
    # As exact as a curve's own sums.
    below = curves <= 0.5 + 1e-12
    return np.where(below.any(1), below.argmax(1), curves.shape[1]) + 1


def _reached(tokens: int, longest: int) -> int | None:
    return None if tokens > longest else int(tokens)
