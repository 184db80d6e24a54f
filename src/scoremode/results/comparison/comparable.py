"""The checks that runs measured the same thing, and what else differs between them.

Two numbers of different windows, texts or softmax widths are not two values of one quantity, so such
runs are refused, with the first field that differs. A plan's sha256 decides; where two differ, what
differs is named by the first thing that makes the difference: a field of the protocol, the text, the
tokenizer, the windows. Engines, dtypes and versions may move a number a little without making it
another quantity: those are noted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from scoremode.errors import ReferenceUnusable, RunFolderError
from scoremode.results.folders.finished import FinishedRun
from scoremode.results.record.section import value_at

# The largest share of targets in its calibration text with which a text counts as held out.
HELD_OUT = 0.01


def not_held_out(runs: Sequence[FinishedRun]) -> list[str]:
    """A note on each run whose text is not held out, by what it was told of its calibration."""
    found = [(run.folder, run.record.calibration) for run in runs]
    return [
        f"{folder} is not held out: {section.share:.2%} of its targets stand in {section.name}, "
        "too, its calibration text"
        for folder, section in found
        if section and section.share > HELD_OUT
    ]


_CAUSES = {
    "text sha256": "corpus.text.sha256",
    "chat template sha256": "corpus.conversations.template.sha256",
    "values for the chat template": "corpus.conversations.template.arguments",
    "chat template's day": "corpus.conversations.template.date",
    "tokens that end a turn": "corpus.conversations.ends",
    "tokenizer sha256": "tokenizer.sha256",
    "token ids sha256": "plan.tokens_sha256",
    "BOS of windows": "plan.window_bos",
    "number of windows": "plan.windows",
    "plan sha256": "plan.sha256",
}
_NOTED = {
    "engine": "engine.engine",
    "arithmetic": "engine.arithmetic",
    "dtype": "engine.dtype",
    "activations": "engine.activations.ran",
    "head dtype": "engine.head_dtype",
    "KV cache": "engine.kv_cache_dtype",
    "attention": "engine.attention",
    "device": "engine.device.name",
    "tokenizer sha256": "tokenizer.sha256",
    "vLLM": "engine.vllm",
    "confident": "thresholds.confident",
}


def check_same_plan(ours: Mapping[str, Any], theirs: Mapping[str, Any], what: str) -> None:
    """Raises ReferenceUnusable where the record `theirs`, which `what` names, is of another plan than
    `ours`."""
    if found := _differing_plans(ours, theirs):
        name, own, other = found
        raise ReferenceUnusable(
            f"{what}: is of another plan: its {name} is {_short(other)}, this run's {_short(own)}"
        )


def require_same(first: FinishedRun, other: FinishedRun) -> None:
    """Raises RunFolderError unless both scored the same targets of the same windows, by a softmax
    over as many entries."""
    if found := _differing_plans(first.record.document, other.record.document):
        _refuse(first, other, *found)
    one, two = first.record.engine.vocabulary, other.record.engine.vocabulary
    if one != two:
        _refuse(first, other, "entries of the softmax", one, two)
    if first.targets_sha256 != other.targets_sha256:
        raise RunFolderError(
            f"{first.folder} and {other.folder}: records of one plan, and scores of other targets"
        )


def differing(runs: Sequence[FinishedRun], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Differences between runs of one plan: `field`, and in `values` which runs have which."""
    versions = sorted({name for run in runs for name in run.record.versions or {}})
    fields = _NOTED | {f"version of {name}": f"versions.{name}" for name in versions}
    found = []
    for field, path in fields.items():
        values: dict[str, list[str]] = {}
        for run, label in zip(runs, labels, strict=True):
            value = value_at(run.record.document, path)
            values.setdefault("none" if value is None else str(value), []).append(label)
        if len(values) > 1:
            found.append({"field": field, "values": values})
    return found


def _differing_plans(
    ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> tuple[str, Any, Any] | None:
    """The first difference between the plans of two records' documents: its name and both values, None
    if none."""
    if ours["plan"]["sha256"] == theirs["plan"]["sha256"]:
        return None
    one, two = ours["protocol"], theirs["protocol"]
    # Two names of one procedure are one.
    for key in [*one, *(key for key in two if key not in one)]:
        if key not in ("name", "sha256") and one.get(key) != two.get(key):
            return f"protocol's {key}", one.get(key), two.get(key)
    planned = value_at(ours, "plan.planned.sha256")
    if planned is not None and planned == value_at(theirs, "plan.planned.sha256"):
        windows = ours["plan"]["windows"], theirs["plan"]["windows"]
        return f"number of windows when {one['stop_when']} ended it", *windows
    both = ((name, value_at(ours, path), value_at(theirs, path)) for name, path in _CAUSES.items())
    return next(v for v in both if v[1] != v[2])


def _refuse(first: FinishedRun, other: FinishedRun, field: str, one: Any, two: Any) -> None:
    raise RunFolderError(
        f"{first.folder} and {other.folder} are not comparable: {field} {one} and {two}"
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:16]}…"
