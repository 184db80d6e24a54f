"""Whether runs measured the same thing, and what else differs between them.

Two numbers of different windows, texts or softmax widths are not two values of one quantity, so such
runs are refused, with the first field that differs. Engines, dtypes and versions may move a number
a little without making it another quantity: those are noted.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from scoremode.errors import RunFolderError
from scoremode.results.runs import Run

__all__ = ["differing", "require_same"]

# Where plans differ: the first of these that does is what is said of it.
_CAUSES = {
    "tokenizer sha256": "tokenizer.sha256",
    "text sha256": "corpus.text.sha256",
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
}


def require_same(first: Run, other: Run) -> None:
    """Raises RunFolderError unless both scored the same targets of the same windows, by a softmax
    over as many entries."""
    if first.at("plan.sha256") != other.at("plan.sha256"):
        field, one, two = _cause(first, other)
        _refuse(first, other, field, one, two)
    one, two = first.at("engine.vocabulary"), other.at("engine.vocabulary")
    if one != two:
        _refuse(first, other, "entries of the softmax", one, two)
    if first.targets != other.targets:
        raise RunFolderError(
            f"{first.folder} and {other.folder}: records of one plan, and scores of other targets"
        )


def differing(runs: Sequence[Run], labels: Sequence[str]) -> list[dict[str, Any]]:
    """What differs between runs of one plan: `field`, and in `values` which runs have which."""
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


def _cause(first: Run, other: Run) -> tuple[str, Any, Any]:
    for field, one, two in _fields(first, other):
        if one != two:
            return field, one, two
    raise AssertionError("plans that differ in their sha256 differ")


def _fields(first: Run, other: Run) -> Iterator[tuple[str, Any, Any]]:
    one, two = first.at("protocol"), other.at("protocol")
    # Two names of one procedure are one.
    for key in [*one, *(key for key in two if key not in one)]:
        if key not in ("name", "sha256"):
            yield f"protocol's {key}", one.get(key), two.get(key)
    for field, path in _CAUSES.items():
        yield field, first.at(path), other.at(path)


def _refuse(first: Run, other: Run, field: str, one: Any, two: Any) -> None:
    raise RunFolderError(
        f"{first.folder} and {other.folder} are not comparable: {field} {one} and {two}"
    )
