"""llama.cpp's `_logits_` file: a base model's predictions, as llama-perplexity stores them.

    "_logits_" | u32 n_ctx | i32 entries | i32 chunks | i32 tokens[chunks · n_ctx] | rows

Little-endian throughout. The tokens are the text's, with a BOS in front where the tokenizer adds one;
the BOS that llama.cpp then writes over every chunk's first token while it evaluates is not in the file.
A chunk of n_ctx tokens has a row for each target from its position n_ctx // 2 + 1 on, in order;
`rows.py` says what a row is. Rows follow the targets of a Plan under protocol `llama.cpp` one to
one.

A row takes 2 bytes an entry, 257 kB at a vocabulary of 128,256, and a file tens of GB: it is
memory-mapped, and only what is asked for is read.

It has no checksum. What tells damage is that each row must be a distribution (`rows.sums`): a change
of its entries that moves their sum by less than 16-bit steps do can't be seen.
"""

import math
import mmap
import os
import struct
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from scoremode.checkpoint.model_files import is_text, no_model
from scoremode.errors import ReferenceUnusable
from scoremode.lib.files import open_regular
from scoremode.llama_cpp.rows import codes_of, decode_each, floors, row_words, spans, sums
from scoremode.text.plan import Plan

_MAGIC = b"_logits_"
_HEADER = struct.Struct("<8sIii")
# Rows that a fingerprint sees.
_SAMPLED = 64
_BLOCK = 1 << 22


@dataclass(frozen=True)
class Contents:
    """Facts of a file that only reading all of it tells.

    - `sha256`: of its bytes.
    - `step`: nats between two codes of the coarsest row: an entry is off by up to half of it.
    """

    sha256: str
    step: float

    @property
    def reach(self) -> float:
        """Nats from the largest to the smallest entry of the widest row."""
        return 65535 * self.step


def holds_logits(path: Path) -> bool:
    """Tells whether a file begins as one of llama.cpp's log-probabilities does."""
    try:
        with open_regular(path) as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


class LogitsFile:
    """The file of logits under `path`. Raises ReferenceUnusable unless its size is what it says.

    - `n_ctx`: tokens of a chunk; `chunks`: how many; `rows_per_chunk`: scored targets of each.
    - `entries`: of the vocabulary; the whole head, as llama.cpp has it.
    - `tokens` int32 [chunks · n_ctx].
    - `rows`: of all chunks. Row `c · rows_per_chunk + i` predicts position `n_ctx // 2 + 1 + i` of
      chunk `c`.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            with open_regular(path) as file:
                self._open(path, file)
        except OSError as error:
            raise ReferenceUnusable(f"{path}: cannot be read: {error.strerror or error}") from None

    def _open(self, path: Path, file: IO[bytes]) -> None:
        stat = os.fstat(file.fileno())
        size, head = stat.st_size, file.read(_HEADER.size)
        magic = head[: len(_MAGIC)]
        if magic != _MAGIC and is_text(path):
            raise ReferenceUnusable(no_model(path, "base"))
        if magic != _MAGIC:
            raise ReferenceUnusable(
                f"{path}: not a file of llama-perplexity: begins with {magic!r}, not {_MAGIC!r}"
            )
        if len(head) < _HEADER.size:
            raise ReferenceUnusable(f"{path}: ends in its header, after {size} bytes")
        _, n_ctx, entries, chunks = _HEADER.unpack(head)
        check_sizes(path, n_ctx, entries, chunks)
        self.n_ctx, self.entries, self.chunks = n_ctx, entries, chunks
        self.rows_per_chunk = rows_per_chunk(n_ctx)
        self.rows = chunks * self.rows_per_chunk
        offset, shape = _HEADER.size + 4 * chunks * n_ctx, (self.rows, row_words(entries))
        expected = offset + 2 * math.prod(shape)
        if size != expected:
            raise ReferenceUnusable(
                f"{path}: has {size} bytes, and {chunks} chunks of {n_ctx} tokens over {entries} "
                f"entries take {expected}"
            )
        self.tokens = np.frombuffer(file.read(offset - _HEADER.size), "<i4").astype(np.int32)
        check_tokens(path, self.tokens, entries)
        self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._opened = _stamp(stat)
        flat = np.frombuffer(self._mapped, "<u2", math.prod(shape), offset)
        self._words = flat.reshape(shape)

    def codes(
        self, begin_row: int, end_row: int, begin_entry: int, end_entry: int
    ) -> tuple[NDArray[np.uint16], NDArray[np.float32], NDArray[np.float32]]:
        """A tile as it is stored: codes uint16 [R, E], a view of the mapped file, and each row's
        scale and smallest log-probability, float32 [R].

        What llama.cpp takes for the base's top token is the first of the largest in a row: entries
        less than a step apart (2.4e-4 nats in a row that is 16 wide) are equal here.

        Raises ReferenceUnusable for a row that a model without finite logits has left.
        """
        assert 0 <= begin_row <= end_row <= self.rows, (begin_row, end_row)
        assert 0 <= begin_entry <= end_entry <= self.entries, (begin_entry, end_entry)
        rows = self._words[begin_row:end_row]
        self._check_rows(rows, np.arange(begin_row, end_row))
        return codes_of(rows, begin_entry, end_entry), *spans(rows)

    def floors(self, begin: int, end: int) -> NDArray[np.float32]:
        """float32 [end - begin]: entries with code 0 in rows that add up to 1 (`rows.floors`)."""
        step = max(1, _BLOCK // self.entries)
        parts = [self._words[low : min(low + step, end)] for low in range(begin, end, step)]
        found = [floors(rows, self.entries) for rows in parts]
        return np.concatenate([np.zeros(0, np.float32), *found])

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

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of header, tokens and the ends of some rows: cheap, and enough to tell bases apart.

        It does not see every row; `read_all` does.
        """
        sampled = np.linspace(0, self.rows - 1, min(self.rows, _SAMPLED)).astype(np.int64)
        digest = sha256(packed_head(self.n_ctx, self.entries, self.tokens))
        digest.update(np.stack(spans(self._words[sampled]), 1).astype("<f4").tobytes())
        return digest.hexdigest()

    def facts(self, contents: Contents | None = None) -> dict[str, Any]:
        """Its facts for the record; of its `contents` the hash and how coarse it is: an entry is off by
        up to half a step, and what would lie deeper than the reach below a row's largest entry was
        raised to it."""
        facts: dict[str, Any] = {
            "fingerprint": self.fingerprint,
            "n_ctx": self.n_ctx,
            "chunks": self.chunks,
            "rows": self.rows,
            "vocabulary": self.entries,
        }
        if contents is not None:
            facts |= {
                "sha256": contents.sha256,
                "step_nats": contents.step,
                "reach_nats": contents.reach,
                "checksum": "none in the file; each row adds up to 1 within its steps",
            }
        return facts

    def read_all(self) -> Contents:
        """Reads every byte once. Raises ReferenceUnusable, as `codes` does, and for a row that is no
        distribution in 16-bit steps."""
        head = packed_head(self.n_ctx, self.entries, self.tokens)
        digest, step, words = sha256(head), 0.0, self._words.shape[1]
        count = max(1, _BLOCK // (2 * words))
        try:
            # Not through the mapping, whose pages would count as this process' memory.
            with open_regular(self.path) as file:
                file.seek(len(head))
                for begin in range(0, self.rows, count):
                    end = min(begin + count, self.rows)
                    block = file.read(2 * words * (end - begin))
                    if len(block) < 2 * words * (end - begin):
                        raise ReferenceUnusable(f"{self.path}: has become shorter")
                    digest.update(block)
                    rows = np.frombuffer(block, "<u2").reshape(-1, words)
                    self._check_rows(rows, np.arange(begin, end))
                    self._check_sums(rows, begin)
                    step = max(step, float(spans(rows)[0].max()))
        except OSError as error:
            raise ReferenceUnusable(f"{self.path}: cannot be read: {error.strerror}") from None
        self.check_unchanged()
        return Contents(digest.hexdigest(), step)

    def release(self) -> None:
        """Gives back the memory that holds what was read; the system's cache may keep it."""
        self._mapped.madvise(mmap.MADV_DONTNEED)

    def check_unchanged(self) -> None:
        """Raises ReferenceUnusable if it is not the file that was opened."""
        try:
            now = _stamp(self.path.stat())
        except OSError as error:
            raise ReferenceUnusable(f"{self.path}: {error.strerror}") from None
        if now != self._opened:
            raise ReferenceUnusable(f"{self.path}: was changed or replaced while it was in use")

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
            raise ReferenceUnusable(
                f"{self.path}: scale {scale[i]} and smallest log-probability {low[i]} "
                f"{self._place(int(numbers[i]))}: the base's logits were not finite"
            )

    def _check_sums(self, rows: NDArray[np.uint16], begin: int) -> None:
        found = sums(rows, self.entries)
        fits = found.has_ends & (found.least <= found.total) & (found.total <= found.most)
        if not fits.all():
            i = int(np.flatnonzero(~fits)[0])
            words = (
                f"the probabilities add up to {found.total[i]:.7g}, and those of a distribution "
            )
            words += f"in its steps to {found.least[i]:.7f} … {found.most[i]:.7f}"
            if not found.has_ends[i]:
                codes = codes_of(rows[i : i + 1], 0, self.entries)
                words = f"the codes are {codes.min()} … {codes.max()}, and those of a distribution "
                words += "go from 0 to 65535"
            raise ReferenceUnusable(
                f"{self.path}: row {begin + i}, {self._place(begin + i)}: {words}: the file is "
                f"damaged, or not of llama-perplexity ({int((~fits).sum())} of {len(fits)} rows "
                "read with it are so)"
            )

    def _place(self, row: int) -> str:
        chunk, place = divmod(row, self.rows_per_chunk)
        return f"at position {self.n_ctx // 2 + 1 + place} of chunk {chunk}"


def packed_head(n_ctx: int, entries: int, tokens: NDArray[np.int32]) -> bytes:
    """The bytes before the rows."""
    header = _HEADER.pack(_MAGIC, n_ctx, entries, len(tokens) // n_ctx)
    return header + tokens.astype("<i4").tobytes()


def _stamp(stat: os.stat_result) -> tuple[int, ...]:
    """Facts of a file that change when it is written to or replaced."""
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def rows_per_chunk(n_ctx: int) -> int:
    return n_ctx - 1 - n_ctx // 2


def check_sizes(path: Path, n_ctx: int, entries: int, chunks: int) -> None:
    for what, value, least in (
        ("context length", n_ctx, 3),  # below it nothing is scored
        ("vocabulary", entries, 1),
        ("number of chunks", chunks, 1),
    ):
        if value < least:
            raise ReferenceUnusable(f"{path}: {what} {value}: must be at least {least}")


def check_tokens(path: Path, tokens: NDArray[np.int32], entries: int) -> None:
    wrong = np.flatnonzero((tokens < 0) | (tokens >= entries))
    if len(wrong):
        raise ReferenceUnusable(
            f"{path}: token id {tokens[wrong[0]]} at place {wrong[0]}, and the vocabulary has "
            f"{entries} entries"
        )
