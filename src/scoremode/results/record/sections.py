"""The sections of a run's record that follow from its Scores, and the time and versions in it.

The other sections are made by the parts of the program that they describe.
"""

import math
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import numpy as np

from scoremode import __version__
from scoremode.errors import InvalidMeasurement
from scoremode.results.metrics import METRIC, log_ratio
from scoremode.results.record.definition import Record
from scoremode.results.record.section import Metric
from scoremode.results.scores import Scores
from scoremode.results.statistics.blocks import Places
from scoremode.results.statistics.bootstrap import perplexity
from scoremode.results.statistics.breakdown import (
    Group,
    coded,
    depth_groups,
    groups,
    labelled_groups,
    within,
)
from scoremode.results.statistics.divergence import (
    CONFIDENT,
    distribution,
    divergence_means,
    effects_by,
    rare,
)
from scoremode.results.statistics.llama_cpp import block_section
from scoremode.results.statistics.means import Blocks, Mean, Percentile, estimates
from scoremode.results.statistics.survival import survival_section

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pyarrow")


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Versions of scoremode, Python, the platform and the libraries that can move a number."""
    return {
        "scoremode": __version__,
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
        **{name: metadata.version(name) for name in _PACKAGES},
    }


def command_of(record: Record) -> list[str]:
    """The command line that scored: of a merged run that of its first shard, whose flags all of them
    have but for `--shard`; none of a record that has none."""
    return (record.merged.shards[0] if record.merged else record).command or []


def sections(
    scores: Scores,
    context_length: int,
    extras: Mapping[str, np.ndarray],
    *,
    block_length: int | None = None,
    confident: float = CONFIDENT,
    record: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The record's `metrics` and `intervals`, against a base its `distribution`, `breakdown`,
    `thresholds`, `survival` and `llama_cpp` as well; `breakdown` without one, too, where there are
    labels or turns.

    With bounds in the place of a comparison it has the metrics that these give, and no more.

    - `context_length`: tokens of a window.
    - `extras`: [N] each, those there are of `weight` (float64, what each evaluation counts),
      `token_bytes` (uint16) and `token_class` (uint8) of the targets, `conversation` (int32), which is
      a bootstrap block then (`places`), `label` (texts) and `turn_place` (int32); see
      `store.read_columns`.
    - `block_length`: tokens of a bootstrap block, where they are not to be chosen from the scores;
      then there is no section `intervals`.
    - `confident`: the probability above which the base is sure of a token, for `confident_flips`.
    - `record`: what else it says, which tells whose text it is; without it there is no `survival`.

    Raises InvalidMeasurement where a number is not finite.
    """
    weights = extras.get("weight")
    chosen, places = None, Places.of(scores, extras)
    if block_length is None:
        chosen = places.chosen(_resampled_columns(scores), context_length, weights)
        block_length = chosen.tokens
    against, blocks = scores.against, places.blocks(block_length, weights)
    metrics = perplexity(scores, block_length, weights, places.numbered)
    parts: list[Group] = []
    if scores.base is not None:
        base = replace(scores, logprob=scores.base.base_logprob)
        of_base = perplexity(base, block_length, weights, places.numbered)
        metrics |= {f"{name}_base": metric for name, metric in of_base.items()}
    if against is not None:
        parts = groups(scores, against, blocks, extras.get("token_class"))
    parts += depth_groups(scores, blocks)
    # All at once, since those with the same blocks share one resampling.
    whole, *found = _metrics([_whole(scores, blocks, extras, confident), *parts], block_length)
    metrics |= whole
    result: dict[str, Any] = {"metrics": {name: _finite(m, name) for name, m in metrics.items()}}
    if chosen is not None:
        result["intervals"] = chosen.to_json(blocks.filled)
    if record is not None and not record.get("requests"):
        survival = survival_section(scores, extras, block_length, record)
        result |= {} if survival is None else {"survival": survival}
    labels, turns = extras.get("label"), extras.get("turn_place")
    if labels is not None and chosen is not None and places.conversation is None:
        # How far two groups are apart is no dependence within either.
        columns = {k: within(v, coded(labels)[1]) for k, v in _resampled_columns(scores).items()}
        of_groups = places.chosen(columns, context_length, weights)
        blocks = places.blocks(of_groups.tokens, weights)
        result["intervals"]["groups"] = of_groups.to_json(blocks.filled)
    named = labelled_groups(scores, blocks, label=labels, turn_place=turns, confident=confident)
    breakdown: dict[str, list[dict[str, Any]]] = {}
    for part, own in zip([*parts, *named], [*found, *_metrics(named, blocks.length)], strict=True):
        of_part = {k: _finite(m, f"{k} of {part.of} {part.name}") for k, m in own.items()}
        breakdown.setdefault(part.of, []).append(part.to_json() | of_part)
    if against is not None:
        result |= {"distribution": distribution(scores, against), "breakdown": breakdown}
        result["thresholds"] = {"confident": confident}
    elif breakdown:
        result["breakdown"] = breakdown
    return result | block_section(scores, extras)


def _whole(
    scores: Scores, blocks: Blocks, extras: Mapping[str, np.ndarray], confident: float
) -> Group:
    """All evaluations as one group, with the means and percentiles of the whole text."""
    against, token_bytes = scores.against, extras.get("token_bytes")
    means = _bits_per_byte("bits_per_byte", scores, token_bytes, blocks)
    tails: Mapping[str, Percentile] = {}
    if scores.base is not None:
        base = replace(scores, logprob=scores.base.base_logprob)
        means |= _bits_per_byte("bits_per_byte_base", base, token_bytes, blocks)
        means |= divergence_means(scores, scores.base, blocks)
    if against is not None:
        everything = np.zeros(len(scores), np.int64)
        (effects,) = effects_by(scores, against, blocks, everything, 1, confident)
        means |= effects.means
        tails = effects.tails
    return Group("text", "all", None, len(scores), 1.0, means, tails)


def _metrics(parts: Sequence[Group], block_length: int) -> list[dict[str, Metric]]:
    """The metrics of each group, from resamples that they share."""
    means: dict[tuple[int, str], Mean] = {}
    for i, part in enumerate(parts):
        means |= {(i, name): mean for name, mean in part.means.items()}
        means |= {(i, name): one.share for name, one in part.tails.items()}
    found: list[dict[str, Metric]] = [{} for _ in parts]
    for (i, name), metric in estimates(means, block_length).items():
        tail = parts[i].tails.get(name)
        found[i][name] = metric if tail is None else tail.metric(metric)
        if name in METRIC and METRIC[name].rare:
            found[i][name] = rare(metric)
    return found


def remade(
    record: Record,
    scores: Scores,
    extras: Mapping[str, np.ndarray],
    confident: float | None = None,
) -> dict[str, Any]:
    """The `sections` of a finished run, by the window and the threshold of its checked `record`;
    `confident`: by that threshold instead."""
    if confident is None:
        confident = record.thresholds.confident if record.thresholds else CONFIDENT
    return sections(
        scores,
        record.protocol.context_length,
        extras,
        confident=confident,
        record=record.document,
    )


def _resampled_columns(scores: Scores) -> dict[str, np.ndarray]:
    """The columns whose dependence decides how long blocks are: float64 [N] by their metrics' names."""
    if scores.base is None:
        return {"nll": scores.nll}
    both = {"nll": scores.nll, "ppl_ratio": log_ratio(scores, scores.base)}
    if scores.bounds is not None:
        return both | {"kld_least": scores.bounds.kld_least}
    assert scores.against is not None
    return both | {"kld": scores.against.kld}


def _bits_per_byte(
    name: str, scores: Scores, token_bytes: np.ndarray | None, blocks: Blocks
) -> dict[str, Mean]:
    """Σ nll / (ln 2 · Σ bytes); nothing where no target has a byte."""
    if token_bytes is None:
        return {}
    mean = blocks.mean(scores.nll / math.log(2), per=token_bytes)
    return {} if mean is None else {name: mean}


def _finite(metric: Metric, name: str) -> dict[str, Any]:
    for number in (metric.value, *(metric.ci95 or ())):
        if not math.isfinite(number):
            raise InvalidMeasurement(f"{name} is {number}: the mean is too large for it")
    return metric.to_json()
