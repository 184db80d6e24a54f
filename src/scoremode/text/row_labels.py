"""Labels of a data set's rows, which are one text: which row each token lies in, by its characters.

A window may hold several rows, and a token may begin in one and end in another. Every token has the
label of the row that its first character lies in; what the protocol puts between two rows belongs to
the one before.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import TokenizerError
from scoremode.text.labels import Labels
from scoremode.text.tokenizer import Tokenizer, sides_of

__all__ = ["labels_by_row"]


def labels_by_row(
    text: str,
    rows: Sequence[tuple[int, str]],
    tokens: NDArray[np.int32],
    tokenizer: Tokenizer,
) -> Labels:
    """Labels of `tokens` (int32 [N]), which are `text` by `tokenizer` and what it puts around it.

    - `rows`: the character that each row begins with, rising from 0, and the row's label.

    Raises TokenizerError where the tokenizer doesn't tell which characters its tokens are.
    """
    ids, spans = tokenizer.encode_with_spans(text)
    begins = spans[:, 0]
    sides = sides_of(ids.tolist(), tokens.tolist())
    if sides is None or (np.diff(begins) < 0).any():
        raise TokenizerError(
            f"{tokenizer.source}: doesn't tell which characters its tokens are, by which rows are told "
            "apart"
        )
    starts = np.array([begin for begin, _ in rows], np.int64)
    row = np.searchsorted(starts, begins, "right") - 1
    # What stands in front is no target, but for that what is behind has the last row's label.
    front, behind = (len(side) for side in sides)
    row = np.concatenate([np.zeros(front, np.int64), row, np.full(behind, len(rows) - 1)])
    return Labels.of_places([label for _, label in rows], row)
