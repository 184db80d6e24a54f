"""A model card's README with our block and our metadata in it, and all else as it was, to the byte."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from scoremode.errors import UsageError, words_of
from scoremode.report.card.block import BEGIN, END
from scoremode.report.card.metadata import TOOL

__all__ = ["with_block", "with_model_index"]

_FRONT = re.compile(r"\A\ufeff?\s*---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_KEY = "model-index"


def with_block(text: str, block: str, name: str) -> str:
    """README `text` with `block` in the place of an earlier one, or at its end.

    Raises UsageError, which calls the file `name`, for markers that are not one pair.
    """
    begins, ends = text.count(BEGIN), text.count(END)
    block = block.rstrip("\n")
    if "\r\n" in text:
        block = block.replace("\n", "\r\n")
    if not begins and not ends:
        line = "\r\n" if "\r\n" in text else "\n"
        before = text.rstrip("\r\n")
        return f"{before}{line * 2 if before else ''}{block}{line}"
    at, until = text.find(BEGIN), text.find(END)
    if (begins, ends) != (1, 1) or until < at:
        raise UsageError(
            f"{name}: has {begins} of {BEGIN} and {ends} of {END}, not one pair of them"
        )
    return text[:at] + block + text[until + len(END) :]


def with_model_index(text: str, index: Sequence[Mapping[str, Any]], name: str) -> str:
    """README `text` whose front matter has the results of `index` in its `model-index`, beside those of
    others; earlier ones of ours are gone. Nothing else in it is touched.

    Raises UsageError for front matter that is not what the hub takes.
    """
    import yaml
    from huggingface_hub.utils import yaml_dump

    found = _FRONT.match(text)
    front = found[1] if found else ""
    line = "\r\n" if "\r\n" in text else "\n"
    try:
        old = yaml.safe_load(front) or {}
        node = yaml.compose(front)
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: its front matter is no YAML: {words_of(error)}") from None
    if not isinstance(old, dict):
        raise UsageError(f"{name}: its front matter is {type(old).__name__}, not names with values")
    merged = _merged(old.get(_KEY), index, name)
    made = yaml_dump({_KEY: merged}, sort_keys=False).rstrip("\n").replace("\n", line) + line
    lines = front.splitlines(keepends=True)
    begin, end = _place(node, len(lines))
    whole = "".join([*lines[:begin], made, *lines[end:]])
    _check_rest(old, whole, name)
    if found is None:
        return f"---{line}{whole}---{line}{line}{text}"
    return text[: found.start(1)] + whole + text[found.end(1) :]


def _place(node: Any, count: int) -> tuple[int, int]:
    """The lines of the front matter that `model-index` takes; behind all others where there is none."""
    for key, value in [] if node is None else node.value:
        if key.value == _KEY:
            return key.start_mark.line, _last_line(value) + 1
    return count, count


def _last_line(node: Any) -> int:
    """The last line that a node has something on. A list's own end is where the next name begins, with
    all comments before it."""
    inside = [] if isinstance(node.value, str) else node.value
    nodes = [one for each in inside for one in (each if isinstance(each, tuple) else (each,))]
    if nodes and not node.flow_style:
        return max(map(_last_line, nodes))
    # A block of text ends where the next line begins.
    return node.end_mark.line - (node.end_mark.column == 0)


def _check_rest(old: Mapping[str, Any], front: str, name: str) -> None:
    """Raises UsageError unless front matter says what `old` said but for our part."""
    import yaml

    try:
        new = yaml.safe_load(front)
    except yaml.YAMLError:
        new = None
    rest = {key: value for key, value in old.items() if key != _KEY}
    if not isinstance(new, dict) or {k: v for k, v in new.items() if k != _KEY} != rest:
        raise UsageError(
            f"{name}: its front matter is written so that a {_KEY} can't be put into it: give each "
            "name a line of its own"
        )


def _merged(old: Any, index: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """The results that others have put there, then ours, under the name that is there."""
    (ours,) = index
    if old is None:
        return [dict(ours)]
    try:
        entries = [{**entry, "results": list(entry["results"])} for entry in old]
        for entry in entries:
            entry["results"] = [kept for r in entry["results"] if (kept := _others(r)) is not None]
    except (TypeError, KeyError, AttributeError):
        raise UsageError(f"{name}: its {_KEY} is not as the hub has it") from None
    if not entries:
        return [dict(ours)]
    entries[0]["results"] += ours["results"]
    return [entry for entry in entries if entry["results"]]


def _others(result: dict[str, Any]) -> dict[str, Any] | None:
    """A result without metrics of ours; None where it had no others."""
    kept = [metric for metric in result["metrics"] if not _is_ours(metric)]
    return {**result, "metrics": kept} if kept else None


def _is_ours(metric: Mapping[str, Any]) -> bool:
    arguments = metric.get("args")
    tool = arguments.get("tool") if isinstance(arguments, dict) else None
    return isinstance(tool, str) and tool.startswith(f"{TOOL} ")
