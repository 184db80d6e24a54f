"""One chunk's comparison: a rank's logits of the model and of the base, taken in together.

The sums are those of the torch engine (`head/divergence.py`, `head/full.py`), over the rank's entries,
and then of all ranks. What `full` adds is a second pass over the same logits, since it needs both
normalizers, and those need every rank.
"""

from collections.abc import Callable, Iterator, Mapping

import torch

from scoremode.head.divergence import ExtraSums, PairScores, PairSums
from scoremode.head.full import FullSums
from scoremode.head.project import Logits

__all__ = ["compare", "tile_entries"]

# Entries of both models' logits that exist in float32 at a time. A CPU's are the tiles of
# `RowSums.absorb`, so that a model's own scores have the same bits with a base beside it.
_TILE = {"cuda": 1 << 24, "cpu": 1 << 20}
# The same for the second pass, which takes a dozen float64 tiles beside them.
_FULL_TILE = {"cuda": 1 << 22, "cpu": 1 << 18}


def compare(
    model: torch.Tensor,
    base: Logits | None,
    target: torch.Tensor,
    begin: int,
    over_ranks: Callable[[torch.Tensor], list[torch.Tensor]],
    *,
    entropy: bool,
    extra: type[ExtraSums] | None,
    full: bool,
) -> dict[str, torch.Tensor]:
    """Columns [R] by name, of `target` int64 [R].

    - `model` float [R, E]: the logits of the entries `begin …`, left as they are.
    - `base`: of the same rows and entries, None where E is 0.
    - `over_ranks`: every rank's tensor from this one's, in the order of their entries.
    - `extra`: as `score_pairs` has it.
    """
    rows = slice(0, len(model))
    sums = PairSums(len(model), model.device, entropy=entropy)
    extra_sums = None if extra is None else extra(len(model), model.device)
    for low, ours, theirs in _tiles(model, base, begin):
        if extra_sums is not None:
            extra_sums.consume(rows, theirs, ours)
        sums.consume(rows, theirs, ours, target, low)
    pair = PairSums.merged(over_ranks(sums.pack())).finish()
    if extra_sums is not None:
        pair = extra_sums.merged(over_ranks(extra_sums.pack())).finish(pair)
    columns = _columns(pair)
    if full:
        second = FullSums(pair)
        for low, ours, theirs in _tiles(model, base, begin, _FULL_TILE):
            second.consume(rows, theirs, ours, low)
        packed = [over_ranks(part) for part in second.pack()]
        second.merge_packed(list(zip(*packed, strict=True)))
        columns |= vars(second.finish())
    return columns


def tile_entries(rows: int, device: torch.device, tile: Mapping[str, int] | None = None) -> int:
    """Vocabulary entries of a tile of so many rows."""
    return max(1, (tile or _TILE)["cuda" if device.type == "cuda" else "cpu"] // max(1, rows))


def _tiles(
    model: torch.Tensor, base: Logits | None, begin: int, tile: Mapping[str, int] | None = None
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """The first entry of each tile, and both models' float32 logits, to be destroyed."""
    rows, entries = model.shape
    step = tile_entries(rows, model.device, tile)
    for low in range(0, entries, step):
        assert base is not None
        high = min(low + step, entries)
        base.load(begin + low, begin + high)
        yield begin + low, model[:, low:high].to(torch.float32, copy=True), base(slice(0, rows))


def _columns(pair: PairScores) -> dict[str, torch.Tensor]:
    own = {name: value for name, value in vars(pair.model).items() if value is not None}
    base = {f"base_{n}": v for n, v in vars(pair.base).items() if v is not None}
    return own | base | {"kld": pair.kld, "kld_reverse": pair.kld_reverse, **pair.extra}
