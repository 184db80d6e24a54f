"""The scoring pooler: vLLM's own hook for work on hidden states, doing what a scorer needs.

Both of vLLM's runners hand a pooling model's pooler the final hidden states of every scheduled token,
on every tensor-parallel rank of the last pipeline stage, chunk after chunk of a long prompt. This one
turns them into log-probabilities in the worker, so that only floats leave it, keeps the rows of an
unfinished prompt until its last chunk, and knows from the scheduler's own numbers which token each row
belongs to: a row counted twice or never is an error here, not a mean that is a little better.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from collections.abc import Set
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.model_executor.layers.pooler.abstract import Pooler
from vllm.model_executor.layers.pooler.common import PoolingParamsUpdate

from scoremode.engines.vllm.prompts import KEY, ScoreRequest
from scoremode.engines.vllm.workers.comparison import to_device
from scoremode.engines.vllm.workers.scorer import RowScorer

TASK = "token_classify"


class ScoringPooler(Pooler):
    """Scores of every scheduled token of a `model` that holds it."""

    def __init__(self, model: torch.nn.Module, vllm_config: Any):
        super().__init__()
        options = (vllm_config.additional_config or {}).get(KEY, {})
        self.scorer = RowScorer(model, options.get("head_dtype", "model"))

    def get_supported_tasks(self) -> Set[Any]:
        return {TASK}

    def get_pooling_updates(self, task: Any) -> PoolingParamsUpdate:
        return PoolingParamsUpdate(requires_token_ids=True)

    def forward(self, hidden_states: torch.Tensor, pooling_metadata: Any) -> list[torch.Tensor]:
        """Float32 [rows, columns] for each prompt whose last token is scheduled, else [0, columns]."""
        cursor = pooling_metadata.get_pooling_cursor()
        counts = cursor.num_scheduled_tokens_cpu.tolist()
        ends = cursor.seq_lens_cpu.tolist()
        lengths = pooling_metadata.prompt_lens.tolist()
        ids = pooling_metadata.prompt_token_ids_cpu
        requests = [
            ScoreRequest.from_extra(p.extra_kwargs) for p in pooling_metadata.pooling_params
        ]
        spans, row = [], 0
        for i, (count, end, length, request) in enumerate(
            zip(counts, ends, lengths, requests, strict=True)
        ):
            spans.append(_Span(row, end - count, end, length, request, ids[i]))
            row += count
        assert row == len(hidden_states), f"{len(hidden_states)} states for {row} scheduled tokens"
        scored = self._score(hidden_states, spans)
        states = pooling_metadata.pooling_states
        return [
            _collect(state.hidden_states_cache, span, rows)
            for state, span, rows in zip(states, spans, scored, strict=True)
        ]

    def _score(self, hidden: torch.Tensor, spans: list["_Span"]) -> list[torch.Tensor]:
        """Each span's rows, in order. One softmax size and one kind of request at a time."""
        results: list[torch.Tensor] = [hidden.new_empty(0)] * len(spans)
        kinds = sorted({s.request.kind for s in spans}, key=str)
        for kind in kinds:
            chosen = [i for i, s in enumerate(spans) if s.request.kind == kind]
            parts = self._score_alike(hidden, [spans[i] for i in chosen])
            for i, part in zip(chosen, parts, strict=True):
                results[i] = part
        return results

    def _score_alike(self, hidden: torch.Tensor, spans: list["_Span"]) -> list[torch.Tensor]:
        sizes = [len(s.places) for s in spans]
        kind = spans[0].request.kind
        if not sum(sizes):
            return [hidden.new_empty((0, len(kind.columns)), dtype=torch.float32) for _ in spans]
        rows = (
            hidden if sum(sizes) == len(hidden) else torch.cat([s.rows_of(hidden) for s in spans])
        )
        scored = self.scorer.score(
            rows,
            np.concatenate([s.places for s in spans]),
            np.concatenate([s.targets for s in spans]),
            kind,
            base=np.concatenate([s.rows_from(s.request.row) for s in spans]),
            kept=np.concatenate([s.rows_from(s.request.place) for s in spans]),
        )
        return list(scored.split(sizes))


class _Span:
    """One prompt's tokens in this step: `begin … end` of `length`, from `row` of the hidden states.

    `places` int64 are those of them that are scored after, with `targets` int32; `before`: how many of
    the prompt's come before this step's.
    """

    def __init__(
        self, row: int, begin: int, end: int, length: int, request: ScoreRequest, ids: torch.Tensor
    ):
        self.row, self.begin, self.end, self.length = row, begin, end, length
        self.request = request
        if request.targets is not None:
            if len(request.targets) != length:
                raise ValueError(f"{len(request.targets)} targets for a prompt of {length} tokens")
            after, last = request.targets, length
        else:
            # The next token of the prompt; after the last one there is none.
            after, last = ids[1:length].numpy(), length - 1
        self._whole = request.chosen is None
        if request.chosen is None:
            start = min(max(begin, request.first), end)
            self.places, self.before = np.arange(start, max(min(end, last), start)), 0
            self.before = max(0, start - request.first)
        else:
            at, to = np.searchsorted(request.chosen, [begin, min(end, last)]).tolist()
            self.places, self.before = request.chosen[at:to].astype(np.int64), at
        targets = after[self.places[0] : self.places[-1] + 1] if len(self.places) else after[:0]
        # vLLM's profiling run has longer prompts than it has ids.
        missing = len(self.places) - len(targets) if self._whole else 0
        if not self._whole:
            targets = after[self.places]
        self.targets = np.pad(targets, (0, missing)) if missing else targets

    def rows_from(self, first: int) -> NDArray[np.int64]:
        """The rows of what has a row for each of the prompt's scored tokens, from `first` on."""
        begin = first + self.before
        return np.arange(begin, begin + len(self.places))

    def rows_of(self, hidden: torch.Tensor) -> torch.Tensor:
        """The states [n, D] of its places among those of a step."""
        if not len(self.places):
            return hidden[:0]
        rows = self.row - self.begin + self.places
        if self._whole:
            return hidden[int(rows[0]) : int(rows[-1]) + 1]
        return hidden[to_device(torch.from_numpy(rows), hidden.device)]


def _collect(kept: list[torch.Tensor], span: _Span, rows: torch.Tensor) -> torch.Tensor:
    """All rows of a prompt when its last token is done; keeps them until then."""
    if span.begin == 0:
        # A prompt that was preempted begins again.
        kept.clear()
    have = sum(len(part) for part in kept)
    if have != span.before:
        raise RuntimeError(
            f"tokens {span.begin} to {span.end} of a prompt of {span.length} follow {have} scored "
            f"ones, not {span.before}: vLLM has skipped some or repeated them"
        )
    kept.append(rows)
    if span.end < span.length:
        return rows[:0]
    whole = torch.cat(kept) if len(kept) > 1 else rows
    kept.clear()
    return whole


def scoring_class(base: type) -> type:
    """`base`, a vLLM text generation model, as a pooling model whose pooler scores.

    It keeps its name, by which vLLM chooses configurations.
    """

    class Scoring(base):  # type: ignore[misc, valid-type]
        is_pooling_model = True

        # vLLM looks for the keyword.
        def __init__(self, *, vllm_config: Any, prefix: str = "", **kwargs: Any):
            super().__init__(vllm_config=vllm_config, prefix=prefix, **kwargs)
            self.pooler = ScoringPooler(self, vllm_config)

    Scoring.__name__ = base.__name__
    Scoring.__qualname__ = base.__qualname__
    Scoring.__module__ = base.__module__
    return Scoring
