"""Scoring by vLLM's own `prompt_logprobs`: as exact, slower, for releases the plugin doesn't fit.

All logits of all tokens are gathered on one rank, and Python objects are made for each, but nothing of
ours runs in vLLM.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.engines.vllm.messages import COLUMNS, Kind
from scoremode.engines.vllm.prompts import Prompt, PromptScores, scores_of
from scoremode.engines.vllm.settings import Settings
from scoremode.engines.vllm.start import Started
from scoremode.errors import EngineError, InvalidMeasurement

__all__ = ["StockEngine"]


class StockEngine(Started):
    """A vLLM that generates one token, which nobody reads. Raises EngineError."""

    path = "prompt_logprobs"

    def __init__(self, settings: Settings):
        # One for the last target, which is one of the prompt here, and one for the token to generate,
        # which never goes through the model: a model's position limit does not count it.
        super().__init__(settings, room=2, runner="generate")

    def score(self, prompts: Sequence[Prompt], kind: Kind) -> list[PromptScores]:
        from vllm import SamplingParams

        vocabulary = kind.vocabulary
        if vocabulary is not None and vocabulary != self.entries:
            raise EngineError(
                f"vocabulary {vocabulary}: vLLM's own path has its softmax over all {self.entries}"
            )
        full = [_with_last_target(p) for p in prompts]
        with self.working():
            # One more than the target's own, for the top-1.
            params = SamplingParams(
                max_tokens=1, prompt_logprobs=1, flat_logprobs=True, detokenize=False
            )
            outputs = self.llm.generate(
                [{"prompt_token_ids": ids.tolist()} for ids in full], params, use_tqdm=False
            )
        if len(outputs) != len(prompts):
            raise InvalidMeasurement(f"vLLM answered {len(outputs)} of {len(prompts)} prompts")
        return [
            scores_of(_rows(output.prompt_logprobs, ids, prompt.positions), prompt, kind)
            for output, ids, prompt in zip(outputs, full, prompts, strict=True)
        ]


def _with_last_target(prompt: Prompt) -> NDArray[np.int32]:
    """The ids whose next tokens are the prompt's targets."""
    if prompt.targets is None:
        return prompt.ids
    if not np.array_equal(prompt.targets[:-1], prompt.ids[1:]):
        raise EngineError(
            "vLLM's own path scores only what follows in the prompt, no other targets"
        )
    return np.append(prompt.ids, prompt.targets[-1:])


def _rows(flat: Any, ids: NDArray[np.int32], positions: NDArray[np.integer]) -> NDArray[np.float64]:
    """`FlatLogprobs` of these `positions` of `ids`, of which the first has none, as `COLUMNS`."""
    rows = []
    for position in positions.tolist():
        at = slice(flat.start_indices[position], flat.end_indices[position])
        entries = list(zip(flat.ranks[at], flat.token_ids[at], flat.logprobs[at], strict=True))
        own = next((e for e in entries if e[1] == ids[position]), None)
        if own is None:
            raise InvalidMeasurement(f"vLLM gave no log-probability of the prompt token {position}")
        best = next((e for e in entries if e[0] == 1), own)
        rows.append((position, ids[position], own[2], np.nan, best[1], best[2]))
    return np.array(rows, np.float64).reshape(-1, len(COLUMNS))
