"""Mutations of GGUF files: of bytes anywhere, and of fields, with all else written anew to fit."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from fuzz.files import Files
from support.gguf.files import (
    ARRAY,
    BOOL,
    F32,
    F64,
    STRING,
    U8,
    U32,
    U64,
    Raw,
    array,
    string,
    value,
)

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_NUMBERS = [
    *(0, 1, 2, 3, 31, 32, 33, 64, 255, 256, 257, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1),
    *(1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 32),
]
_IDS = [*range(45), 99, 1 << 31]


@dataclass
class Parsed:
    """A file's fields; `tensors` are name, shape as it is stored, type and content."""

    version: int
    pairs: list[tuple[bytes, int, bytes]]
    tensors: list[tuple[bytes, list[int], int, bytes]]
    alignment: int = 32

    def write(self) -> bytes:
        """The file, with counts and places that fit."""
        head = b"GGUF" + struct.pack("<IQQ", self.version, len(self.tensors), len(self.pairs))
        for key, kind, content in self.pairs:
            head += string(key) + struct.pack("<I", kind) + content
        data = b""
        for name, dims, kind, content in self.tensors:
            head += string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
            head += struct.pack("<IQ", kind, len(data))
            data += content + bytes(-len(content) % self.alignment)
        return head + bytes(-len(head) % self.alignment) + data


def parse(content: bytes) -> Parsed:
    """Raises struct.error, IndexError or KeyError for what an earlier mutation has spoiled."""
    at = 24
    version, tensors, pairs = struct.unpack_from("<IQQ", content, 4)

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        if at > len(content):
            raise IndexError
        return content[at - count : at]

    def text() -> bytes:
        return take(struct.unpack("<Q", take(8))[0])

    def skip(kind: int) -> None:
        if kind == STRING:
            text()
        elif kind == ARRAY:
            inner, count = struct.unpack("<IQ", take(12))
            if inner in _SIZES:
                take(count * _SIZES[inner])
                return
            for _ in range(count):
                skip(inner)
        else:
            take(_SIZES[kind])

    found = Parsed(version, [], [])
    for _ in range(pairs):
        key, (kind,) = text(), struct.unpack("<I", take(4))
        begin = at
        skip(kind)
        found.pairs.append((key, kind, content[begin:at]))
        if key == b"general.alignment":
            found.alignment = min(struct.unpack("<I", content[begin:at])[0], 4096)
    infos = []
    for _ in range(tensors):
        name, (rank,) = text(), struct.unpack("<I", take(4))
        dims = list(struct.unpack(f"<{rank}Q", take(8 * rank)))
        infos.append((name, dims, *struct.unpack("<IQ", take(12))))
    start = -(-at // found.alignment) * found.alignment
    ends = [*(offset for *_, offset in infos[1:]), len(content) - start]
    # One end too many where there are no tensors, as in a split's first file.
    for (name, dims, kind, offset), end in zip(infos, ends, strict=False):
        found.tensors.append((name, dims, kind, content[start + offset : start + end]))
    return found


def mutate(rng: Random, files: Files) -> list[str]:
    """One to three mutations of `files`, in place; what they did."""
    done = []
    for mutation in rng.choices(_MUTATIONS, _WEIGHTS, k=rng.choices([1, 2, 3], [7, 2, 1])[0]):
        name = rng.choice(sorted(files)) if files else ""
        try:
            done.append(f"{name}: {mutation(rng, files, name)}")
        # One before it has left nothing that this one could work on.
        except (LookupError, ValueError, ArithmeticError, struct.error):
            done.append(f"{mutation.__name__} found nothing")
    return done


def _header_bytes(rng: Random, files: Files, name: str) -> str:
    content = bytearray(files[name])
    places = [rng.randrange(min(len(content), 4000)) for _ in range(rng.randint(1, 4))]
    for place in places:
        content[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    files[name] = bytes(content)
    return f"bytes {places}"


def _number(rng: Random, files: Files, name: str) -> str:
    """A word somewhere in the header."""
    content = bytearray(files[name])
    place, kind = rng.randrange(min(len(content) - 8, 4000)), rng.choice("IQ")
    number = rng.choice(_NUMBERS) % (1 << (32 if kind == "I" else 64))
    struct.pack_into(f"<{kind}", content, place, number)
    files[name] = bytes(content)
    return f"{number} at {place}"


def _counts(rng: Random, files: Files, name: str) -> str:
    content = bytearray(files[name])
    place = rng.choice([8, 16])
    (now,) = struct.unpack_from("<Q", content, place)
    number = rng.choice([now + 1, max(now - 1, 0), *_NUMBERS])
    struct.pack_into("<Q", content, place, number)
    files[name] = bytes(content)
    return f"count {number} at {place}"


def _version(rng: Random, files: Files, name: str) -> str:
    content = bytearray(files[name])
    number = rng.choice([0, 1, 2, 2, 2, 3 << 24, 2 << 24, 4, 1 << 31])
    struct.pack_into("<I", content, 4, number)
    files[name] = bytes(content)
    return f"version {number}"


def _magic(rng: Random, files: Files, name: str) -> str:
    files[name] = rng.choice([b"tjgg", b"FUGG", b"PK\3\4", b"\0\0\0\0"]) + files[name][4:]
    return "magic"


def _size(rng: Random, files: Files, name: str) -> str:
    content = files[name]
    size = rng.choice([rng.randrange(len(content)), rng.randrange(4000), len(content) - 1])
    grown = content + rng.randbytes(rng.randint(1, 100))
    files[name] = rng.choice([content[:size], content[:size], grown])
    return f"{len(files[name])} bytes of {len(content)}"


def _data(rng: Random, files: Files, name: str) -> str:
    """A tensor's bytes: any, and what floats make infinite or no number."""
    found = parse(files[name])
    at = rng.randrange(len(found.tensors))
    tensor, dims, kind, content = found.tensors[at]
    changed = bytearray(content)
    for _ in range(rng.randint(1, 40)):
        place = rng.randrange(max(len(changed) - 4, 1))
        part = rng.choice([rng.randbytes(1), b"\xff", b"\x00\x7c", b"\xff\x7f", b"\x00\x80\x7f"])
        changed[place : place + len(part)] = part
    found.tensors[at] = (tensor, dims, kind, bytes(changed[: len(content)]))
    files[name] = found.write()
    return f"values of {tensor!r}"


def _value(rng: Random) -> Raw:
    """A value of the metadata such as no writer writes, or another than it was."""
    deep = array(U8, [1])
    for _ in range(rng.randint(1, 12)):
        deep = array(ARRAY, [deep] * rng.randint(1, 2))
    return rng.choice(
        [
            value(U32, rng.choice(_NUMBERS) % (1 << 32)),
            value(U64, rng.choice(_NUMBERS)),
            value(F32, rng.choice([0.0, -1.0, 1e-45, 3e38, float("inf"), float("nan")])),
            value(F64, rng.choice([1e308, -0.0, float("nan"), 0.1])),
            Raw(BOOL, bytes([rng.choice([0, 1, 1, 2, 255])])),
            value(STRING, rng.choice(["", "x" * 5000, "llama", "\x1b[2J\n", "none", "../x", "0"])),
            Raw(STRING, string(rng.choice([b"\xff\xfe", b"\xed\xa0\x80", b"a\0b"]))),
            array(U32, [rng.choice(_NUMBERS) % (1 << 32) for _ in range(rng.randint(0, 5))]),
            array(STRING, ["a"] * rng.randint(0, 200)),
            array(F32, [1.0, float("nan")]),
            array(U8, [], rng.choice(_NUMBERS)),
            Raw(rng.choice([13, 14, 255, 1 << 31]), b""),
            deep,
        ]
    )


def _metadata(rng: Random, files: Files, name: str) -> str:
    found = parse(files[name])
    at = rng.randrange(len(found.pairs))
    key, kind, content = found.pairs[at]
    how = rng.choice(["value", "value", "value", "number", "drop", "twice", "name", "type", "move"])
    if how == "value":
        other = _value(rng)
        found.pairs[at] = (key, other.type, other.content)
    elif how == "number" and kind in _SIZES and kind not in (BOOL, F32, F64):
        size = _SIZES[kind]
        number = int.from_bytes(content, "little") + rng.choice([1, -1, 7, -2, 64])
        found.pairs[at] = (key, kind, (number % (1 << 8 * size)).to_bytes(size, "little"))
    elif how == "drop":
        del found.pairs[at]
    elif how == "twice":
        found.pairs.append(found.pairs[at])
    elif how == "name":
        names = [b"", b"general.alignment", b"llama.unknown", b"\xff", key + b"x", key.upper()]
        found.pairs[at] = (rng.choice(names), kind, content)
    elif how == "type":
        found.pairs[at] = (key, rng.randrange(15), content)
    else:
        rng.shuffle(found.pairs)
    files[name] = found.write()
    return f"{how} of {key!r}"


def _architecture(rng: Random, files: Files, name: str) -> str:
    """Another architecture's name, below which the same keys are said."""
    found = parse(files[name])
    (own,) = (c[8:] for k, _, c in found.pairs if k == b"general.architecture")
    other = rng.choice([b"llama", b"qwen2", b"qwen3", b"gemma2", b"phi3", b"gpt2", b"falcon", b"x"])
    renamed = []
    for key, kind, content in found.pairs:
        content = string(other) if key == b"general.architecture" else content
        renamed.append((key.replace(own + b".", other + b".", 1), kind, content))
    found.pairs = renamed
    files[name] = found.write()
    return f"{own!r} as {other!r}"


def _tensor(rng: Random, files: Files, name: str) -> str:
    found = parse(files[name])
    at = rng.randrange(len(found.tensors))
    tensor, dims, kind, content = found.tensors[at]
    how = rng.choice(["type", "dims", "dims", "name", "drop", "twice", "move", "rank", "swap"])
    if how == "type":
        kind = rng.choice(_IDS)
    elif how == "dims" and dims:
        place = rng.randrange(len(dims))
        dims = [*dims]
        dims[place] = rng.choice([dims[place] + 32, dims[place] // 2, dims[place] + 1, *_NUMBERS])
    elif how == "name":
        others = [other for other, *_ in found.tensors]
        names = [b"", b"blk.1." + tensor, tensor + b".bias", b"rope_freqs.weight", b"\xff"]
        tensor = rng.choice([*names, rng.choice(others), tensor.replace(b"blk.0", b"blk.9")])
    elif how == "rank":
        dims = rng.choice([[], [*dims, 1], [1, *dims], dims[::-1], [*dims, 1, 1, 1], dims[:1]])
    found.tensors[at] = (tensor, dims, kind, content)
    if how == "drop":
        del found.tensors[at]
    elif how == "twice":
        found.tensors.append(found.tensors[at])
    elif how == "move":
        rng.shuffle(found.tensors)
    elif how == "swap":
        # Two names change places: one tensor's values are the other's.
        other = rng.randrange(len(found.tensors))
        mine, theirs = found.tensors[at], found.tensors[other]
        found.tensors[at], found.tensors[other] = ((theirs[0], *mine[1:]), (mine[0], *theirs[1:]))
    files[name] = found.write()
    return f"{how} of {tensor!r}: {kind} {dims}"


def _offset(rng: Random, files: Files, name: str) -> str:
    """A tensor's place, where nothing else is written anew."""
    content, found = bytearray(files[name]), parse(files[name])
    tensor, dims, kind, _ = rng.choice(found.tensors)
    entry = string(tensor) + struct.pack(f"<I{len(dims)}QI", len(dims), *dims, kind)
    at = content.index(entry) + len(entry)
    (now,) = struct.unpack_from("<Q", content, at)
    number = rng.choice([now + 32, now + 1, max(now - 32, 0), 0, len(content), *_NUMBERS])
    struct.pack_into("<Q", content, at, number)
    files[name] = bytes(content)
    return f"offset {number} of {tensor!r}"


def _alignment(rng: Random, files: Files, name: str) -> str:
    found = parse(files[name])
    number = rng.choice([0, 1, 2, 4, 16, 31, 64, 4096, 1 << 20, 1 << 31])
    if rng.random() < 0.7 and number:
        found.alignment = min(number, 4096)
    found.pairs = [pair for pair in found.pairs if pair[0] != b"general.alignment"]
    found.pairs.append((b"general.alignment", U32, value(U32, number).content))
    files[name] = found.write()
    return f"alignment {number}"


def _file(rng: Random, files: Files, name: str) -> str:
    """Another name, a copy, none of it."""
    how = rng.choice(["name", "copy", "drop", "swap"])
    names = ["x-00001-of-00002.gguf", "x-00002-of-00003.gguf", "y.GGUF", "mmproj.gguf", "m.bin"]
    if how == "swap" and len(files) > 1:
        other = rng.choice(sorted(files))
        files[name], files[other] = files[other], files[name]
    elif how == "drop" and len(files) > 1:
        del files[name]
    elif how == "copy":
        files[rng.choice(names)] = files[name]
    else:
        files[rng.choice(names)] = files.pop(name)
    return how


_WEIGHED: list[tuple[Callable[..., str], int]] = [
    *((_header_bytes, 3), (_number, 3), (_counts, 1), (_version, 1), (_magic, 1), (_size, 2)),
    *((_data, 5), (_metadata, 8), (_architecture, 2), (_tensor, 8), (_offset, 2)),
    *((_alignment, 2), (_file, 2)),
]
_MUTATIONS = [mutation for mutation, _ in _WEIGHED]
_WEIGHTS = [weight for _, weight in _WEIGHED]
