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
    "text": "corpus.text.sha256",
    "chat template": "corpus.conversations.template.sha256",
    "values for the chat template": "corpus.conversations.template.arguments",
    "chat template's day": "corpus.conversations.template.date",
    "tokens that end a turn": "corpus.conversations.ends",
    "tokenizer": "tokenizer.sha256",
    "token ids": "plan.tokens_sha256",
    "BOS of windows": "plan.window_bos",
    "number of windows": "plan.windows",
    "places of windows": "plan.sha256",
}
# What people call that whose sha256 differs, and what else may tell two of one name apart.
_NAMES = {
    "corpus.text.sha256": ("corpus.name", "corpus.text.bytes", "corpus.source"),
    "corpus.conversations.template.sha256": ("corpus.conversations.template.source",),
    "tokenizer.sha256": ("tokenizer.source", "tokenizer.size"),
    "plan.tokens_sha256": ("plan.tokens",),
    "plan.sha256": ("plan.scored",),
    "reference.sha256": (
        *("reference.source", "reference.checkpoint.source", "reference.engine.dtype"),
        *("reference.engine.arithmetic", "reference.engine.kv_cache_dtype"),
        "reference.engine.device.name",
    ),
}
_COUNTED = {"bytes": "bytes", "size": "entries", "tokens": "tokens", "scored": "scored tokens"}
_NOTED = {
    "engine": "engine.engine",
    "arithmetic": "engine.arithmetic",
    "dtype": "engine.dtype",
    "activations": "engine.activations.ran",
    "head dtype": "engine.head_dtype",
    "phase": "engine.phase",
    "KV cache": "engine.kv_cache_dtype",
    "attention": "engine.attention",
    "device": "engine.device.name",
    "tokenizer sha256": "tokenizer.sha256",
    "vLLM": "engine.vllm",
    "server": "engine.version",
    "confident": "thresholds.confident",
}


def told_apart(one: Mapping[str, Any], two: Mapping[str, Any], path: str) -> tuple[str, str]:
    """Words for what differs between two records' documents at `path`: of a sha256 the names, or one
    name with the first fact that differs; the digits only where nothing else tells."""
    name, *further = _NAMES.get(path, (path,))
    names = _word(one, name), _word(two, name)
    if names[0] != names[1] or path not in _NAMES:
        return names
    for fact in further:
        facts = _word(one, fact), _word(two, fact)
        if facts[0] != facts[1]:
            return f"{names[0]} ({facts[0]})", f"{names[1]} ({facts[1]})"
    digests = (str(value_at(document, path))[:12] for document in (one, two))
    first, second = (f"{names[0]} (sha256 {digest})" for digest in digests)
    return first, second


def _word(document: Mapping[str, Any], path: str) -> str:
    value, what = value_at(document, path), _COUNTED.get(path.rpartition(".")[2])
    return f"{value:,} {what}" if what and isinstance(value, int) else _short(value)


def check_same_plan(ours: Mapping[str, Any], theirs: Mapping[str, Any], what: str) -> None:
    """Raises ReferenceUnusable where the record `theirs`, which `what` names, is of another plan than
    `ours`."""
    if found := _differing_plans(ours, theirs):
        name, own, other = found
        raise ReferenceUnusable(
            f"{what}: is of another plan: its {name} is {other}, this run's {own}"
        )


def require_same(first: FinishedRun, other: FinishedRun) -> None:
    """Raises RunFolderError unless both scored the same targets of the same windows, by a softmax
    over as many entries."""
    if found := _differing_plans(first.record.document, other.record.document):
        names = first.record.protocol.name, other.record.protocol.name
        end = f" (protocols {names[0]} and {names[1]})" if names[0] != names[1] else ""
        _refuse(first, other, *found, end)
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
) -> tuple[str, str, str] | None:
    """The first difference between the plans of two records' documents: its name and words for both
    values, None if none."""
    if ours["plan"]["sha256"] == theirs["plan"]["sha256"]:
        return None
    one, two = ours["protocol"], theirs["protocol"]
    # Two names of one procedure are one.
    for key in [*one, *(key for key in two if key not in one)]:
        if key not in ("name", "sha256") and one.get(key) != two.get(key):
            return f"protocol's {key}", _short(one.get(key)), _short(two.get(key))
    planned = value_at(ours, "plan.planned.sha256")
    if planned is not None and planned == value_at(theirs, "plan.planned.sha256"):
        windows = str(ours["plan"]["windows"]), str(theirs["plan"]["windows"])
        return f"number of windows when {one['stop_when']} ended it", *windows
    name, path = next(
        (name, path)
        for name, path in _CAUSES.items()
        if value_at(ours, path) != value_at(theirs, path)
    )
    return name, *told_apart(ours, theirs, path)


def _refuse(
    first: FinishedRun, other: FinishedRun, field: str, one: Any, two: Any, end: str = ""
) -> None:
    raise RunFolderError(
        f"{first.folder} and {other.folder} are not comparable: {field} {one} and {two}{end}"
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:16]}…"
