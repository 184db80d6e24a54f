"""A llama.cpp file as a reference: its log-probabilities stand for a base's logits.

A softmax takes them as it takes any logits, so what an engine makes of them is a comparison with the
file's own distribution, renormalized. Codes are decoded where they are compared: half as many bytes go
there, and float32 arithmetic gives the same bits on every device.

llama.cpp's own KLD from such a base is made in the same pass. With `lp` what the file says of an
entry, p = exp lp, z the model's logit and L = log Σ exp z,

    KLD = Σ p·(lp - z + L) = A + L·P        A = Σ p·(lp - z)        P = Σ p

over the entries with lp above `KLD_CUT`. What is deeper counts nothing, and the probabilities are taken
as they are, which add up to nearly 1: this is no divergence and may be a little below 0. All is float64
but L, whose sum of exponentials is `RowSums`'. llama.cpp takes p, L and every term in float32: its
rounding of `lp - z + L` is up to half a last place of a number of the logits' size, 1e-6 for logits of
16 to 32 in single tokens; in the mean it averages out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from scoremode.checkpoint.virtual import RecordedCheckpoint
from scoremode.engines.base import Schedule
from scoremode.errors import ReferenceUnusable
from scoremode.head.divergence import PairScores
from scoremode.head.project import tile_of
from scoremode.llama_cpp.file import Contents, LogitsFile
from scoremode.reference.base import Reference, Span
from scoremode.results.scores import Scores
from scoremode.text.corpus import Corpus
from scoremode.text.corpus_plan import PlannedText
from scoremode.text.plan import Plan

KLD_CUT = -16.0
# Float64 entries at a time: 32 MiB.
_BLOCK = 1 << 22
# Micro-batches of a pass over a file that stands for a model.
_BATCHES = 16


class LlamaCppSums:
    """The running state of `n` rows of a file's log-probabilities and of a model's logits: the
    `ExtraSums` of a `LlamaCppReference`."""

    columns: ClassVar[tuple[str, ...]] = ("kld_llama_cpp",)

    def __init__(self, n: int, device: torch.device):
        # A and P, float64 [n] each.
        self.cross, self.mass = (
            torch.zeros(n, dtype=torch.float64, device=device) for _ in range(2)
        )

    def consume(self, rows: slice, base: torch.Tensor, model: torch.Tensor) -> None:
        """Takes in float32 [R, E] each, log-probabilities and logits of the same entries, and leaves
        them as they are."""
        step = max(1, _BLOCK // max(1, base.shape[1]))
        for low in range(0, len(base), step):
            lp, z = (x[low : low + step].double() for x in (base, model))
            here = slice(rows.start + low, rows.start + low + len(lp))
            is_cut = lp <= KLD_CUT
            p = lp.exp().masked_fill_(is_cut, 0.0)
            self.mass[here] += p.sum(1)
            # A cut entry counts nothing even where the model has no probability for it.
            self.cross[here] += lp.sub_(z).mul_(p).masked_fill_(is_cut, 0.0).sum(1)

    def merge(self, later: "LlamaCppSums") -> None:
        """Takes in the sums of the same rows over entries that come after all of these."""
        self.cross = self.cross + later.cross
        self.mass = self.mass + later.mass

    def pack(self) -> torch.Tensor:
        """float64 [N, 2]: the whole state, to be sent to other ranks."""
        return torch.stack([self.cross, self.mass], 1)

    @classmethod
    def merged(cls, packed: Sequence[torch.Tensor]) -> "LlamaCppSums":
        """The state of all ranks from each one's `pack`, in the order of their entries."""
        result = cls(len(packed[0]), packed[0].device)
        for columns in packed:
            part = cls(0, columns.device)
            part.cross, part.mass = columns.unbind(1)
            result.merge(part)
        return result

    def finish(self, pair: PairScores) -> PairScores:
        """`pair` of the same rows with `kld_llama_cpp`, and with the base's own scores as the file has
        them: float32 values, not renormalized. Divergences stay those of the renormalized base."""

        def stored(logprob: torch.Tensor) -> torch.Tensor:
            return (logprob + pair.log_sum_base).float().double()

        base = replace(
            pair.base,
            logprob=stored(pair.base.logprob),
            top1_logprob=stored(pair.base.top1_logprob),
        )
        kld = self.cross + pair.log_sum_model * self.mass
        return replace(pair, base=base, extra={"kld_llama_cpp": kld})


class LlamaCppReference:
    """The file under `path`, rows of which are the targets of its plan. Raises ReferenceUnusable.

    - `vocabulary`: its entries.
    - `sha256`: of what tells it from other bases (`LogitsFile.fingerprint`), not of every row.
    - `lowers`: entries that the file raised to its border have what the others leave of 1.
    """

    extra_sums = LlamaCppSums

    def __init__(self, path: Path, *, lowers: bool = False):
        self.path, self._lowers = path, lowers
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
        return DecodedLogits(self.file, spans, device, tile, lowers=self._lowers)


class DecodedLogits:
    """Log-probabilities of the rows `spans`, in tiles of at most so many rows × entries, in reused
    memory; `lowers`: as `LlamaCppReference` has it."""

    def __init__(
        self,
        file: LogitsFile,
        spans: Sequence[Span],
        device: torch.device,
        tile: tuple[int, int],
        *,
        lowers: bool = False,
    ):
        self._file, self._spans, self._lowers = file, spans, lowers
        # By the rows of each block, which come once for every tile of entries.
        self._floors: dict[Span, torch.Tensor] = {}
        self._memory = torch.empty(tile[0] * tile[1], dtype=torch.float32, device=device)
        self._entries = 0, 0

    def load(self, begin: int, end: int) -> None:
        self._entries = begin, end

    def __call__(self, block: slice, out: torch.Tensor | None = None) -> torch.Tensor:
        spans = list(self._rows(block))
        parts = [self._file.codes(*rows, *self._entries) for rows in spans]
        codes, scale, low = (
            torch.from_numpy(np.concatenate(columns)).to(self._memory.device)
            for columns in zip(*parts, strict=True)
        )
        if out is None:
            out = self._memory[: codes.numel()].view(codes.shape)
        out.copy_(codes)
        raised = out == 0 if self._lowers else None
        out.mul_(scale.unsqueeze(1)).add_(low.unsqueeze(1))
        return out if raised is None else torch.where(raised, self._floor(spans), out, out=out)

    def _floor(self, spans: Sequence[Span]) -> torch.Tensor:
        """float32 [R, 1]."""
        for rows in spans:
            if rows not in self._floors:
                found = torch.from_numpy(self._file.floors(*rows))
                self._floors[rows] = found.to(self._memory.device).unsqueeze(1)
        return torch.cat([self._floors[rows] for rows in spans])

    def _rows(self, block: slice) -> Iterator[Span]:
        """Spans of the file's rows that are those of the block."""
        first = 0
        for begin, end in self._spans:
            low, high = max(block.start - first, 0), min(block.stop - first, end - begin)
            if low < high:
                yield begin + low, begin + high
            first += end - begin


class KeptLogits:
    """The Predictions of a model as llama.cpp ran it, in its file under `path`. Raises
    ReferenceUnusable.

    The softmax is of the file's log-probabilities, but for entries that it raised: of 50,000 entries
    they add up to 0.2 %, which every target would be too unlikely by, and every KLD too large. Which
    model, text and BOS rule made it is not in the file.
    """

    tokenizer = None
    dtype = None

    def __init__(self, path: Path):
        self._reference = LlamaCppReference(path, lowers=True)
        self._file = self._reference.file

    @property
    def checkpoint(self) -> RecordedCheckpoint:
        path = self._file.path
        section = {
            "path": str(path.resolve()),
            "fingerprint": self._file.fingerprint,
            "bits_per_weight": {"body": None, "file": None},
            "formats": {"unknown": {}},
            "not_decoded": "a file of log-probabilities, which holds no weights",
            "kv_cache_declared": None,
        }
        return RecordedCheckpoint(
            path, str(path), {}, {}, section=section,
            read_through=lambda: {path.name: self._contents.sha256},
            unchanged=self._file.check_unchanged,
        )  # fmt: skip

    @property
    def vocabulary(self) -> int:
        return self._file.entries

    @cached_property
    def _contents(self) -> Contents:
        return self._file.read_all()

    def check_plan(self, planned: PlannedText, corpus: Corpus) -> None:
        if (rule := planned.plan.protocol.stop_when) is not None:
            raise ReferenceUnusable(
                f"{self._file.path}: is a llama.cpp file, which is read in the order of its chunks: "
                f"--stop-when {rule} draws windows"
            )
        self._file.check_plan(planned.plan)

    def schedule(self) -> Schedule:
        """Micro-batches of about as many rows as the smallest tile has."""
        rows, _ = tile_of(torch.device("cpu"))
        batch = max(1, rows // self._file.rows_per_chunk)
        return Schedule(_BATCHES * batch, batch)

    def reference(self, plan: Plan) -> Reference:
        return self._reference

    def compare(self, reference: Reference, scores: Scores, begin: int) -> None:
        """Nothing: the file holds no scores beside its log-probabilities."""

    def engine(self) -> dict[str, Any]:
        return {
            "dtype": "what llama.cpp chose",
            "arithmetic": "llama.cpp's own",
            "attention": "llama.cpp's",
            "unused_tensors": [],
        }

    def identity(self) -> dict[str, Any]:
        return {"kind": "llama.cpp", "fingerprint": self._file.fingerprint}

    def describe(self) -> dict[str, Any]:
        path = self._file.path
        facts = self._file.facts(self._contents)
        return {"source": str(path), "path": str(path.resolve()), **facts}
