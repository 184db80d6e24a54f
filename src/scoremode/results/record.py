"""The record of a run: what was measured, how, with what result.

A record is plain JSON, written first when scoring starts (`status: running`) and last when it ends
(`done`, or `invalid` with the reason). Its sections are made by the parts of the program they
describe; this module holds the frame, the versions, and how a metric is made again from Scores.
"""

import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from scoremode import __version__
from scoremode.results.scores import Scores
from scoremode.results.stats import Metric, perplexity

__all__ = ["SCHEMA", "SCHEMA_VERSION", "metrics_of", "now", "score_weights", "versions"]

SCHEMA = "scoremode.record"
SCHEMA_VERSION = 1
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pyarrow")


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Of scoremode, Python, the platform and the libraries that can move a number."""
    return {
        "scoremode": __version__,
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
        **{name: metadata.version(name) for name in _PACKAGES},
    }


def metrics_of(
    scores: Scores, block_length: int, weights: np.ndarray | None = None
) -> dict[str, dict[str, Any]]:
    """The record's `metrics` section. `weights`: float64 [N], what each evaluation counts."""
    metrics: dict[str, Metric] = perplexity(scores, block_length, weights)
    return {name: metric.to_json() for name, metric in metrics.items()}


def score_weights(path: Path) -> np.ndarray | None:
    """The column `weight` of a `scores.parquet`, None where every evaluation counts alike."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    if "weight" not in file.schema_arrow.names:
        return None
    return file.read(["weight"]).column(0).to_numpy()
