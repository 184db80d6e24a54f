"""GGUF files written field by field, so that any field can lie."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Raw", "array", "file", "info", "pair", "string", "value"]

# Ids of metadata's types.
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = {
    **{U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f"},
    **{BOOL: "?", U64: "Q", I64: "q", F64: "d"},
}


class Raw(NamedTuple):
    """A value's type and its bytes as they are."""

    type: int
    content: bytes


def string(text: str | bytes) -> bytes:
    content = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(content)) + content


def value(kind: int, content: Any) -> Raw:
    if kind == STRING:
        return Raw(kind, string(content))
    return Raw(kind, struct.pack(f"<{_CODES[kind]}", content))


def array(kind: int, items: Sequence[Any], count: int | None = None) -> Raw:
    """An array of values of one type, or of arrays; it may say that it has another count."""
    parts = [v.content if isinstance(v, Raw) else value(kind, v).content for v in items]
    head = struct.pack("<IQ", kind, len(items) if count is None else count)
    return Raw(ARRAY, head + b"".join(parts))


def pair(key: str | bytes, content: Any) -> bytes:
    """A key and its value; Python's own get the types that writers give them."""
    if not isinstance(content, Raw):
        kinds = {bool: BOOL, int: U32, float: F32, str: STRING, bytes: STRING}
        content = value(kinds[type(content)], content)
    return string(key) + struct.pack("<I", content.type) + content.content


def info(
    name: str | bytes, kind: int, shape: Sequence[int], begin: int, rank: int | None = None
) -> bytes:
    """A tensor's entry; `shape` has the rows' length last."""
    dims = struct.pack(f"<{len(shape)}Q", *reversed(shape))
    count = len(shape) if rank is None else rank
    return string(name) + struct.pack("<I", count) + dims + struct.pack("<IQ", kind, begin)


def file(
    metadata: Mapping[str, Any] | Sequence[bytes] = (),
    infos: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
    counts: tuple[int, int] | None = None,
) -> bytes:
    pairs = metadata
    if isinstance(metadata, Mapping):
        pairs = [pair(key, content) for key, content in metadata.items()]
    tensors, keys = counts or (len(infos), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join([*pairs, *infos])
    return head + bytes(-len(head) % alignment) + data
