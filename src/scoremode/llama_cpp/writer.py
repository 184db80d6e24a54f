"""Writing llama.cpp's `_logits_` file (`file.py` says what it is): whole, or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import InvalidMeasurement, ReferenceUnusable
from scoremode.lib.files import Partial
from scoremode.llama_cpp.file import check_sizes, check_tokens, packed_head, rows_per_chunk
from scoremode.llama_cpp.rows import Nats, encode, row_words
from scoremode.results.folders.paths import opened_through, replaceable

__all__ = ["LogitsFileWriter"]


class LogitsFileWriter:
    """Writes a file that llama-perplexity reads with `--kl-divergence`, as a context manager.

    It lies under `path` once the block has ended well with all its rows written, and not before; where
    that is a device or a pipe, it is written to.

    - `tokens` int32 [chunks · n_ctx]: of a plan, `plan.tokens[: len(plan) * n_ctx]`.
    - `nats`: how far below a row's largest entry it reaches; 24 as ik_llama.cpp writes it.

    Raises ReferenceUnusable for what makes no such file and for a file that can't be written.
    """

    def __init__(
        self, path: Path, n_ctx: int, entries: int, tokens: NDArray[np.int32], nats: Nats = 16
    ):
        assert nats in (16, 24), nats
        chunks, rest = divmod(len(tokens), max(n_ctx, 1))
        check_sizes(path, n_ctx, entries, chunks)
        if rest:
            raise ReferenceUnusable(
                f"{path}: {len(tokens)} tokens are no whole number of chunks of {n_ctx}"
            )
        check_tokens(path, tokens, entries)
        self.path = path
        self.n_ctx = n_ctx
        self.entries = entries
        self.rows = chunks * rows_per_chunk(n_ctx)
        self.written = 0
        self._nats: Nats = nats
        self._head = packed_head(n_ctx, entries, tokens)
        self.bytes = len(self._head) + 2 * self.rows * row_words(entries)
        with self._explained():
            # None for a device or a pipe, which rows go to as they come.
            self._target = replaceable(path)
        self._partial: Partial | None = None

    def __enter__(self) -> "LogitsFileWriter":
        with self._explained():
            if self._target is None:
                self._file = opened_through(self.path)
            else:
                free = shutil.disk_usage(self._target.parent).free
                if self.bytes > free:
                    raise ReferenceUnusable(
                        f"{self.path}: takes {self.bytes / 1e9:.3g} GB, and there are "
                        f"{free / 1e9:.3g} GB free"
                    )
                self._partial = Partial(self._target)
                self._file = self._partial.file
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
            chunk, place = divmod(self.written + int(wrong[0]), rows_per_chunk(self.n_ctx))
            raise InvalidMeasurement(
                f"the largest logit {logits[wrong[0]].max()} is not finite (chunk {chunk}, position "
                f"{self.n_ctx // 2 + 1 + place}; {len(wrong)} of {len(logits)} such)"
            )
        if self.written + len(logits) > self.rows:
            raise ReferenceUnusable(
                f"{self.path}: {self.written + len(logits)} rows for {self.rows} targets"
            )
        with self._explained():
            self._file.write(encode(logits, self._nats).data)
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
        if self._partial is not None:
            self._partial.discard()

    def _finish(self) -> None:
        if self.written != self.rows:
            raise ReferenceUnusable(
                f"{self.path}: {self.written} rows were written for {self.rows} targets"
            )
        with self._explained():
            if self._partial is None:
                self._file.close()
            else:
                self._partial.settle()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise ReferenceUnusable(f"{self.path}: cannot be written: {reason}") from None
