"""A vLLM model's head on one rank: rows of final hidden states in, full-vocabulary results out.

The model's own `compute_logits` runs, so scale, softcap and whatever a model does before its head
stay what they are. Only the gathering of logits over tensor-parallel ranks is left out: each rank
reduces its own share of the vocabulary, a chunk of rows at a time, and a few numbers a row are
gathered instead of the logits.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from scoremode.head.rows import HeadScores, RowSums

__all__ = ["ShardedHead"]

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
    """

    def __init__(self, model: Any, head_dtype: str):
        from vllm.distributed import get_tensor_model_parallel_world_size
        from vllm.model_executor.layers.logits_processor import LogitsProcessor

        self._model = model
        self._ranks = get_tensor_model_parallel_world_size()
        self._float32 = head_dtype == "float32"
        names = {base.__name__ for base in type(model).__mro__}
        self._gathers = self._ranks > 1 and not names.isdisjoint(_NEEDS_ALL_COLUMNS)
        self._projection: Any = None
        for processor in model.modules():
            if isinstance(processor, LogitsProcessor):
                self._take_over(processor)

    def score(
        self, hidden: torch.Tensor, target: torch.Tensor, vocabulary: int | None
    ) -> HeadScores:
        """Of `target` int64 [N] after `hidden` [N, D], over the first `vocabulary` entries.

        Every tensor-parallel rank must call it with the same arguments; where logits are gathered,
        only the first rank's answer means anything.
        """
        parts = [
            self._sums(rows, goal, vocabulary)
            for rows, goal in zip(*self._chunks(hidden, target), strict=True)
        ]
        if not parts:
            return RowSums(0, hidden.device, entropy=True).finish()
        return RowSums.merged(self._over_ranks(torch.cat(parts))).finish()

    def gathered(
        self, hidden: torch.Tensor, target: torch.Tensor, vocabulary: int | None
    ) -> HeadScores:
        """`score` by the textbook: all logits in one place, then a float64 log-softmax."""
        with self._gathering():
            logits = self._model.compute_logits(hidden)
        if logits is None:
            # vLLM gathers to the first rank only, whose answer is the one that is used.
            nothing = torch.zeros(len(hidden), dtype=torch.float64, device=hidden.device)
            return HeadScores(nothing, nothing.long(), nothing, nothing)
        z = logits[:, :vocabulary].double().log_softmax(1)
        entropy = -(z.exp() * z).nan_to_num(0.0).sum(1)
        return HeadScores(z.gather(1, target[:, None])[:, 0], z.argmax(1), z.amax(1), entropy)

    def describe(self) -> dict[str, Any]:
        """`entries`: of the softmax, as far as the head has any; `ranks` that share them."""
        return {
            "entries": self._entries,
            "ranks": self._ranks,
            "gathered": self._gathers,
            "logits": "float32" if self._float32 else "model",
        }

    @property
    def _entries(self) -> int | None:
        _, processor = self._projection or (None, None)
        return None if processor is None else int(processor.org_vocab_size)

    def _chunks(
        self, hidden: torch.Tensor, target: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        if not len(hidden):
            return (), ()
        entries = self._entries
        if entries is None:
            # Nothing but a run of the head tells how wide its logits are.
            with self._gathering(self._gathers):
                self._model.compute_logits(hidden[:1])
            entries = self._entries or 1
        share = entries if self._gathers else -(-entries // self._ranks)
        width = share * (4 if self._float32 else hidden.element_size())
        rows = max(1, _CHUNK_BYTES.get(hidden.device.type, _CHUNK_BYTES["cpu"]) // width)
        # Of equal size, so that no chunk is left with a few rows for a whole matmul.
        rows = -(-len(hidden) // -(-len(hidden) // rows))
        return hidden.split(rows), target.split(rows)

    def _sums(
        self, hidden: torch.Tensor, target: torch.Tensor, vocabulary: int | None
    ) -> torch.Tensor:
        """This rank's packed `RowSums` of one chunk."""
        with self._gathering(self._gathers):
            logits = self._model.compute_logits(hidden)
        sums = RowSums(len(hidden), hidden.device, entropy=True)
        if logits is not None:
            if self._float32 and logits.dtype != torch.float32:
                raise ValueError(f"head dtype float32: this model's head gives {logits.dtype}")
            begin, end = self._span(logits.shape[1])
            if vocabulary is not None:
                end = min(end, vocabulary)
            if end > begin:
                sums.absorb(slice(None), logits[:, : end - begin], target, begin)
        return sums.pack()

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
        """Whether this rank's logits are those of all entries."""
        head, _ = self._projection
        return self._gathers or getattr(head, "tp_size", self._ranks) == 1

    def _over_ranks(self, packed: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's [N, C], in rank order, which is the order of their entries."""
        if self._has_all:
            return [packed]
        from vllm.distributed import get_tp_group

        gathered = packed.new_empty((self._ranks * len(packed), packed.shape[1]))
        torch.distributed.all_gather_into_tensor(
            gathered, packed.contiguous(), group=get_tp_group().device_group
        )
        return list(gathered.split(len(packed)))

    def _take_over(self, processor: Any) -> None:
        """Makes a LogitsProcessor tell its projection and keep its share of the logits."""
        forward, gather = processor.forward, processor._gather_logits

        def watched(lm_head: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self._projection = lm_head, processor
            if self._float32:
                _project_in_float32(lm_head)
            return forward(lm_head, hidden_states, *args, **kwargs)

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


def _project_in_float32(lm_head: Any) -> None:
    """Gives an unquantized projection a float32 result, once."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    method = lm_head.quant_method
    if isinstance(method, _Float32Projection):
        return
    if not isinstance(method, (UnquantizedEmbeddingMethod, UnquantizedLinearMethod)):
        raise ValueError(
            f"head dtype float32: the head is quantized ({type(method).__name__}): use model"
        )
    lm_head.quant_method = _Float32Projection()


class _Float32Projection:
    """`x @ weight.T + bias` with a float32 result."""

    _TILE = 8192

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        weight = layer.weight
        if x.is_cuda and x.dtype != torch.float32:
            z = torch.mm(x, weight.t(), out_dtype=torch.float32)
        else:
            # A float32 copy of the whole weight would be the largest thing in memory.
            z = x.new_empty((len(x), len(weight)), dtype=torch.float32)
            wide = x.float()
            for low in range(0, len(weight), self._TILE):
                tile = weight[low : low + self._TILE].float()
                torch.mm(wide, tile.t(), out=z[:, low : low + len(tile)])
        return z if bias is None else z.add_(bias.float())
