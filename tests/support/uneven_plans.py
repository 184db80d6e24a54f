"""Plans of made conversations of unequal lengths."""

import numpy as np

from scoremode.text.plan import Plan
from scoremode.text.protocol import preset


def unequal_plan(count: int, vocabulary: int, longest: int = 40, seed: int = 0) -> Plan:
    """`count` conversations of random tokens, of which about half are scored."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, longest, count)
    stop = lengths.cumsum()
    counted = rng.random(int(stop[-1])) < 0.5
    counted[stop - 1] = True
    return Plan(
        preset("chat").override(context_length=longest).resolve(None),
        rng.integers(3, vocabulary, int(stop[-1])).astype(np.int32),
        stop - lengths,
        stop,
        np.ones(count, np.int64),
        counted=counted,
        conversation=np.arange(count, dtype=np.int32),
    ).arranged()
