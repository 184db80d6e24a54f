"""Final hidden states on disk: one safetensors file a pass, with one tensor `states` [N, D]; and on
their way from there to a GPU.

The header is written first and the file has its full size from then on, so that rows can be written
from several processes, in any order, and read by row from the mapped file. What one process writes
alone, a head as well, it hashes and syncs meanwhile.

A GPU reads spans in order, so the one behind the last is fetched before it is asked for; any other is
only slower. Two spans' worth of the device's memory take turns.
"""

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO

import torch

from scoremode.checkpoint.bulk_io import FileReader, Part
from scoremode.errors import ReferenceUnusable, words_of
from scoremode.lib.files import check_regular, open_regular
from scoremode.lib.prefetch import Fetch, Lane, Prefetcher, Staging
from scoremode.reference.base import Span

_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
# What else a head may be stored in.
_STORED = _NAMES | {
    torch.float64: "F64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_TENSOR = "states"
# The most that a file has before its tensors.
HEADER_BYTES = 1 << 20
_PIECE = 1 << 24
_THREADS = 4
# Pinned memory, of which two pieces take turns: to take it is slow, and the device waits meanwhile.
_PINNED = 1 << 26
# Bytes from one syncing of a file that is being written to the next.
_SYNCED = 1 << 27


def create_states(path: Path, rows: int, width: int, dtype: torch.dtype) -> None:
    """Makes a file for states [rows, width], all zero. Raises OSError."""
    size = rows * width * dtype.itemsize
    entry = {"dtype": _NAMES[dtype], "shape": [rows, width], "data_offsets": [0, size]}
    header = _header(json.dumps({_TENSOR: entry}))
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Writes a safetensors file as the library of that name does, and returns the sha256 of each
    tensor's bytes.

    They may lie on a GPU, which computes on meanwhile: neither its memory nor the host's ever has a
    copy of a whole one. Raises OSError.
    """
    # Those of larger entries first, so that all are aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    entries, end = {}, 0
    for name in names:
        tensor, begin = tensors[name], end
        end += tensor.nbytes
        stored, shape = _STORED[tensor.dtype], list(tensor.shape)
        entries[name] = {"dtype": stored, "shape": shape, "data_offsets": [begin, end]}
    digests = {}
    with path.open("wb") as file:
        file.write(_header(json.dumps(entries, separators=(",", ":"))))
        for name in names:
            digest = sha256()
            write_hashed(file, raw_bytes(tensors[name]), digest.update)
            digests[name] = digest.hexdigest()
    return digests


def write_states(
    path: Path,
    at: int,
    states: torch.Tensor,
    update: Callable[[memoryview], object] = lambda _: None,
) -> None:
    """Writes rows `at …` of a file made by `create_states`. Raises OSError.

    - `states` [n, D] in the file's dtype, on any device; ValueError for others, which would lie in
      other rows than their own.
    - `update`: is given all bytes that are written, such as a hash's.
    """
    with path.open("r+b") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        made = json.loads(file.read(length))[_TENSOR]
        rows, width = made["shape"]
        if (_NAMES.get(states.dtype), states.shape[1]) != (made["dtype"], width):
            raise ValueError(f"{path}: states {states.dtype} {tuple(states.shape)} for {made}")
        if at + len(states) > rows:
            raise ValueError(f"{path}: rows {at} to {at + len(states) - 1} of {rows}")
        file.seek(8 + length + at * states[:1].nbytes)
        for part in raw_bytes(states):
            file.write(part)
            update(part)


def digest_rows(path: Path, rows: range) -> str:
    """sha256 of the bytes of `rows` of a file made by `create_states`. Raises OSError."""
    digest = sha256()
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        made = json.loads(file.read(length))[_TENSOR]
        count, _ = made["shape"]
        begin, end = made["data_offsets"]
        size = (end - begin) // max(1, count)
        file.seek(8 + length + rows.start * size)
        left = len(rows) * size
        while left and (data := file.read(min(left, _PIECE))):
            digest.update(data)
            left -= len(data)
    return digest.hexdigest()


def fill_states(
    path: Path, parts: Sequence[torch.Tensor], stream: "torch.cuda.Stream | None" = None
) -> str:
    """Writes all rows of a file made by `create_states`, and returns the sha256 of its bytes.

    - `parts` [n, D] each, one behind the other; `stream`: as `raw_bytes` takes it.

    Raises OSError.
    """
    digest, begin = sha256(), begin_of_states(path)
    with path.open("r+b") as file:
        digest.update(file.read(begin))
        pieces = (piece for part in parts for piece in raw_bytes(part, stream))
        write_hashed(file, pieces, digest.update)
    return digest.hexdigest()


def write_hashed(
    file: IO[bytes], pieces: Iterable[memoryview], update: Callable[[memoryview], None]
) -> None:
    """Writes `pieces` to `file`, each valid until the next is asked for, and has a hash `update`d.

    Hashing takes longer than writing to the system's cache, and the disk longer than that: all three go
    on at once, and whoever syncs the file at its end waits for its last bytes only. Raises OSError.
    """
    unsynced, synced = 0, None
    with ThreadPoolExecutor(2) as beside:
        for piece in pieces:
            hashed = beside.submit(update, piece)
            file.write(piece)
            hashed.result()
            unsynced += len(piece)
            if unsynced >= _SYNCED and (synced is None or synced.done()):
                # What a disk can't write is said to one who syncs, and to none after it.
                if synced is not None:
                    synced.result()
                synced, unsynced = beside.submit(os.fsync, file.fileno()), 0
        if synced is not None:
            synced.result()


def raw_bytes(
    tensor: torch.Tensor, stream: "torch.cuda.Stream | None" = None
) -> Iterator[memoryview]:
    """The bytes of a tensor of at least one axis, some rows at a time; each valid until the next.

    From a GPU they come by `stream`, or by one of their own, through pinned memory, beside what
    computes there: the values must be settled, or `stream` wait for them, and must not change
    meanwhile.
    """
    parts = tensor.split(max(1, _PIECE // max(1, tensor[:1].nbytes)))
    if not tensor.is_cuda:
        for part in parts:
            yield _bytes_of(part.contiguous())
        return
    stream = stream or torch.cuda.Stream(tensor.device)
    staging = torch.empty_like(parts[0], device="cpu", pin_memory=True)
    for part in parts:
        with torch.cuda.stream(stream):
            staging[: len(part)].copy_(part, non_blocking=True)
        stream.synchronize()
        yield _bytes_of(staging[: len(part)])


def _header(text: str) -> bytes:
    """A safetensors file up to its first tensor."""
    header = text.encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def begin_of_states(path: Path) -> int:
    """The place of the first row's first byte in a file of states. Raises OSError."""
    with open_regular(path, links=False) as file:
        (length,) = struct.unpack("<Q", file.read(8))
    return 8 + length


def read_states(path: Path, most: int | None = None) -> torch.Tensor:
    """The states [N, D] as a view of the mapped file, of at most `most` bytes. Raises
    ReferenceUnusable."""
    import safetensors

    try:
        check_regular(path, most, links=False)
        with safetensors.safe_open(str(path), framework="pt", device="cpu") as file:
            states = file.get_tensor(_TENSOR)
    except (safetensors.SafetensorError, OSError) as error:
        raise ReferenceUnusable(f"{path}: {words_of(error, named=False)}") from None
    if states.dim() != 2 or states.dtype not in _NAMES:
        raise ReferenceUnusable(f"{path}: {list(states.shape)} {states.dtype} are no states")
    return states


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


class SpanPrefetch:
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
        rows, size = max(1, _PINNED // row), (end - begin) * row
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
