"""What blocks of a bootstrap are cut from: the stretches of a text, or whole conversations.

The one place that decides it. Tokens of a conversation depend on each other, and nothing crosses
from one to the next: each is a block, however long it is. In a text, whose tokens depend on those
before them without an end, the scores themselves say how long blocks must be (`block_length`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.results.scores import Scores
from scoremode.results.statistics.block_length import BlockLength, block_length
from scoremode.results.statistics.means import Blocks

__all__ = ["CONVERSATION", "CONVERSATIONS", "Places"]

# The column that says of which conversation a target is.
CONVERSATION = "conversation"
CONVERSATIONS = BlockLength(1, CONVERSATION, {})

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Places:
    """Places of evaluations, or of sums of them that lie together.

    - `index`: int [N], in the token stream.
    - `conversation`: int [N], the one that each is of; None of a text.
    """

    index: NDArray[np.integer]
    conversation: NDArray[np.integer] | None = None

    @classmethod
    def of(cls, scores: Scores, extras: Mapping[str, Any]) -> "Places":
        """Those of Scores with the columns beside them, as `read_columns` gives both."""
        return cls(scores.index, extras.get(CONVERSATION))

    @property
    def numbered(self) -> NDArray[np.integer]:
        """int [N]: what blocks are runs of: places in the stream, or conversations."""
        return self.index if self.conversation is None else self.conversation

    def chosen(
        self,
        columns: Mapping[str, Floats],
        context_length: int,
        weights: Floats | None = None,
    ) -> BlockLength:
        """The length of blocks for means of all `columns`, float64 [N] each, of evaluations that count
        as `weights`, float64 [N]."""
        if self.conversation is not None:
            return CONVERSATIONS
        return block_length(self.index, columns, context_length, weights)

    def shortest(self, context_length: int) -> int:
        """The length of blocks that no score decides: a window, or a conversation."""
        return context_length if self.conversation is None else CONVERSATIONS.tokens

    def blocks(self, length: int, weights: Floats | None = None) -> Blocks:
        """Blocks of that length, as `chosen` or `shortest` gives it."""
        return Blocks(self.numbered, length, weights)
