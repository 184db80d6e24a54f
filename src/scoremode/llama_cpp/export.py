"""A kept reference as a llama.cpp file: its logits made again, some rows at a time, and encoded.

The file (`file.py` says what it is) is written whole, or not at all.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray

from scoremode.errors import InvalidMeasurement, ProtocolError, ReferenceUnusable
from scoremode.head.project import Logits, tile_of, tiles
from scoremode.head.rows import RowSums
from scoremode.lib.files import Partial
from scoremode.llama_cpp.file import check_sizes, check_tokens, packed_head, rows_per_chunk
from scoremode.llama_cpp.rows import Nats, encode, row_words
from scoremode.reference.replay import compare_base
from scoremode.reference.stored import StoredReference
from scoremode.results.folders.paths import opened_through, replaceable
from scoremode.results.scores import expected
from scoremode.text.protocol import Protocol

# float32 logits that exist at a time, over the whole vocabulary: 128 MiB.
_BLOCK = 1 << 25


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


def check_exportable(protocol: Protocol) -> None:
    """Raises ProtocolError unless a `_logits_` file can hold what `protocol` scores."""
    is_chunks = protocol.stride in (None, protocol.context_length) and protocol.tail == "drop"
    if (protocol.scored, protocol.bos_at, is_chunks) != ("second-half", "windows", True):
        raise ProtocolError(
            f"protocol {protocol.name}: a llama.cpp file holds what protocol llama.cpp scores, the "
            "second halves of windows side by side"
        )


def export_llama_cpp(
    reference: StoredReference,
    path: Path,
    *,
    nats: Nats = 16,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> None:
    """Writes `reference` to `path`, whole or not at all, as llama-perplexity reads it.

    - `nats`: how far below a row's largest entry it reaches.
    - `progress`: called with the rows done since the last call, and how many there are in all.

    All of the reference is read and compared with its hashes, and every row's log-probability of its
    target with the stored one. Raises ProtocolError, ReferenceUnusable.
    """
    plan = reference.plan()
    check_exportable(plan.protocol)
    reference.check_files()
    n_ctx, entries = plan.protocol.context_length, reference.vocabulary
    assert n_ctx is not None
    most, width = tile_of(device)
    rows = min(most, max(1, _BLOCK // entries))
    targets = expected(plan, range(len(plan)))["target"].astype(np.int64)
    tokens = plan.tokens[: len(plan) * n_ctx]
    with LogitsFileWriter(path, n_ctx, entries, tokens, nats) as writer:
        for begin in range(0, plan.scored, rows):
            end = min(begin + rows, plan.scored)
            logits = reference.logits([(begin, end)], device, (rows, width))
            z = _whole(logits, end - begin, entries, (rows, width), device)
            sums = RowSums(end - begin, device)
            sums.absorb(slice(None), z, torch.from_numpy(targets[begin:end]).to(device), 0)
            compare_base(reference, begin, sums.finish().logprob.cpu().numpy(), "float32")
            writer.write(z.cpu().numpy())
            progress(end - begin, plan.scored)


def _whole(
    logits: Logits, rows: int, entries: int, tile: tuple[int, int], device: torch.device
) -> torch.Tensor:
    """float32 [rows, entries]."""
    z = torch.empty((rows, entries), dtype=torch.float32, device=device)
    for begin, blocks in tiles(range(rows), entries, tile, logits):
        for block in blocks:
            z[block, begin : begin + tile[1]] = logits(block)
    return z
