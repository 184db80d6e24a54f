"""A llama.cpp file as a reference: its log-probabilities stand for a base's logits.

A softmax takes them as it takes any logits, so what an engine makes of them is a comparison with the
file's own distribution, renormalized. Codes are decoded where they are compared: half as many bytes go
there, and float32 arithmetic gives the same bits on every device.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from scoremode.llama_cpp.file import LogitsFile
from scoremode.llama_cpp.sums import LlamaCppSums
from scoremode.reference.base import Span

__all__ = ["LlamaCppReference"]


class LlamaCppReference:
    """The file under `path`, rows of which are the targets of its plan. Raises ReferenceUnusable.

    - `vocabulary`: its entries.
    - `sha256`: of what tells it from other bases (`LogitsFile.fingerprint`), not of every row.
    """

    extra_sums = LlamaCppSums

    def __init__(self, path: Path):
        self.path = path
        self.file = LogitsFile(path)
        self.vocabulary = self.file.entries
        self.sha256 = self.file.fingerprint

    def expect(self, spans: Sequence[Span], device: torch.device) -> None:
        """Does nothing: each span is read when it is asked for."""

    def logits(
        self, spans: Sequence[Span], device: torch.device, tile: tuple[int, int]
    ) -> "DecodedLogits":
        # Rows of earlier passes, which nobody reads again, would count as memory in use.
        self.file.release()
        return DecodedLogits(self.file, spans, device, tile)


class DecodedLogits:
    """Log-probabilities of the rows `spans`, in tiles of at most so many rows × entries, in reused
    memory."""

    def __init__(
        self, file: LogitsFile, spans: Sequence[Span], device: torch.device, tile: tuple[int, int]
    ):
        self._file, self._spans = file, spans
        self._memory = torch.empty(tile[0] * tile[1], dtype=torch.float32, device=device)
        self._entries = 0, 0

    def load(self, begin: int, end: int) -> None:
        self._entries = begin, end

    def __call__(self, block: slice) -> torch.Tensor:
        parts = [self._file.codes(*rows, *self._entries) for rows in self._rows(block)]
        codes, scale, low = (
            torch.from_numpy(np.concatenate(columns)).to(self._memory.device)
            for columns in zip(*parts, strict=True)
        )
        out = self._memory[: codes.numel()].view(codes.shape).copy_(codes)
        return out.mul_(scale.unsqueeze(1)).add_(low.unsqueeze(1))

    def _rows(self, block: slice) -> Iterator[Span]:
        """Spans of the file's rows that are those of the block."""
        first = 0
        for begin, end in self._spans:
            low, high = max(block.start - first, 0), min(block.stop - first, end - begin)
            if low < high:
                yield begin + low, begin + high
            first += end - begin
