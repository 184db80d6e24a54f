"""The first place where two tokenizers read one text otherwise, in words."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.text.tokenizer import Tokenizer

__all__ = ["difference"]


def difference(
    ours: Tokenizer, own: NDArray[Any], theirs: Tokenizer, other: NDArray[Any]
) -> str | None:
    """`token 17 is 262 ('Ġthe') and not 5 ('x')`, by `ours` whose ids are `own`; None for the same."""
    shorter = min(len(own), len(other))
    differing = np.flatnonzero(own[:shorter] != other[:shorter])
    if not len(differing) and len(own) == len(other):
        return None
    at = int(differing[0]) if len(differing) else shorter
    one, two = _token(ours, own, at), _token(theirs, other, at)
    return f"token {at:,} is {one} and not {two}; {len(own):,} tokens and not {len(other):,}"


def _token(tokenizer: Tokenizer, ids: NDArray[Any], at: int) -> str:
    if at >= len(ids):
        return "none"
    return f"{ids[at]} ({tokenizer.backend.id_to_token(int(ids[at]))!r})"
