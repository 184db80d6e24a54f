"""Headers of GGUF files: metadata, and every tensor's type, shape and place, checked against the file.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. What passes here lies in the file, whole and
apart from the rest: counts and lengths are held against the bytes that are left before anything is made
of them, and tensors follow each other as llama.cpp's own reader wants them.

The types of ggml's tensors: ids, and how many values a block of how many bytes holds.

https://github.com/ggml-org/ggml/blob/master/include/ggml.h (`enum ggml_type`); sizes are those of the
structs in its src/ggml-common.h.

Models in several GGUF files, as llama.cpp's gguf-split makes them: which files, and that they belong
together.

The first says how many there are, and each which one it is; they are found by their names,
`NAME-00001-of-00003.gguf`.
"""

import math
import mmap
import re
import struct
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.lib.files import check_regular


class GgmlType(NamedTuple):
    """A type; of one that has no blocks `values` is 1."""

    name: str
    id: int
    values: int
    bytes: int

    @property
    def is_packed(self) -> bool:
        return self.values > 1


_ALL = (
    *(("F32", 0, 1, 4), ("F16", 1, 1, 2), ("BF16", 30, 1, 2), ("F64", 28, 1, 8)),
    *(("I8", 24, 1, 1), ("I16", 25, 1, 2), ("I32", 26, 1, 4), ("I64", 27, 1, 8)),
    *(("Q4_0", 2, 32, 18), ("Q4_1", 3, 32, 20), ("Q5_0", 6, 32, 22), ("Q5_1", 7, 32, 24)),
    *(("Q8_0", 8, 32, 34), ("Q2_K", 10, 256, 84), ("Q3_K", 11, 256, 110), ("Q4_K", 12, 256, 144)),
    *(("Q5_K", 13, 256, 176), ("Q6_K", 14, 256, 210)),
    *(("IQ1_S", 19, 256, 50), ("IQ1_M", 29, 256, 56), ("IQ2_XXS", 16, 256, 66)),
    *(("IQ2_XS", 17, 256, 74), ("IQ2_S", 22, 256, 82), ("IQ3_XXS", 18, 256, 98)),
    *(("IQ3_S", 21, 256, 110), ("IQ4_NL", 20, 32, 18), ("IQ4_XS", 23, 256, 136)),
    *(("TQ1_0", 34, 256, 54), ("TQ2_0", 35, 256, 66), ("Q1_0", 41, 128, 18)),
    *(("MXFP4", 39, 32, 17), ("NVFP4", 40, 64, 36)),
)
TYPES = {name: GgmlType(name, *numbers) for name, *numbers in _ALL}
TYPES_BY_ID = {kind.id: kind for kind in TYPES.values()}
# As safetensors spells them, too.
FLOATS = {"F32", "F16", "BF16"}
# Names of ids that no file is read with: gone from llama.cpp, of activations alone, or newer than the
# gguf package that decoders are held to.
UNREAD = {
    **{9: "Q8_1", 15: "Q8_K"},
    **{4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8"},
    **{36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 42: "Q2_0"},
}


# The largest vocabulary with its merges takes 16 MB.
_MOST_BYTES = 1 << 28
# Strings, and arrays in arrays: a vocabulary of 262,144 tokens comes with 515,000 merges.
_MOST_ITEMS = 1 << 22
_MOST_TENSORS = 500_000
_MOST_DIMS = 4  # ggml's
_DEEPEST = 8
_MAX = 1 << 63
# Ids of metadata's types → struct's and numpy's; bool, string and array are 7, 8 and 9.
_NUMBERS = {
    **{0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f"},
    **{10: "Q", 11: "q", 12: "d"},
}
_SCALARS = {kind: struct.Struct(f"<{code}") for kind, code in _NUMBERS.items()}
_UINT32, _BOOL, _STRING, _ARRAY = 4, 7, 8, 9
_ALIGNMENT = "general.alignment"
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class GgufTensor(NamedTuple):
    """A tensor as its file's header describes it; `shape` has the rows' length last, `begin` is its
    first byte in the file."""

    name: str
    file: Path
    type: str
    shape: tuple[int, ...]
    bytes: int
    begin: int


class GgufHeader(NamedTuple):
    """The contents of a GGUF file beside its tensors' bytes.

    - `metadata`: str, int, float and bool; arrays of numbers and of bool as numpy's, of strings and of
      arrays as lists.
    - `tensors`: in the order of their bytes.
    """

    metadata: Mapping[str, Any]
    tensors: list[GgufTensor]


def read_gguf(file: Path) -> GgufHeader:
    """The header of a GGUF file of version 2 or 3, little endian. Raises CheckpointError."""
    try:
        check_regular(file)
        size = file.stat().st_size
        if size < 24:
            raise CheckpointError(f"{file}: truncated or not GGUF ({size} bytes)")
        with (
            file.open("rb") as opened,
            mmap.mmap(opened.fileno(), min(size, _MOST_BYTES), access=mmap.ACCESS_READ) as content,
        ):
            return _Header(file, size, content).read()
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from None


class _Ended(Exception):
    """A length or a count that goes beyond what is left."""


class _Header:
    """A header as it is read; `at` is the byte that comes next."""

    def __init__(self, file: Path, size: int, content: mmap.mmap):
        self._file, self._size, self._content = file, size, content
        self._end = len(content)
        self._at = 0
        self._items = 0

    def read(self) -> GgufHeader:
        self._check_version()
        what = "the header"
        try:
            self._at = 8
            tensors, pairs = self._number(_U64), self._number(_U64)
            if tensors > _MOST_TENSORS:
                raise self._error(f"{tensors:,} tensors, more than {_MOST_TENSORS:,}")
            self._check_count(tensors, 24)
            self._check_count(pairs, 13)
            metadata: dict[str, Any] = {}
            for n in range(pairs):
                what = f"the key of metadata {n}"
                key = self._string(what)
                what = f"metadata {key}"
                if key in metadata:
                    raise self._error(f"metadata {key} is there twice")
                kind = self._number(_U32)
                metadata[key] = self._value(kind, what, 0)
                # llama.cpp's own reader takes no other.
                if key == _ALIGNMENT and kind != _UINT32:
                    raise self._error(f"{key} has type {kind}, not that of a 32-bit count")
            alignment = self._alignment(metadata)
            infos: list[GgufTensor] = []
            names: set[str] = set()
            for n in range(tensors):
                what = f"tensor {n} of {tensors}"
                infos.append(self._tensor(what))
                if infos[-1].name in names:
                    raise self._error(f"tensor {infos[-1].name} is there twice")
                names.add(infos[-1].name)
        except _Ended:
            if self._end < self._size:
                raise self._error(
                    f"{what} lies beyond the first {_MOST_BYTES >> 20} MiB, longer than any header"
                ) from None
            raise self._error(
                f"{what} goes beyond the file's end ({self._size} bytes): truncated or damaged"
            ) from None
        return GgufHeader(metadata, self._placed(infos, alignment))

    def _error(self, words: str) -> CheckpointError:
        return CheckpointError(f"{self._file}: {words}")

    def _check_version(self) -> None:
        magic, (version,) = self._content[:4], _U32.unpack_from(self._content, 4)
        if magic in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
            raise UnsupportedFormat(
                f"{self._file}: a file of llama.cpp's from before GGUF; convert the model anew"
            )
        if magic != b"GGUF":
            raise self._error(f"not GGUF: begins with {magic!r}")
        if version & 0xFFFF == 0 and version:
            raise UnsupportedFormat(
                f"{self._file}: a big-endian GGUF file, which is not read: turn it around with "
                "gguf_convert_endian.py of the gguf package"
            )
        if version not in (2, 3):
            raise UnsupportedFormat(f"{self._file}: GGUF version {version}; 2 and 3 are read")

    def _alignment(self, metadata: Mapping[str, Any]) -> int:
        value = metadata.get(_ALIGNMENT, 32)
        if not value or value & (value - 1):
            raise self._error(f"{_ALIGNMENT} is {value}, not a power of two")
        return value

    def _number(self, kind: struct.Struct) -> Any:
        begin, self._at = self._at, self._at + kind.size
        if self._at > self._end:
            raise _Ended
        return kind.unpack_from(self._content, begin)[0]

    def _check_count(self, count: int, least: int) -> None:
        """Raises _Ended if so many items of at least `least` bytes can't be there."""
        if count > (self._end - self._at) // least:
            raise _Ended

    def _string(self, what: str) -> str:
        return self._strings(1, what)[0]

    def _strings(self, count: int, what: str) -> list[str]:
        self._check_count(count, 8)
        self._count(count, what)
        content, at, end, length = self._content, self._at, self._end, _U64.unpack_from
        found: list[bytes] = []
        for _ in range(count):
            if at > end - 8:
                raise _Ended
            begin = at + 8
            at = begin + length(content, at)[0]
            if at > end:
                raise _Ended
            found.append(content[begin:at])
        self._at = at
        try:
            return [part.decode() for part in found]
        except UnicodeDecodeError as error:
            raise self._error(f"{what} is not in UTF-8: {error.object[:40]!r}") from None

    def _count(self, count: int, what: str) -> None:
        self._items += count
        if self._items > _MOST_ITEMS:
            raise self._error(f"more than {_MOST_ITEMS:,} strings and arrays, with {what}")

    def _value(self, kind: int, what: str, depth: int) -> Any:
        if kind == _STRING:
            return self._string(what)
        if kind == _BOOL:
            return bool(self._bools(1, what)[0])
        if kind == _ARRAY:
            return self._array(what, depth + 1)
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        raise self._error(f"{what} has type {kind}, which GGUF doesn't have")

    def _array(self, what: str, depth: int) -> Any:
        kind, count = self._number(_U32), self._number(_U64)
        if depth > _DEEPEST:
            raise self._error(f"{what} is nested more than {_DEEPEST} deep")
        if kind == _STRING:
            return self._strings(count, what)
        if kind == _BOOL:
            return self._bools(count, what)
        if kind == _ARRAY:
            self._check_count(count, 12)
            self._count(count, what)
            return [self._array(what, depth + 1) for _ in range(count)]
        if kind not in _NUMBERS:
            raise self._error(f"{what} has type {kind}, which GGUF doesn't have")
        return self._numbers(np.dtype(f"<{_NUMBERS[kind]}"), count)

    def _numbers(self, dtype: np.dtype[Any], count: int) -> np.ndarray:
        self._check_count(count, dtype.itemsize)
        begin, self._at = self._at, self._at + count * dtype.itemsize
        return np.frombuffer(self._content[begin : self._at], dtype)

    def _bools(self, count: int, what: str) -> np.ndarray:
        values = self._numbers(np.dtype("u1"), count)
        if len(values) and values.max() > 1:
            raise self._error(f"{what} is {values.max()}, which is no bool")
        return values.astype(bool)

    def _tensor(self, what: str) -> GgufTensor:
        """A tensor whose `begin` is counted from the data's."""
        name = self._string(what)
        rank = self._number(_U32)
        if rank > _MOST_DIMS:
            raise self._error(f"tensor {name} has {rank} dimensions, and ggml has {_MOST_DIMS}")
        shape = tuple(self._number(_U64) for _ in range(rank))[::-1]
        kind, begin = self._number(_U32), self._number(_U64)
        if kind not in TYPES_BY_ID:
            known = f" ({UNREAD[kind]})" if kind in UNREAD else ""
            raise UnsupportedFormat(
                f"{self._file}: tensor {name} has ggml's type {kind}{known}, which is not read"
            )
        ggml = TYPES_BY_ID[kind]
        count = math.prod(shape)
        if not 0 < count < _MAX or begin >= _MAX:
            raise self._error(f"tensor {name} has shape {list(shape)} at byte {begin}")
        row = shape[-1] if shape else 1
        if row % ggml.values:
            raise self._error(
                f"tensor {name} has rows of {row} values, and {ggml.name} has blocks of {ggml.values}"
            )
        return GgufTensor(
            name, self._file, ggml.name, shape, count // ggml.values * ggml.bytes, begin
        )

    def _placed(self, infos: list[GgufTensor], alignment: int) -> list[GgufTensor]:
        """The tensors by their first byte in the file, where each begins behind the one before."""
        start = _aligned(self._at, alignment)
        infos.sort(key=attrgetter("begin"))
        expected = 0
        for n, info in enumerate(infos):
            if info.begin != expected:
                raise self._error(
                    f"tensor {info.name} begins at byte {info.begin} of the data, and the one before "
                    f"it ends at {expected}"
                )
            infos[n] = info._replace(begin=start + info.begin)
            if infos[n].begin + info.bytes > self._size:
                raise self._error(
                    f"tensor {info.name}: {TYPES[info.type].name} {list(info.shape)} ends at byte "
                    f"{infos[n].begin + info.bytes} of a file of {self._size}: truncated or damaged"
                )
            expected = _aligned(info.begin + info.bytes, alignment)
        return infos


def _aligned(at: int, alignment: int) -> int:
    return -(-at // alignment) * alignment


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
