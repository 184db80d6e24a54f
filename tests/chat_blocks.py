"""Made runs over conversations: windows of unequal length, with gaps between scored targets."""

from pathlib import Path
from typing import Any

import numpy as np
from comparisons import made
from run_folders import write_run

from scoremode.results.scores import Scores
from scoremode.results.statistics import bootstrap

# Windows of each conversation, some of several; their places among those that were read have gaps.
WINDOWS = [1, 2, 1, 1, 3, 1, 1, 2, 1, 1, 1, 1, 1, 4, 1, 1]
NUMBERS = np.array([0, 1, 3, 4, 5, 8, 9, 10, 11, 15, 16, 17, 20, 21, 22, 30], np.int32)


def chat_places(seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """`window`, `position` and `index` of all targets, and the conversation that each is of.

    Windows are in another order than conversations, as they are scored.
    """
    rng, rows, begin = np.random.default_rng(seed), [], 0
    windows = np.repeat(NUMBERS, WINDOWS)
    order = rng.permutation(len(windows))
    starts = np.zeros(len(windows), np.int64)
    lengths = rng.integers(6, 300, len(windows))
    for w in range(len(windows)):
        starts[w], begin = begin, begin + int(lengths[w])
    for number, w in enumerate(order):
        positions = 1 + np.flatnonzero(rng.random(lengths[w] - 1) < 0.6)
        if not len(positions):
            positions = np.array([1])
        rows += [(number, p, starts[w] + p, windows[w]) for p in positions]
    window, position, index, conversation = np.array(rows).T
    places = {"window": window, "position": position, "index": index}
    return places, conversation.astype(np.int32)


def chat_scores(noise: float, seed: int = 0) -> tuple[Scores, np.ndarray]:
    """Scores of `chat_places`, the worse the larger `noise`, and the conversation of each target."""
    places, conversation = chat_places()
    return made(**places, noise=noise, seed=seed, full=False), conversation


def write_chat_run(
    folder: Path, noise: float, seed: int = 0, changes: dict[str, Any] | None = None
) -> Path:
    """A finished run of `chat_scores` in `folder`."""
    scores, conversation = chat_scores(noise, seed)
    usual = {
        "protocol.name": "chat",
        "protocol.text": "conversations",
        "protocol.long": "truncate",
        "plan.conversations": len(NUMBERS),
    }
    return write_run(
        folder,
        scores,
        extras={"conversation": conversation},
        changes=usual | (changes or {}),
    )


def resampled_by_hand(values: np.ndarray, conversation: np.ndarray) -> np.ndarray:
    """The mean of `values` in resamples of whole conversations, one after the other."""
    chats = [values[conversation == number] for number in sorted(set(conversation.tolist()))]
    rng = np.random.default_rng(20_481)
    drawn = rng.integers(len(chats), size=(10_000, len(chats)))
    sums, counts = (np.array([f(c) for c in chats]) for f in (np.sum, len))
    return np.array([sums[d].sum() / counts[d].sum() for d in drawn])


def ends_by_hand(means: np.ndarray, blocks: int) -> list[float]:
    """The 95 % interval of resampled means."""
    tail = bootstrap._expanded_tail(blocks)
    return [float(np.quantile(means, share)) for share in (tail, 1 - tail)]
