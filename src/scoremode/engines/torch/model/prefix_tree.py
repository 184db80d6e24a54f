"""Windows that begin alike, as a model's own forward takes them: laid out as trees (`text.batching`).

Each token has the position that it has in its window, and attends to the tokens before it there. The
library makes masks of functions that say of two positions whether one sees the other: all before it,
the last few thousand, those of one chunk. Here such a function is asked about positions in windows
rather than places in a row, and what it allows is kept of a token's own branch alone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

# The library's names of ways to attend that take a mask of every two places.
ATTENTIONS = ("sdpa", "eager")


@dataclass(frozen=True, eq=False)
class ForestIds:
    """Rows of trees: `ids`, `depth` and `end` int64 [B, T], as a `text.batching.Forest` has them."""

    ids: torch.Tensor
    depth: torch.Tensor
    end: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        return self.ids.shape


# What a batch goes through a model as: ids [B, T] of windows, or of rows of trees.
Ids = torch.Tensor | ForestIds


def forward_of(model: Any, ids: Ids) -> Any:
    """The output of `model` for ids [B, T], without a cache."""
    if isinstance(ids, torch.Tensor):
        return model(input_ids=ids, use_cache=False)
    # Without a mask the library would look for windows that follow one another in a row.
    everything = torch.ones_like(ids.ids)
    with masks_of(ids):
        return model(
            input_ids=ids.ids,
            position_ids=ids.depth,
            attention_mask=everything,
            use_cache=False,
        )


@contextmanager
def masks_of(forest: ForestIds) -> Iterator[None]:
    """A context in which the library makes this thread's masks for the rows of `forest`."""
    _take_masks()
    token = _FOREST.set(forest)
    try:
        yield
    finally:
        _FOREST.reset(token)


# The rows that masks are made for, in a thread by itself: ranks of one process have others.
_FOREST: ContextVar[ForestIds | None] = ContextVar("forest", default=None)


class _Masks:
    """A maker of masks in the place of the library's `own` for the attention `name`, which makes all
    but those of trees."""

    def __init__(self, name: str, own: Callable[..., Any]):
        self._name, self._own = name, own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forest = _FOREST.get()
        if forest is None:
            return self._own(*args, **kwargs)
        return _mask(forest, self._name, *args, **kwargs)


def _take_masks() -> None:
    """Puts makers of ours in the place of the library's, once for the process."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS

    for name in ATTENTIONS:
        if not isinstance(MASKS[name], _Masks):
            MASKS[name] = _Masks(name, MASKS[name])


def _mask(
    forest: ForestIds,
    attention: str,
    batch_size: int,
    q_length: int,
    kv_length: int,
    *,
    mask_function: Callable[..., torch.Tensor],
    dtype: torch.dtype = torch.float32,
    q_offset: int = 0,
    kv_offset: int = 0,
    **others: Any,
) -> torch.Tensor:
    """The mask [B, 1, T, T] that the library asks of its `attention`: truth values for sdpa, for eager
    0 and the least number of `dtype`. Raises ValueError for one of other rows."""
    length = forest.shape[1]
    asked = (batch_size, q_length, kv_length, q_offset, kv_offset)
    if asked != (*forest.shape, length, 0, 0):
        raise ValueError(f"a mask of {asked} is asked for, of rows {list(forest.shape)}")
    device = forest.ids.device
    rows = torch.arange(batch_size, device=device).view(-1, 1, 1, 1)
    head = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device=device)
    position = forest.depth[:, None]
    allowed = mask_function(rows, head, position.unsqueeze(-1), position.unsqueeze(-2))
    places = torch.arange(length, device=device)
    follows = places.view(-1, 1) < forest.end[:, None].unsqueeze(-2)
    seen = allowed & follows & (places.view(-1, 1) >= places)
    seen = seen.expand(batch_size, 1, length, length)
    if attention == "sdpa":
        return seen
    zero = torch.zeros((), dtype=dtype, device=device)
    return torch.where(seen, zero, torch.finfo(dtype).min)
