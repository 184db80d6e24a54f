"""llama.cpp's `_logits_` file: a base model's predictions, as llama-perplexity stores them.

    "_logits_" | u32 n_ctx | i32 entries | i32 chunks | i32 tokens[chunks · n_ctx] | rows

Little-endian throughout. The tokens are the text's, with a BOS in front where the tokenizer adds one;
the BOS that llama.cpp then writes over every chunk's first token while it evaluates is not in the file.
A chunk of n_ctx tokens has a row for each target from its position n_ctx // 2 + 1 on, in order;
`llama_cpp_rows` says what a row is. Rows follow the targets of a Plan under protocol `llama.cpp` one to
one.

A row takes 2 bytes an entry, 257 kB at a vocabulary of 128,256, and a file tens of GB: it is
memory-mapped, and only what is asked for is read.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import InvalidMeasurement, ReferenceUnusable
from scoremode.reference.llama_cpp_rows import Nats, decode, decode_each, encode, row_words, spans
from scoremode.text.plan import Plan

__all__ = ["LogitsFile", "LogitsFileWriter"]

_MAGIC = b"_logits_"
_HEADER = struct.Struct("<8sIii")


class LogitsFile:
    """One file, open for reading; `open` makes it.

    - `n_ctx`: tokens of a chunk; `chunks`: how many; `rows_per_chunk`: scored targets of each.
    - `entries`: of the vocabulary; the whole head, as llama.cpp has it.
    - `tokens` int32 [chunks · n_ctx].
    - `rows`: of all chunks. Row `c · rows_per_chunk + i` predicts position `n_ctx // 2 + 1 + i` of
      chunk `c`.
    """

    def __init__(
        self,
        path: Path,
        n_ctx: int,
        entries: int,
        tokens: NDArray[np.int32],
        words: NDArray[np.uint16],
    ):
        self.path = path
        self.n_ctx = n_ctx
        self.entries = entries
        self.tokens = tokens
        self.chunks = len(tokens) // n_ctx
        self.rows_per_chunk = _rows_per_chunk(n_ctx)
        self.rows = len(words)
        self._words = words

    @classmethod
    def open(cls, path: Path) -> "LogitsFile":
        """Reads header and tokens. Raises ReferenceUnusable unless the size is exactly theirs."""
        try:
            with path.open("rb") as file:
                return cls._open(path, file)
        except OSError as error:
            raise ReferenceUnusable(f"{path}: cannot be read: {error.strerror or error}") from None

    @classmethod
    def _open(cls, path: Path, file: BinaryIO) -> "LogitsFile":
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEADER.size)
        magic = head[: len(_MAGIC)]
        if magic != _MAGIC:
            raise ReferenceUnusable(
                f"{path}: not a file of llama-perplexity: begins with {magic!r}, not {_MAGIC!r}"
            )
        if len(head) < _HEADER.size:
            raise ReferenceUnusable(f"{path}: ends in its header, after {size} bytes")
        _, n_ctx, entries, chunks = _HEADER.unpack(head)
        _check_sizes(path, n_ctx, entries, chunks)
        count, words = chunks * _rows_per_chunk(n_ctx), row_words(entries)
        offset = _HEADER.size + 4 * chunks * n_ctx
        expected = offset + 2 * count * words
        if size != expected:
            raise ReferenceUnusable(
                f"{path}: has {size} bytes, and {chunks} chunks of {n_ctx} tokens over {entries} "
                f"entries take {expected}"
            )
        tokens = np.frombuffer(file.read(offset - _HEADER.size), "<i4").astype(np.int32)
        _check_tokens(path, tokens, entries)
        rows = np.asarray(np.memmap(file, "<u2", "r", offset, (count, words)))
        return cls(path, n_ctx, entries, tokens, rows)

    def logprobs(
        self, begin_row: int, end_row: int, begin_entry: int, end_entry: int
    ) -> NDArray[np.float32]:
        """float32 [R, E]: the base's log-probabilities of a tile, decoded as llama.cpp does.

        What llama.cpp takes for the base's top token is the first of the largest in a row: entries
        less than a step apart (2.4e-4 nats in a row that is 16 wide) are equal here.

        Raises ReferenceUnusable for a row that a model without finite logits has left.
        """
        assert 0 <= begin_row <= end_row <= self.rows, (begin_row, end_row)
        assert 0 <= begin_entry <= end_entry <= self.entries, (begin_entry, end_entry)
        rows = self._words[begin_row:end_row]
        self._check_rows(rows, np.arange(begin_row, end_row))
        return decode(rows, begin_entry, end_entry)

    def stored_logprob(
        self, rows: NDArray[np.integer], targets: NDArray[np.integer]
    ) -> NDArray[np.float32]:
        """float32 [N]: the base's log-probability of entry `targets[i]` in row `rows[i]`."""
        assert targets.min(initial=0) >= 0 and targets.max(initial=0) < self.entries
        self._check_rows(self._words[rows, :4], rows)
        return decode_each(self._words, rows, targets)

    def check_plan(self, plan: Plan) -> None:
        """Raises ReferenceUnusable unless row `i` predicts what `plan` scores as its `i`-th target."""
        protocol = plan.protocol
        if protocol.scored != "second-half" or protocol.bos_at != "windows":
            raise ReferenceUnusable(
                f"{self.path}: holds what protocol llama.cpp scores, and the plan's protocol is "
                f"{protocol.name} (scored {protocol.scored}, BOS at {protocol.bos_at})"
            )
        for what in ("context_length", "stride"):
            theirs = getattr(protocol, what)
            if theirs != self.n_ctx:
                raise ReferenceUnusable(
                    f"{self.path}: has {what.replace('_', ' ')} {self.n_ctx}, and the plan's "
                    f"protocol {protocol.name} has {theirs}"
                )
        if len(plan) != self.chunks:
            hint = f": --chunks {self.chunks} takes as many" * (len(plan) > self.chunks)
            raise ReferenceUnusable(
                f"{self.path}: has {self.chunks} chunks, and the plan has {len(plan)} windows{hint}"
            )
        starts = self.n_ctx * np.arange(self.chunks)
        for what, ours, theirs in (
            ("start", starts, plan.start),
            ("end", starts + self.n_ctx, plan.stop),
            ("first scored position", np.full(self.chunks, self.n_ctx // 2 + 1), plan.first),
        ):
            self._check_same(f"window {{}} with {what}", ours, theirs)
        self._check_same("at place {} token", self.tokens, plan.tokens[: len(self.tokens)])

    def _check_same(self, what: str, ours: NDArray, theirs: NDArray) -> None:
        differ = np.flatnonzero(ours != theirs)
        if len(differ):
            i = int(differ[0])
            raise ReferenceUnusable(
                f"{self.path}: has {what.format(i)} {ours[i]} where the plan has {theirs[i]} "
                f"({len(differ)} of {len(ours)} differ)"
            )

    def _check_rows(self, rows: NDArray[np.uint16], numbers: NDArray[np.integer]) -> None:
        scale, low = spans(rows)
        wrong = np.flatnonzero(~(np.isfinite(low) & np.isfinite(scale) & (scale >= 0)))
        if len(wrong):
            i = int(wrong[0])
            chunk, place = divmod(int(numbers[i]), self.rows_per_chunk)
            raise ReferenceUnusable(
                f"{self.path}: scale {scale[i]} and smallest log-probability {low[i]} at position "
                f"{self.n_ctx // 2 + 1 + place} of chunk {chunk}: the base's logits were not finite"
            )


class LogitsFileWriter:
    """Writes a file that llama-perplexity reads with `--kl-divergence`, as a context manager.

    It lies under `path` once the block has ended well with all its rows written, and not before.

    - `tokens` int32 [chunks · n_ctx]: of a plan, `plan.tokens[: len(plan) * n_ctx]`.
    - `nats`: how far below a row's largest entry it reaches; 24 as ik_llama.cpp writes it.

    Raises ReferenceUnusable for what makes no such file and for a file that can't be written.
    """

    def __init__(
        self, path: Path, n_ctx: int, entries: int, tokens: NDArray[np.int32], nats: Nats = 16
    ):
        assert nats in (16, 24), nats
        chunks, rest = divmod(len(tokens), max(n_ctx, 1))
        _check_sizes(path, n_ctx, entries, chunks)
        if rest:
            raise ReferenceUnusable(
                f"{path}: {len(tokens)} tokens are no whole number of chunks of {n_ctx}"
            )
        _check_tokens(path, tokens, entries)
        self.path = path
        self.n_ctx = n_ctx
        self.entries = entries
        self.rows = chunks * _rows_per_chunk(n_ctx)
        self.written = 0
        self._nats: Nats = nats
        self._head = _HEADER.pack(_MAGIC, n_ctx, entries, chunks) + tokens.astype("<i4").tobytes()
        self._partial = path.with_name(path.name + ".tmp")

    def __enter__(self) -> "LogitsFileWriter":
        if self.path.is_dir():
            raise ReferenceUnusable(f"{self.path}: cannot be written: Is a directory")
        with self._explained():
            self._file = self._partial.open("wb")
        try:
            with self._explained():
                self._file.write(self._head)
        except BaseException:
            self._discard()
            raise
        return self

    def write(self, logits: NDArray[np.float32]) -> None:
        """The next rows: float32 logits or log-probabilities [R, entries].

        Raises InvalidMeasurement for a row whose largest is not finite or that holds a NaN.
        """
        assert logits.dtype == np.float32 and logits.shape[1:] == (self.entries,), logits.shape
        wrong = np.flatnonzero(~np.isfinite(logits.max(1)))
        if len(wrong):
            chunk, place = divmod(self.written + int(wrong[0]), _rows_per_chunk(self.n_ctx))
            raise InvalidMeasurement(
                f"the largest logit {logits[wrong[0]].max()} is not finite (chunk {chunk}, position "
                f"{self.n_ctx // 2 + 1 + place}; {len(wrong)} of {len(logits)} such)"
            )
        if self.written + len(logits) > self.rows:
            raise ReferenceUnusable(
                f"{self.path}: {self.written + len(logits)} rows for {self.rows} targets"
            )
        with self._explained():
            self._file.write(encode(logits, self._nats).tobytes())
        self.written += len(logits)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._discard()

    def _discard(self) -> None:
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._partial.unlink(missing_ok=True)

    def _finish(self) -> None:
        if self.written != self.rows:
            raise ReferenceUnusable(
                f"{self.path}: {self.written} rows were written for {self.rows} targets"
            )
        with self._explained():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._partial.rename(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise ReferenceUnusable(f"{self.path}: cannot be written: {reason}") from None


def _rows_per_chunk(n_ctx: int) -> int:
    return n_ctx - 1 - n_ctx // 2


def _check_sizes(path: Path, n_ctx: int, entries: int, chunks: int) -> None:
    for what, value, least in (
        ("context length", n_ctx, 3),  # below it nothing is scored
        ("vocabulary", entries, 1),
        ("number of chunks", chunks, 1),
    ):
        if value < least:
            raise ReferenceUnusable(f"{path}: {what} {value}: must be at least {least}")


def _check_tokens(path: Path, tokens: NDArray[np.int32], entries: int) -> None:
    wrong = np.flatnonzero((tokens < 0) | (tokens >= entries))
    if len(wrong):
        raise ReferenceUnusable(
            f"{path}: token id {tokens[wrong[0]]} at place {wrong[0]}, and the vocabulary has "
            f"{entries} entries"
        )
