"""Prompts to reply to, how tokens are drawn, and the replies: the same for every sampler.

A reply is drawn with a seed of its own, by its prompt's place and its number, so that it doesn't depend
on which others are drawn beside it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import UsageError


@dataclass(frozen=True)
class Sampling:
    """The rule by which tokens are drawn: logits over `temperature`, then the `top_k` likeliest (0:
    all), then the fewest whose probabilities sum to `top_p`. At temperature 0 the likeliest, always.

    Nothing else of a model's generation_config.json, such as a penalty, takes part. Raises UsageError.
    """

    max_new_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UsageError(f"--max-new-tokens {self.max_new_tokens}: must be at least 1")
        if self.temperature < 0:
            raise UsageError(f"--temperature {self.temperature}: must be at least 0")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p {self.top_p}: must be above 0 and at most 1")
        if self.top_k < 0:
            raise UsageError(f"--top-k {self.top_k}: must be at least 0 (0: all)")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class SamplingRequest:
    """A request for one reply: the prompt's `ids`, int32 [n], and the `seed` of its draws."""

    ids: NDArray[np.int32]
    seed: int


@dataclass(frozen=True)
class Reply:
    """The ids that a model generated, and whether the last of them `ended` its turn: else they were
    cut at the limit."""

    ids: tuple[int, ...]
    ended: bool


class Sampler(Protocol):
    """A model that replies."""

    def batches(self, requests: Sequence[SamplingRequest]) -> list[list[int]]:
        """The places of all requests, in the batches that are sampled together; the same requests give
        the same batches."""
        ...

    def replies(self, batch: Sequence[SamplingRequest]) -> list[Reply]:
        """The replies to a batch, in its order. Raises EngineError."""
        ...

    def describe(self) -> dict[str, Any]:
        """Facts of what has run, for the record."""
        ...

    def close(self) -> None: ...


def seed_of(seed: int, prompt: int, number: int) -> int:
    """The seed of a prompt's reply of that number, of 63 bits."""
    digest = sha256(f"{seed} {prompt} {number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def reply_of(ids: Sequence[int], ends: frozenset[int]) -> Reply:
    """The reply in generated ids: up to the first token that ends a turn, with it."""
    for place, token in enumerate(ids, 1):
        if token in ends:
            return Reply(tuple(ids[:place]), ended=True)
    return Reply(tuple(ids), ended=False)
