"""A vLLM model's head on one rank: rows of final hidden states in, full-vocabulary results out.

The model's own `compute_logits` runs, so scale, softcap and whatever a model does before its head
stay what they are. Only the gathering of logits over tensor-parallel ranks is left out: each rank
reduces its own share of the vocabulary, a chunk of rows at a time, and a few numbers a row are
gathered instead of the logits. A base's logits of the same share meet them in the same chunks.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scoremode.engines.vllm.prompts import Kind
from scoremode.engines.vllm.workers.comparison import (
    Base,
    Share,
    compare,
    open_base,
    project_in_float32,
)
from scoremode.head.divergence import ExtraSums
from scoremode.head.rows import HeadScores, RowSums
from scoremode.reference.base import Reference

# Gets some rows, and the states that the projection was given for them.
Given = Callable[[slice, torch.Tensor], None]

# Bytes of a chunk's logits. A GPU's matmul wants many rows; a CPU's reductions want a shared cache.
_CHUNK_BYTES = {"cuda": 512 << 20, "cpu": 16 << 20}
# These models, and those that inherit from them, treat columns by their index in the whole vocabulary
# after the head, which a rank's share does not have: their logits are gathered.
_NEEDS_ALL_COLUMNS = frozenset(
    {
        "Alpamayo2SuperForConditionalGeneration",
        "ChameleonForConditionalGeneration",
        "DiffusionGemmaForConditionalGeneration",
        "DoryForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Moondream3ForCausalLM",
    }
)


class ShardedHead:
    """The head of `model`, which must outlive it.

    - `head_dtype`: "model" leaves the projection as deployed, logits rounded to the model's dtype;
      "float32" gives float32 logits from the same weights, which must not be quantized.

    Every tensor-parallel rank must call a method with the same arguments; where logits are gathered,
    only the first rank's answer means anything.
    """

    def __init__(self, model: Any, head_dtype: str):
        from vllm.distributed import get_tensor_model_parallel_world_size
        from vllm.model_executor.layers.logits_processor import LogitsProcessor

        # A caller may put something else in its place afterwards.
        self._compute_logits = model.compute_logits
        self._ranks = get_tensor_model_parallel_world_size()
        self._float32 = head_dtype == "float32"
        names = {base.__name__ for base in type(model).__mro__}
        self._gathers = self._ranks > 1 and not names.isdisjoint(_NEEDS_ALL_COLUMNS)
        # The latest run's layer and its processor, how wide its states and its logits were.
        self._projection: Any = None
        self._states = torch.empty(0, 0)
        self._columns = 0
        self._given: Callable[[torch.Tensor], None] | None = None
        self._base: Base | None = None
        self._base_entries: int | None = None
        self._extra: type[ExtraSums] | None = None
        for processor in model.modules():
            if isinstance(processor, LogitsProcessor):
                self._take_over(processor)

    def score(
        self, hidden: torch.Tensor, target: torch.Tensor, kind: Kind, given: Given | None = None
    ) -> HeadScores:
        """Scores of `target` int64 [N] after `hidden` [N, D], as `kind` wants them. N is at least 1."""
        parts = []
        for part in self._chunks(hidden):
            begin, logits = self._logits(hidden, part, kind.vocabulary, given)
            sums = RowSums(len(logits), hidden.device, entropy=kind.entropy)
            if logits.shape[1]:
                sums.absorb(slice(None), logits, target[part], begin)
            parts.append(sums.pack())
        return RowSums.merged(self._over_ranks(torch.cat(parts))).finish()

    def compare_with(self, reference: Reference) -> None:
        """Loads what `compare` needs of it, and lets an earlier one go."""
        self._base = self._base_entries = None
        assert self._projection is not None, "the head has not run yet"
        begin, end = self._span(self._columns)
        head, _ = self._projection
        self._base = open_base(
            reference,
            Share(
                min(begin, reference.vocabulary),
                min(end, reference.vocabulary),
                # Without the cut of a padding at the end.
                max(self._columns, getattr(head, "num_embeddings_per_partition", 0)),
                self._states.dtype,
                self._states.device,
                float32=self._float32,
            ),
        )
        self._base_entries, self._extra = reference.vocabulary, reference.extra_sums

    def compare(
        self,
        hidden: torch.Tensor,
        target: torch.Tensor,
        kind: Kind,
        rows: NDArray[np.int64],
        given: Given | None = None,
    ) -> dict[str, torch.Tensor]:
        """`score` beside `rows` [N] of the reference: columns [N] by name."""
        entries = self._entries if kind.vocabulary is None else kind.vocabulary
        if self._base is None or entries != self._base_entries:
            raise ValueError(
                f"to compare over {entries} entries, where the reference has {self._base_entries}"
            )
        parts = []
        for part in self._chunks(hidden):
            begin, logits = self._logits(hidden, part, kind.vocabulary, given)
            base = self._base(rows[part]) if logits.shape[1] else None
            parts.append(
                compare(
                    logits,
                    base,
                    target[part],
                    begin,
                    self._over_ranks,
                    entropy=kind.entropy,
                    extra=self._extra,
                    full=kind.full,
                    draft=kind.draft,
                )
            )
        return {name: torch.cat([columns[name] for columns in parts]) for name in parts[0]}

    def gathered(
        self, hidden: torch.Tensor, target: torch.Tensor, vocabulary: int | None
    ) -> HeadScores:
        """`score` by the textbook: all logits in one place, then a float64 log-softmax."""
        logits = self.own_logits(hidden)
        if logits is None:
            # vLLM gathers to the first rank only, whose answer is the one that is used.
            nothing = torch.zeros(len(hidden), dtype=torch.float64, device=hidden.device)
            return HeadScores(nothing, nothing.long(), nothing, nothing)
        z = logits[:, :vocabulary].double().log_softmax(1)
        entropy = -(z.exp() * z).nan_to_num(0.0).sum(1)
        return HeadScores(z.gather(1, target[:, None])[:, 0], z.argmax(1), z.amax(1), entropy)

    def own_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """The model's logits of `hidden` [N, D], gathered as vLLM does: None on a rank without them."""
        with self._gathering():
            return self._compute_logits(hidden)

    def describe(self) -> dict[str, Any]:
        """`entries`: of the softmax, as far as the head has any; `ranks` that share them; `width` and
        `dtype` of the states that the head is given."""
        return {
            "entries": self._entries,
            "ranks": self._ranks,
            "gathered": self._gathers,
            "logits": "float32" if self._float32 else "model",
            "width": self._states.shape[1],
            "dtype": str(self._states.dtype).removeprefix("torch."),
        }

    @property
    def _entries(self) -> int | None:
        return int(self._projection[1].org_vocab_size) if self._projection else None

    def _chunks(self, hidden: torch.Tensor) -> list[slice]:
        """Rows of equal count, so that no chunk is left with a few rows for a whole matmul."""
        n = len(hidden)
        if self._entries is None:
            # Nothing but a run of the head tells how wide its logits are.
            with self._gathering(self._gathers):
                self._compute_logits(hidden[:1])
        entries = self._entries or 1
        share = entries if self._gathers else -(-entries // self._ranks)
        width = share * (4 if self._float32 else hidden.element_size())
        rows = max(1, _CHUNK_BYTES.get(hidden.device.type, _CHUNK_BYTES["cpu"]) // width)
        rows = -(-n // -(-n // rows))
        return [slice(low, min(low + rows, n)) for low in range(0, n, rows)]

    def _logits(
        self, hidden: torch.Tensor, part: slice, vocabulary: int | None, given: Given | None
    ) -> tuple[int, torch.Tensor]:
        """This rank's logits [R, E] of one chunk, padding left out, and the first one's entry."""
        self._given = None if given is None else partial(given, part)
        with self._gathering(self._gathers):
            logits = self._compute_logits(hidden[part])
        self._given = None
        if logits is None:
            # Gathered to the first rank only.
            return 0, hidden.new_empty((part.stop - part.start, 0))
        if self._float32 and logits.dtype != torch.float32:
            raise ValueError(f"head dtype float32: this model's head gives {logits.dtype}")
        begin, end = self._span(logits.shape[1])
        if vocabulary is not None:
            end = min(end, vocabulary)
        return begin, logits[:, : max(0, end - begin)]

    def _span(self, width: int) -> tuple[int, int]:
        """The vocabulary entries of this rank's logits, padding left out."""
        head, processor = self._projection
        if self._has_all:
            return 0, min(width, processor.org_vocab_size)
        shard = head.shard_indices
        end = min(shard.org_vocab_end_index, processor.org_vocab_size)
        assert width >= end - shard.org_vocab_start_index, "fewer logits than vocabulary entries"
        return shard.org_vocab_start_index, end

    @property
    def _has_all(self) -> bool:
        """True where this rank's logits are those of all entries."""
        head, _ = self._projection
        return self._gathers or getattr(head, "tp_size", self._ranks) == 1

    def _over_ranks(self, packed: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's [N, …], in rank order, which is the order of their entries."""
        if self._has_all:
            return [packed]
        from vllm.distributed import get_tp_group

        gathered = packed.new_empty((self._ranks * len(packed), *packed.shape[1:]))
        torch.distributed.all_gather_into_tensor(
            gathered, packed.contiguous(), group=get_tp_group().device_group
        )
        return list(gathered.split(len(packed)))

    def _take_over(self, processor: Any) -> None:
        """Makes a LogitsProcessor tell its projection and keep its share of the logits."""
        forward, gather = processor.forward, processor._gather_logits

        def watched(lm_head: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self._projection = lm_head, processor
            # No rows: what a step computes with is not held longer than the step.
            self._states = hidden_states.new_empty((0, hidden_states.shape[1]))
            if self._given is not None:
                self._given(hidden_states)
            if self._float32:
                project_in_float32(lm_head)
            logits = forward(lm_head, hidden_states, *args, **kwargs)
            if logits is not None:
                self._columns = logits.shape[1]
            return logits

        processor.forward = watched
        processor._gather_logits = lambda z: gather(z) if self._is_gathering else z
        # Since 0.28 a pooling model's head is float32 unless told otherwise. Ours says for itself.
        if hasattr(processor, "head_dtype"):
            processor.head_dtype = None

    _is_gathering = False

    @contextmanager
    def _gathering(self, wanted: bool = True) -> Iterator[None]:
        before, self._is_gathering = self._is_gathering, wanted
        try:
            yield
        finally:
            self._is_gathering = before
