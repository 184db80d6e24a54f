"""The comparison of a folder and of the GGUF file that was made of it."""

from pathlib import Path
from typing import Any

import numpy as np
from support.engine import make_engine, score
from support.gguf.models import TOKENS
from support.models import random_plan

from scoremode.text.plan import Plan


def plan() -> Plan:
    """Windows longer than the sliding windows and the original context of the tiny models."""
    return random_plan(length=48, windows=3, tail=9, vocabulary=TOKENS)


def difference(folder: Path, file: Path, **options: Any) -> float:
    """The largest difference of two models' log-probabilities, in nats, both in float32."""
    ours, theirs = (
        score(make_engine(path, dtype="float32", **options), plan()).logprob
        for path in (file, folder)
    )
    # A model that says the same of everything would agree with any.
    assert theirs.std() > 0.3
    return float(np.abs(ours - theirs).max())
