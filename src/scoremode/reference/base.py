"""References: the predictions of a base that an engine compares a model with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from scoremode.head.divergence import ExtraSums
from scoremode.head.project import Logits

# Rows `begin … end` of all scored targets of a plan, in its order.
Span = tuple[int, int]


class Reference(Protocol):
    """A base model's predictions of every scored target of one plan.

    - `vocabulary`: how many entries its softmax runs over.
    - `extra_sums`: the class of further sums that are to be made of its logits and the model's, such
      as llama.cpp's own KLD of a file that it wrote; None for most.
    """

    @property
    def vocabulary(self) -> int: ...

    @property
    def extra_sums(self) -> type[ExtraSums] | None: ...

    def expect(self, spans: Sequence[Span], device: torch.device) -> None:
        """Says of which rows `logits` will be asked next, a span at a time and in this order, so that
        what is better done for all at once, or early, can be. An engine says it before every pass."""
        ...

    def logits(self, spans: Sequence[Span], device: torch.device, tile: tuple[int, int]) -> Logits:
        """The base's logits of those rows, one span behind the other."""
        ...


@runtime_checkable
class OnDisk(Reference, Protocol):
    """A reference that another process can open: its class makes it of `path` alone.

    - `path`: where it lies; `sha256`: of all that makes its numbers.
    """

    @property
    def path(self) -> Path: ...

    @property
    def sha256(self) -> str: ...
