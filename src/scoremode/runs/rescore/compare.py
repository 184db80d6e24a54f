"""A second run of some windows held against the first, target by target."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scoremode.results.audit.findings import FOLLOWING, Findings
from scoremode.results.record.differences import differences
from scoremode.results.scores import Scores
from scoremode.results.statistics.agreement import LIMITS, Difference, difference, judge, logits_of
from scoremode.runs.check.second_run import Again, differing_conditions, differing_options
from scoremode.runs.rescore.sampling import rows_of

__all__ = ["compare_again"]

_PART = "second run"


def compare_again(
    record: Mapping[str, Any],
    scores: Scores,
    weights: np.ndarray | None,
    again: Again,
    findings: Findings,
) -> dict[str, Any]:
    """Holds the second run against the windows of the first, and returns how they differ.

    - `scores`: of the whole run; `weights`: float64 [N], what each of its targets counts.
    """
    ours = again.scores
    rows = rows_of(scores, ours.window)
    theirs = Scores.from_columns({name: c[rows] for name, c in scores.columns().items()})
    for name in ("window", "position", "target"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), f"another {name}"
    counted = None if weights is None else weights[rows]
    conditions = differing_conditions(record, again.engine)
    _compare_engines(record, again, conditions, findings)
    if again.without_base is not None:
        findings.unchecked(_PART, "comparison with the base", again.without_base)
    differing = _differing(ours, theirs)
    found = difference(ours, theirs, record["protocol"]["context_length"], counted)
    n = f"{len(ours):,} targets"
    if not differing:
        columns = ", ".join(name for name in ours.columns() if name in _MEASURED)
        findings.held(_PART, "scores", f"{n}, the same bits in {columns}")
    elif not conditions:
        findings.wrong(_PART, "scores", _unlike(found, differing, n))
    else:
        _judge(record, found, again, conditions, n, findings)
        _judge_base(record, ours, theirs, counted, conditions, n, findings)
        _judge_kld(ours, theirs, counted, found, findings)
        if rest := [name for name in differing if name in _UNJUDGED]:
            words = f"{', '.join(rest)}: how far rounding may move them isn't known"
            findings.unchecked(_PART, "further columns", words)
    moved = found.ppl_ratio.value - 1
    return {
        "targets": len(ours),
        "same_bits": not differing,
        "differing_columns": differing,
        "conditions": conditions,
        "ppl_moved": moved,
        "difference": found.to_json(),
    }


# Columns that a model computes; the others are the plan's.
_MEASURED = ("logprob", "top1", "top1_logprob", "base_logprob", "base_top1", "base_top1_logprob",
             "kld", "kld_reverse", "jsd", "base_entropy", "model_entropy", "topk_sets", "topk_order",
             "kld_llama_cpp")  # fmt: skip

# Those that no limit of rounding is known for.
_UNJUDGED = ("top1", "base_top1", "kld_reverse", "jsd", "base_entropy", "model_entropy",
             "topk_sets", "topk_order", "kld_llama_cpp")  # fmt: skip


def _compare_engines(
    record: Mapping[str, Any], again: Again, conditions: Sequence[str], findings: Findings
) -> None:
    """Holds what a record says of its engine, and of a base's that ran beside, against the second run,
    where that ran on the same device with the same versions: anywhere else it may differ."""
    said = {**record["engine"], **record.get("identity", {}).get("engine", {})}
    if said["engine"] == "vllm" or set(conditions) != set(differing_options(said, again.engine)):
        return
    base = (record.get("reference") or {}).get("engine") or {}
    for part, theirs, ours in (
        ("engine", record["engine"], again.described),
        ("reference.engine", base, again.base),
    ):
        both = [name for name in FOLLOWING if name in theirs and name in ours]
        stored, made = ({n: _without_source(n, each[n]) for n in both} for each in (theirs, ours))
        if made:
            found = differences(part, stored, made, of="the second run's fields")
            findings.judge(_PART, part, (d.words for d in found), f"{len(made)} fields")


def _without_source(name: str, value: Any) -> Any:
    """A fact of an engine, of a cache's static scales their values alone: the second run is given those
    that the first one measured or read."""
    scales = value.get("scales") if name == "kv_cache" and isinstance(value, Mapping) else None
    if not isinstance(scales, Mapping):
        return value
    return {**value, "scales": {side: scales[side] for side in ("k", "v") if side in scales}}


def _differing(ours: Scores, theirs: Scores) -> dict[str, int]:
    """Column that both have → how many of its values differ, of those where any does."""
    one, two = ours.columns(), theirs.columns()
    counts = {k: int((one[k] != two[k]).sum()) for k in _MEASURED if k in one and k in two}
    return {name: count for name, count in counts.items() if count}


def _unlike(found: Difference, differing: Mapping[str, int], n: str) -> str:
    """What differs where nothing should, and what it looks like."""
    which = ", ".join(f"{name} in {count:,}" for name, count in differing.items())
    words = (
        f"differ in {which} of {n}, though device, versions and options are the record's: "
        f"log-probabilities by {found.rms:.2g} nats (rms) and at most {abs(found.worst):.2g}, at "
        f"position {found.worst_position} of window {found.worst_window}; PPL "
        f"×{1 / found.ppl_ratio.value:.6f} in the record"
    )
    if found.shift:
        words += "; they look shifted by one target"
    elif found.correlation is not None and found.correlation < 0.9:
        words += f"; they correlate by {found.correlation:.2f} alone, as another text's would"
    elif found.rms > LIMITS["bfloat16"].rms:
        words += "; no rounding explains that: another model's would differ so"
    return words


def _judge(
    record: Mapping[str, Any],
    found: Difference,
    again: Again,
    conditions: Sequence[str],
    n: str,
    findings: Findings,
) -> None:
    """Judges a difference on another machine by what both dtypes' rounding explains."""
    then, now = record["engine"], again.engine
    order = list(LIMITS).index
    verdict = judge(
        found,
        compute=max(then["dtype"], now["dtype"], key=order),
        logits=max(logits_of(then), logits_of(now), key=order),
        activations=(now.get("activations") or {}).get("ran"),
        reference=(then.get("activations") or {}).get("ran"),
    )
    changed = "; ".join(conditions)
    words = f"{n}: {verdict.words}; PPL over these windows ×{found.ppl_ratio.value:.7f}"
    words += f" (not expected to be the same bits: {changed})"
    if verdict.agrees:
        findings.held(_PART, "scores", words)
    else:
        findings.wrong(_PART, "scores", words)


def _judge_base(
    record: Mapping[str, Any],
    ours: Scores,
    theirs: Scores,
    weights: np.ndarray | None,
    conditions: Sequence[str],
    n: str,
    findings: Findings,
) -> None:
    """Judges the base's log-probabilities as `_judge` does the model's."""
    if ours.against is None or theirs.against is None:
        return
    one, other = (
        replace(scores, logprob=against.base_logprob, top1=against.base_top1)
        for scores, against in ((ours, ours.against), (theirs, theirs.against))
    )
    found = difference(one, other, record["protocol"]["context_length"], weights)
    # A file of logits has no engine, and is what it was.
    engine = record["reference"].get("engine") or {}
    dtype, ran = engine.get("dtype", "float32"), (engine.get("activations") or {}).get("ran")
    logits = logits_of(engine) if engine else "float32"
    verdict = judge(found, compute=dtype, logits=logits, activations=ran, reference=ran)
    words = f"{n}: {verdict.words} (not expected to be the same bits: {'; '.join(conditions)})"
    findings.judge(_PART, "base's log-probabilities", [] if verdict.agrees else [words], words)


def _judge_kld(
    ours: Scores,
    theirs: Scores,
    weights: np.ndarray | None,
    found: Difference,
    findings: Findings,
) -> None:
    """Judges how far the mean KLD moved by what the log-probabilities' difference can do to it."""
    if ours.against is None or theirs.against is None:
        return
    own = float(np.average(ours.against.kld, weights=weights))
    said = float(np.average(theirs.against.kld, weights=weights))
    base = ours.against.base_logprob - theirs.against.base_logprob
    rms = found.rms + float(np.sqrt((base**2).mean()))
    limit = rms * np.sqrt(2 * max(own, said, 0.0)) + rms**2
    both = f"{own:.6f} nats over these windows, {said:.6f} in the record"
    words = f"{both}; rounding explains {limit:.2g}"
    if abs(own - said) <= limit:
        findings.held(_PART, "mean KLD", words)
    else:
        findings.wrong(_PART, "mean KLD", words)
