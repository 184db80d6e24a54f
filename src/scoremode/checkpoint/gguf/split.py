"""Models in several GGUF files, as llama.cpp's gguf-split makes them: which files, and that they belong
together.

The first says how many there are, and each which one it is; they are found by their names,
`NAME-00001-of-00003.gguf`.
"""

import re
from pathlib import Path

from scoremode.checkpoint.gguf.header import GgufHeader, read_gguf
from scoremode.errors import CheckpointError

__all__ = ["first_of", "parts_of", "read_split"]

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE | re.DOTALL)


def first_of(name: str) -> str:
    """The name of a split's first file, by that of any of them; `name` itself of no split."""
    found = _PART.fullmatch(name)
    return f"{found[1]}-00001-of-{found[3]}{found[4]}" if found else name


def parts_of(first: str) -> list[str]:
    """The names of all files of a split, by that of its first; `first` alone of no split."""
    found = _PART.fullmatch(first)
    if found is None:
        return [first]
    return [
        f"{found[1]}-{n:05}-of-{found[3]}{found[4]}" for n in range(1, max(int(found[3]), 1) + 1)
    ]


def read_split(file: Path) -> list[tuple[Path, GgufHeader]]:
    """The file and its header; of a split's first, all files in order. Raises CheckpointError."""
    if (first := first_of(file.name)) != file.name:
        raise CheckpointError(f"{file}: is a part of a split model: give its first file, {first}")
    header = read_gguf(file)
    count = _number(file, header, "split.count", 1)
    names = parts_of(file.name)
    if len(names) != count and max(len(names), count) > 1:
        named = f"is named as the first of {len(names)} files" if _PART.fullmatch(first) else (
            "its name doesn't end in -00001-of-N.gguf, by which the others are found"
        )  # fmt: skip
        raise CheckpointError(f"{file}: split.count is {count}, and {named}")
    found = [(file, header)]
    for name in names[1:]:
        if not (part := file.with_name(name)).exists():
            raise CheckpointError(f"{part}: is missing, one of {count} files of a split model")
        found.append((part, read_gguf(part)))
    for n, (part, own) in enumerate(found):
        if count > 1 and (number := _number(part, own, "split.no", 0)) != n:
            raise CheckpointError(f"{part}: split.no is {number}, and its name has {n}")
        if (other := _number(part, own, "split.count", 1)) != count:
            raise CheckpointError(f"{part}: split.count is {other}, and {file.name} has {count}")
    _check_tensors(file, found)
    return found


def _check_tensors(file: Path, found: list[tuple[Path, GgufHeader]]) -> None:
    seen: dict[str, Path] = {}
    for part, header in found:
        for tensor in header.tensors:
            if tensor.name in seen:
                other = seen[tensor.name].name
                raise CheckpointError(f"{part}: tensor {tensor.name} is in {other}, too")
            seen[tensor.name] = part
    for part, header in found:
        if (count := _number(part, header, "split.tensors.count", len(seen))) != len(seen):
            of = f", and {len(seen)} are there"
            raise CheckpointError(f"{part}: split.tensors.count is {count}{of}")


def _number(file: Path, header: GgufHeader, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if type(value) is not int or value < 0:
        raise CheckpointError(f"{file}: {key} is {str(value)[:80]}, no count")
    return value
