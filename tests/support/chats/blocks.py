"""Made runs over conversations: windows of unequal length, with gaps between scored targets."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from support.comparisons import made
from support.run_folders import write_run

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


def ends_by_hand(values: np.ndarray, conversation: np.ndarray) -> list[float]:
    """The 95 % interval of the mean of `values`, from resamples of whole conversations, one after the
    other: of the expanded percentiles and of the studentized bootstrap the further end."""
    chats = [values[conversation == number] for number in sorted(set(conversation.tolist()))]
    n = len(chats)
    sums, counts = (np.array([f(c) for c in chats]) for f in (np.sum, len))

    def mean_and_error(y: np.ndarray, x: np.ndarray) -> tuple[float, float]:
        mean = y.sum() / x.sum()
        return mean, math.sqrt(n / (n - 1) * ((y - mean * x) ** 2).sum()) / x.sum()

    value, error = mean_and_error(sums, counts)
    rng = np.random.default_rng(20_481)
    drawn = np.array(
        [mean_and_error(sums[d], counts[d]) for d in rng.integers(n, size=(10_000, n))]
    )
    most = 2 * bootstrap.student(n - 1)
    t = np.clip((drawn[:, 0] - value) / drawn[:, 1], -most, most)
    tail = bootstrap._expanded_tail(n)
    plain = [float(np.quantile(drawn[:, 0], share)) for share in (tail, 1 - tail)]
    studentized = [value - float(np.quantile(t, share)) * error for share in (0.975, 0.025)]
    return [min(plain[0], studentized[0]), max(plain[1], studentized[1])]
