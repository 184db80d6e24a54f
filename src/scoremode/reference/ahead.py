"""A reference's states on their way to a GPU, a span ahead of the one that is compared with.

Spans come in order, so the one behind the last is fetched before it is asked for; any other is only
slower. Two spans' worth of the device's memory take turns.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from scoremode.checkpoint.bulk_io import FileReader, Part
from scoremode.errors import ReferenceUnusable
from scoremode.lib.prefetch import Fetch, Lane, Prefetcher, Staging
from scoremode.reference.base import Span

__all__ = ["Ahead", "StatesFile", "StatesReader", "rows_of_files"]

_THREADS = 4
# Pinned memory, of which two pieces take turns: to take it is slow, and the device waits meanwhile.
_PIECE = 1 << 26


def rows_of_files(span: Span, counts: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    """The number of each file that has rows of `span`, and the first and the end of those among its
    own; `counts`: rows of each file."""
    begin, end = span
    first = 0
    for number, rows in enumerate(counts):
        low, high = max(begin - first, 0), min(end - first, rows)
        if low < high:
            yield number, low, high
        first += rows
    assert end <= first, f"rows {begin} to {end} of {first}"


@dataclass(frozen=True)
class StatesFile:
    """Place of a pass's states: `rows` of them from byte `begin` of the file at `path`."""

    path: Path
    begin: int
    rows: int


class StatesReader(FileReader):
    """Rows of states from their files by plain reads, several at once.

    - `row_bytes`: of one row. Files are opened when they are first read from, and stay open.
    """

    def __init__(self, files: Sequence[StatesFile], row_bytes: int):
        super().__init__(_THREADS, "scoremode-states", ReferenceUnusable)
        self._states, self._row_bytes = files, row_bytes

    def __del__(self) -> None:
        self._close_files()

    def fill(self, memory: torch.Tensor, span: Span) -> None:
        """Fills `memory` uint8 [n] on the host with the rows of `span`. Raises ReferenceUnusable."""
        view, filled = memory.numpy().data, 0
        parts = []
        for number, low, high in rows_of_files(span, (file.rows for file in self._states)):
            file, size = self._states[number], (high - low) * self._row_bytes
            at = file.begin + low * self._row_bytes
            parts.append(Part(file.path, at, view[filled : filled + size], f"{file.path}:"))
            filled += size
        self.read(parts)


class Ahead:
    """Spans of `rows` rows of `width` values each on a GPU, one after the other.

    Calls must come from one thread and, on the GPU, from one stream.
    """

    def __init__(
        self,
        reader: StatesReader,
        rows: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self._reader, self._rows, self._width, self._dtype = reader, rows, width, dtype
        self._prefetcher = Prefetcher(device, "scoremode-ahead")
        self._lanes = self._prefetcher.lane(), self._prefetcher.lane()
        self._staging = Staging(2)
        self._given: Lane | None = None
        self._next: _Loading | None = None

    def expect(self, span: Span) -> None:
        """Begins to fetch a span, if that is not what is on its way already."""
        if self._next is None or not self._next.has(span):
            self._next = self._load(*span)

    def take(self, span: Span) -> torch.Tensor:
        """Returns a span's rows [N, D], until the next call: work queued before that still finds them.

        Raises ReferenceUnusable.
        """
        begin, end = span
        if self._given is not None:
            self._given.release()
            self._given = None
        loading, self._next = self._next, None
        if loading is None or not loading.has(span):
            # One that nobody asked for is overwritten: the same thread loads both, in order.
            loading = self._load(begin, end)
        memory = loading.fetch.arrived()
        self._given = loading.fetch.lane
        if end < self._rows:
            self._next = self._load(end, min(2 * end - begin, self._rows))
        states = memory.view(self._dtype).view(loading.end - begin, self._width)
        return states[: end - begin]

    def _load(self, begin: int, end: int) -> "_Loading":
        lane = self._lanes[1] if self._given is self._lanes[0] else self._lanes[0]

        def send(memory: torch.Tensor, stream: torch.cuda.Stream) -> None:
            for low in range(begin, end, rows):
                high = min(low + rows, end)
                part = memory[(low - begin) * row : (high - begin) * row]
                self._staging.send(part, stream, partial(self._reader.fill, span=(low, high)))

        row = self._width * self._dtype.itemsize
        rows, size = max(1, _PIECE // row), (end - begin) * row
        return _Loading(begin, end, self._prefetcher.fetch(size, send, lane))


@dataclass(frozen=True)
class _Loading:
    """Rows `begin … end` on their way."""

    begin: int
    end: int
    fetch: Fetch

    def has(self, span: Span) -> bool:
        """Tells whether it begins with those rows."""
        return self.begin == span[0] and self.end >= span[1]
