"""Lines of hashes, what lies behind them, and what differs between two files of them."""

from __future__ import annotations

import difflib
import fnmatch
import gzip
import json
import platform
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from digests import LIBRARIES, hash_of_value

HEADER = "#"
# Lines of one difference of a text, their length, and measurements that are named with a difference.
DIFF_LINES, WIDTH, NAMES = 12, 200, 4

# Name of a line → what it is the hash of; a text: why there is none.
Values = dict[str, Any]


def write(path: Path, values: Values) -> None:
    """The lines, and beside them PATH.json.gz with what they are made of."""
    path.write_text(text_of(values), encoding="utf-8")
    content = json.dumps(values, sort_keys=True, ensure_ascii=False).encode()
    details_of(path).write_bytes(gzip.compress(content, mtime=0))


def details_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json.gz")


def text_of(values: Values) -> str:
    lines = (f"{name}\t{shown(value)}\n" for name, value in sorted(values.items()))
    return "".join((f"{HEADER}\t{header()}\n", *lines))


def shown(value: Any) -> str:
    return value if isinstance(value, str) else hash_of_value(value)


def header() -> str:
    """What bits depend on beside the code."""
    versions = " ".join(f"{name} {metadata.version(name)}" for name in LIBRARIES)
    return f"{platform.machine()} {processor()}, {versions}"


def processor() -> str:
    """Its model as Linux names it; elsewhere as Python does."""
    if sys.platform != "linux":
        return platform.processor()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unnamed"


def read(path: Path) -> dict[str, str]:
    """Name → hash of the lines of a file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {name: rest for name, _, rest in (line.partition("\t") for line in lines) if name}


def compare(path: Path, values: Values, patterns: Sequence[str]) -> int:
    """Prints which lines differ from a file's, and in what; returns how many do.

    A line that only one has is a difference; one that either skipped is none.
    """
    before = read(path)
    if before.get(HEADER) != header():
        print(f"another machine or other libraries:\n- {before.get(HEADER)}\n+ {header()}")
    details = json.loads(gzip.decompress(details_of(path).read_bytes()))
    after = {name: shown(value) for name, value in values.items()}
    names = sorted((before.keys() | after.keys()) - {HEADER})
    names = [n for n in names if matches(n, patterns)]
    skipped = [n for n in names if any("skipped" in lines.get(n, "") for lines in (before, after))]
    differing = [n for n in names if before.get(n) != after.get(n) and n not in skipped]
    by_field: dict[str, list[str]] = {}
    for name in differing:
        if name not in before or name not in after:
            where = "missing before" if name not in before else "missing now"
            by_field.setdefault(where, []).append(name)
            continue
        part = name.rpartition("/")[2]
        for field in fields_that_differ(details[name], values[name]):
            by_field.setdefault(f"{part}: {field}", []).append(name)
    for field, where in by_field.items():
        more = f" and {len(where) - NAMES} more" if len(where) > NAMES else ""
        print(f"{field}\n    in {', '.join(where[:NAMES])}{more}")
    print(
        f"{len(names) - len(differing) - len(skipped)} lines are the same, {len(differing)} differ"
    )
    if skipped:
        print(f"not compared, since skipped: {', '.join(skipped)}")
    return len(differing)


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(
        fnmatch.fnmatchcase(name, p) or fnmatch.fnmatchcase(name, f"{p}/*") for p in patterns
    )


def fields_that_differ(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """The fields of two values that differ, each with both values or the first lines of a diff."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() | new.keys()):
            inner = f"{path}.{key}" if path else str(key)
            if key not in new:
                yield f"{inner} is gone"
            elif key not in old:
                yield f"{inner} is new"
            else:
                yield from fields_that_differ(old[key], new[key], inner)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from fields_that_differ(a, b, f"{path}[{i}]")
    elif old != new:
        yield f"{path}{difference_of(old, new)}"


def difference_of(old: Any, new: Any) -> str:
    if isinstance(old, str) and isinstance(new, str) and "\n" in old + new:
        before, after = ([*wrapped(text)] for text in (old, new))
        lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
        more = [f"… {len(lines) - DIFF_LINES} more lines"] if len(lines) > DIFF_LINES else []
        return "".join(f"\n    {line}" for line in [*lines[:DIFF_LINES], *more])
    return f": {str(old)[:120]} → {str(new)[:120]}"


def wrapped(text: str) -> Iterator[str]:
    """Lines, long ones cut at spaces."""
    for line in text.splitlines():
        yield from textwrap.wrap(line, WIDTH, drop_whitespace=False) or [""]
