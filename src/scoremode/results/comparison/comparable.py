"""The checks that runs measured the same thing, and what else differs between them.

Two numbers of different windows, texts or softmax widths are not two values of one quantity, so such
runs are refused, with the first field that differs. Engines, dtypes and versions may move a number
a little without making it another quantity: those are noted.
"""

from collections.abc import Sequence
from typing import Any

from scoremode.errors import RunFolderError
from scoremode.results.comparison.same_plan import first_difference
from scoremode.results.folders.finished import FinishedRun

__all__ = ["differing", "require_same"]

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
}


def require_same(first: FinishedRun, other: FinishedRun) -> None:
    """Raises RunFolderError unless both scored the same targets of the same windows, by a softmax
    over as many entries."""
    if found := first_difference(first.at, other.at):
        _refuse(first, other, *found)
    one, two = first.at("engine.vocabulary"), other.at("engine.vocabulary")
    if one != two:
        _refuse(first, other, "entries of the softmax", one, two)
    if first.targets != other.targets:
        raise RunFolderError(
            f"{first.folder} and {other.folder}: records of one plan, and scores of other targets"
        )


def differing(runs: Sequence[FinishedRun], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Differences between runs of one plan: `field`, and in `values` which runs have which."""
    versions = sorted({name for run in runs for name in run.get("versions") or {}})
    fields = _NOTED | {f"version of {name}": f"versions.{name}" for name in versions}
    found = []
    for field, path in fields.items():
        values: dict[str, list[str]] = {}
        for run, label in zip(runs, labels, strict=True):
            value = run.get(path)
            values.setdefault("none" if value is None else str(value), []).append(label)
        if len(values) > 1:
            found.append({"field": field, "values": values})
    return found


def _refuse(first: FinishedRun, other: FinishedRun, field: str, one: Any, two: Any) -> None:
    raise RunFolderError(
        f"{first.folder} and {other.folder} are not comparable: {field} {one} and {two}"
    )
