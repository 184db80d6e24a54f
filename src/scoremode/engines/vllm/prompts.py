"""What goes into a scoring engine and what comes out of it, each held against the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.engines.vllm.columns import COLUMNS, MAX_EXACT_ID
from scoremode.errors import EngineError, InvalidMeasurement

__all__ = ["Ids", "Prompt", "PromptScores", "check_prompts", "scores_of"]

Ids = Sequence[int] | NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Prompt:
    """One checked prompt: `ids` int32 [n], `targets` int32 [n] or None, `first` scored token."""

    ids: NDArray[np.int32]
    targets: NDArray[np.int32] | None
    first: int

    @property
    def expected(self) -> NDArray[np.int32]:
        """The targets to be scored: explicit ones, or the prompt's own next tokens."""
        return (self.ids[1:] if self.targets is None else self.targets)[self.first :]


@dataclass(frozen=True, eq=False)
class PromptScores:
    """One prompt's scores, a row a scored token, in order. N is the number of scored tokens.

    - `position` int32 [N]: the scored token's place, 1 for what follows the prompt's first token.
    - `target` int32 [N]: its id. `logprob` float32 [N]: its natural-log probability.
    - `entropy` float32 [N]: of the whole distribution, in nats; NaN on vLLM's own path.
    - `top1` int32 [N], `top1_logprob` float32 [N]: the likeliest id and its log-probability.
    """

    position: NDArray[np.int32]
    target: NDArray[np.int32]
    logprob: NDArray[np.float32]
    entropy: NDArray[np.float32]
    top1: NDArray[np.int32]
    top1_logprob: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.logprob)


def scores_of(rows: NDArray[Any], prompt: Prompt) -> PromptScores:
    """Rows [N, `COLUMNS`] of a prompt. Raises InvalidMeasurement unless they answer each target once,
    in order."""
    targets = prompt.expected
    if rows.shape != (len(targets), len(COLUMNS)):
        raise InvalidMeasurement(f"vLLM gave {rows.shape} numbers for {len(targets)} targets")
    values = dict(zip(COLUMNS, rows.T, strict=True))
    whole = ("position", "target", "top1")
    scores = PromptScores(
        **{n: v.astype(np.int32 if n in whole else np.float32) for n, v in values.items()}
    )
    positions = np.arange(prompt.first + 1, prompt.first + 1 + len(targets))
    for name, got, wanted in (
        ("target", scores.target, targets),
        ("position", scores.position, positions),
    ):
        if not np.array_equal(got, wanted):
            i = int(np.flatnonzero(got != wanted)[0])
            raise InvalidMeasurement(f"vLLM scored {name} {got[i]} where {wanted[i]} was asked")
    return scores


def check_prompts(
    prompts: Sequence[Ids],
    targets: Sequence[Ids] | None,
    first: Sequence[int] | None,
    *,
    longest: int,
    entries: int,
    vocabulary: int | None,
) -> list[Prompt]:
    """Raises EngineError for whatever vLLM would choke on or, worse, not notice.

    - `longest`: tokens of the longest prompt; `entries`: of the model's vocabulary.
    - `vocabulary`: how many of them the softmax runs over.
    """
    for name, given in (("targets", targets), ("first", first)):
        if given is not None and len(given) != len(prompts):
            raise EngineError(f"{len(given)} {name} for {len(prompts)} prompts")
    if vocabulary is not None and not (
        isinstance(vocabulary, int | np.integer) and 0 < vocabulary <= entries
    ):
        raise EngineError(f"vocabulary {vocabulary}: the head has {entries} entries")
    result = []
    for i, prompt in enumerate(prompts):
        ids = _ids(prompt, f"prompt {i}", entries)
        goal = None if targets is None else _ids(targets[i], f"targets of prompt {i}", entries)
        if not 0 < len(ids) <= longest:
            raise EngineError(f"prompt {i} has {len(ids)} tokens: 1 to {longest} can be scored")
        if goal is not None and len(goal) != len(ids):
            raise EngineError(f"prompt {i} has {len(ids)} tokens and {len(goal)} targets")
        begin = 0 if first is None else first[i]
        if not isinstance(begin, int | np.integer):
            raise EngineError(f"first {begin!r} of prompt {i}: not an integer")
        if not 0 <= begin <= len(ids):
            raise EngineError(f"first {begin} of prompt {i}: it has {len(ids)} tokens")
        checked = Prompt(ids, goal, int(begin))
        if vocabulary is not None and (outside := checked.expected >= vocabulary).any():
            raise EngineError(
                f"prompt {i}: target {checked.expected[outside][0]} is not among the {vocabulary} "
                "entries that the softmax runs over"
            )
        result.append(checked)
    return result


def _ids(values: Ids, what: str, entries: int) -> NDArray[np.int32]:
    try:
        ids = np.asarray(values)
    except ValueError:
        raise EngineError(f"{what}: not a list of token ids") from None
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise EngineError(f"{what}: not a list of token ids")
    outside = (ids < 0) | (ids >= min(entries, MAX_EXACT_ID))
    if outside.any():
        raise EngineError(f"{what}: id {ids[outside][0]} is not one of the vocabulary's {entries}")
    return ids.astype(np.int32)
