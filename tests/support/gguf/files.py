"""GGUF files written field by field, so that any field can lie."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

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
    pairs: list[bytes] = []
    if not isinstance(metadata, Mapping):
        pairs += metadata
    else:
        pairs += [pair(key, content) for key, content in metadata.items()]
    tensors, keys = counts or (len(infos), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join((*pairs, *infos))
    return head + bytes(-len(head) % alignment) + data


# A llama of one layer; `ffn_down` has rows long enough for blocks of 256.
HIDDEN, HEADS, KEYS, INNER, VOCAB = 64, 4, 2, 256, 80
SHAPES = {
    "token_embd.weight": (VOCAB, HIDDEN),
    "output_norm.weight": (HIDDEN,),
    "output.weight": (VOCAB, HIDDEN),
    "blk.0.attn_norm.weight": (HIDDEN,),
    "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
    "blk.0.attn_k.weight": (HIDDEN // HEADS * KEYS, HIDDEN),
    "blk.0.attn_v.weight": (HIDDEN // HEADS * KEYS, HIDDEN),
    "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
    "blk.0.ffn_norm.weight": (HIDDEN,),
    "blk.0.ffn_gate.weight": (INNER, HIDDEN),
    "blk.0.ffn_up.weight": (INNER, HIDDEN),
    "blk.0.ffn_down.weight": (HIDDEN, INNER),
}
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "llama.context_length": 128,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INNER,
    "llama.block_count": 1,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KEYS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def contents(types: Mapping[str, str], names: Sequence[str] = tuple(SHAPES)) -> dict[str, bytes]:
    """The bytes of tensors of a `llama`, always the same: those of `types` quantized, others F32."""
    found = {}
    for name in names:
        shape = SHAPES[name]
        random = np.random.default_rng(list(SHAPES).index(name))
        values = random.standard_normal(shape, np.float32) / 8
        if len(shape) == 1:
            values += 1
        kind = types.get(name, "F32")
        found[name] = quantize(values, GGMLQuantizationType[kind]).tobytes()
    return found


def llama(
    types: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    names: Sequence[str] = tuple(SHAPES),
) -> bytes:
    """A file of a tiny llama, of some `names`; `metadata` overrules, and None takes a key away."""
    types = types or {}
    pairs = {k: v for k, v in (METADATA | dict(metadata or {})).items() if v is not None}
    infos, data = [], b""
    for name, content in contents(types, names).items():
        kind = GGMLQuantizationType[types.get(name, "F32")]
        infos.append(info(name, kind, SHAPES[name], len(data)))
        data += content + bytes(-len(content) % 32)
    return file(pairs, infos, data)


def split(
    types: Mapping[str, str], name: str = "x", metadata: Mapping[str, Any] | None = None
) -> dict[str, bytes]:
    """The same in three files, by name; the first has no tensors, as gguf-split can make it."""
    names, found = list(SHAPES), {}
    for n, own in enumerate(([], names[:7], names[7:])):
        said = {"split.no": Raw(U16, struct.pack("<H", n)), "split.count": 3}
        said |= {"split.tensors.count": len(names)} | dict(metadata or {})
        rest = {} if n == 0 else dict.fromkeys(METADATA)
        found[f"{name}-{n + 1:05}-of-00003.gguf"] = llama(types, rest | said, own)
    return found
