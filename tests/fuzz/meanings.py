"""Mutations of what tensors mean, in files that stay well-formed: values, shapes and dtypes with their
data, orders of inputs, records, and what is another library's."""

import json
import math
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from fuzz.files import Files, join, split

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# Suffixes of tensors that are small beside the weight and decide what it is.
_SMALL = ("scale", "zero", "g_idx", "_2", "biases", "scales", "SCB", "absmax", "_map", "_inv",
          "point")  # fmt: skip
Bases = dict[str, Files]


class _Tensors:
    """All tensors of one weight file, which `write` puts back."""

    def __init__(self, rng: Random, files: Files):
        self.file = rng.choice([name for name in files if name.endswith(".safetensors")])
        self._files = files
        header, data = split(files[self.file])
        self.metadata: dict[str, str] = header.pop("__metadata__", {})
        self.found = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end <= len(data):
                raise ValueError(f"{name} at {begin} to {end}")
            content = torch.frombuffer(bytearray(data[begin:end] or b"\0"), dtype=torch.uint8)
            values = content[: end - begin].view(DTYPES[entry["dtype"]])
            self.found[name] = values.reshape(entry["shape"])

    def any(self, rng: Random) -> str:
        """A name, mostly one of a quantized module's small tensors."""
        names = sorted(self.found)
        small = [name for name in names if name.endswith(_SMALL)]
        deep = [name for name in names if "proj" in name]
        return rng.choice(rng.choices([small or names, deep or names, names], [5, 4, 1])[0])

    def write(self) -> None:
        header: dict[str, Any] = {"__metadata__": self.metadata} if self.metadata else {}
        data = b""
        for name, tensor in self.found.items():
            content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            where = [len(data), len(data) + len(content)]
            shape = list(tensor.shape)
            header[name] = {"dtype": _NAMES[tensor.dtype], "shape": shape, "data_offsets": where}
            data += content
        self._files[self.file] = join(json.dumps(header), data)


def values(rng: Random, files: Files, bases: Bases) -> str:
    """Numbers that are none, huge, tiny, negative; zero points of one code."""
    tensors = _Tensors(rng, files)
    name = tensors.any(rng)
    tensor = tensors.found[name]
    if tensor.dtype.is_floating_point and tensor.dtype != torch.float8_e8m0fnu:
        wide = tensor.double()
        most = torch.finfo(tensor.dtype)
        numbers = [math.nan, math.inf, -math.inf, 0.0, -0.0, most.tiny, most.max, -most.max, 1.0]
        kind = rng.choice(["all", "one", "sign", "scaled", "shuffled"])
        if kind == "all":
            wide = torch.full_like(wide, rng.choice(numbers))
        elif kind == "one":
            wide.view(-1)[rng.randrange(wide.numel())] = rng.choice(numbers)
        elif kind == "sign":
            wide = -wide
        elif kind == "scaled":
            wide = wide * rng.choice([2.0**-20, 2.0**20, 1e30, 1e-30, 3.0])
        else:
            wide = wide.view(-1)[_shuffled(rng, wide.numel())].view(tensor.shape)
        tensors.found[name] = wide.to(tensor.dtype)
    else:
        raw = tensor.contiguous().view(-1).view(torch.uint8)
        kind = rng.choice(["code", "byte", "one", "shuffled"])
        if kind == "code":
            bits = rng.choice([2, 3, 4, 8])
            code = rng.choice([0, 1, (1 << bits) - 1, (1 << bits) - 2, 1 << (bits - 1),
                               (1 << (bits - 1)) - 1])  # fmt: skip
            kind = f"all {code} in {bits} bits"
            stream = sum(code << (bits * n) for n in range(32)).to_bytes(4 * bits, "little")
            repeated = (stream * (len(raw) // len(stream) + 1))[: len(raw)]
            raw = torch.frombuffer(bytearray(repeated), dtype=torch.uint8)
        elif kind == "byte":
            raw = torch.full_like(raw, rng.choice([0, 1, 0x7F, 0x80, 0xFF, 0x77, 0x88]))
        elif kind == "one":
            raw = raw.clone()
            raw[rng.randrange(len(raw))] = rng.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF])
        else:
            raw = raw[_shuffled(rng, len(raw))]
        tensors.found[name] = raw.view(tensor.dtype).view(tensor.shape)
    tensors.write()
    return f"{name}: values {kind}"


def shape(rng: Random, files: Files, bases: Bases) -> str:
    """A tensor transposed, cut, doubled, or of another rank, with its data."""
    tensors = _Tensors(rng, files)
    name = tensors.any(rng)
    tensor = tensors.found[name]
    raw = tensor.contiguous()
    last = max(tensor.dim() - 1, 0)
    kinds: dict[str, Callable[[], torch.Tensor]] = {
        "transposed": lambda: raw.permute(*range(raw.dim())[::-1]),
        "without the last": lambda: raw.narrow(last, 0, raw.shape[last] - 1),
        "without the first": lambda: raw[1:],
        "half": lambda: raw[: len(raw) // 2],
        "doubled": lambda: torch.cat((raw, raw)),
        "wider": lambda: torch.cat((raw, raw), last),
        "flat": lambda: raw.reshape(-1),
        "one more": lambda: raw.unsqueeze(rng.choice([0, last + 1])),
        "in two": lambda: raw.reshape(2, -1),
        "reshaped": lambda: raw.reshape(raw.shape[::-1]),
        "empty": lambda: raw.reshape(-1)[:0].reshape(0, *raw.shape[1:]),
        "a single one": lambda: raw.reshape(-1)[:1].reshape(()),
        "the first": lambda: raw[:1],
    }
    kind = rng.choice(sorted(kinds))
    # Not every operation takes a float8: all take bytes.
    bytes_ = raw.view(torch.uint8) if raw.dtype.itemsize == 1 else raw
    raw = bytes_
    tensors.found[name] = kinds[kind]().contiguous().view(tensor.dtype)
    tensors.write()
    return f"{name}: {kind}"


def dtype(rng: Random, files: Files, bases: Bases) -> str:
    """The same values in another dtype, or the same bytes in wider or narrower words."""
    tensors = _Tensors(rng, files)
    name = tensors.any(rng)
    tensor = tensors.found[name].contiguous()
    other = rng.choice([*DTYPES, "F16", "BF16", "F32"])
    if rng.random() < 0.3:
        tensors.found[name] = tensor.view(DTYPES[other])
        kind = f"bytes as {other}"
    else:
        wide = tensor.double() if tensor.dtype.is_floating_point else tensor.long()
        tensors.found[name] = wide.to(DTYPES[other])
        kind = f"values as {other}"
    tensors.write()
    return f"{name}: {kind}"


def order(rng: Random, files: Files, bases: Bases) -> str:
    """Groups of inputs: in another order, of other sizes, that there are not."""
    tensors = _Tensors(rng, files)
    names = [name for name in tensors.found if name.endswith("g_idx")]
    if not names:
        homes = [name.rpartition(".")[0] for name in tensors.found if name.endswith("scales")]
        home = rng.choice(homes)
        scales, words = tensors.found[f"{home}.scales"], tensors.found[f"{home}.qweight"]
        columns = rng.choice([96, len(words), len(words) * 8, len(words) * 4])
        size = -(-columns // len(scales))
        tensors.found[f"{home}.g_idx"] = (torch.arange(columns) // size).int()
        names = [f"{home}.g_idx"]
    name = rng.choice(names)
    old = tensors.found[name].long()
    count, groups = len(old), int(old.max()) + 1
    label = torch.randperm(groups, generator=torch.Generator().manual_seed(rng.randrange(99)))
    one = old.clone()
    one[rng.randrange(count)] = rng.choice([-1, groups, 0, groups - 1, 2**31 - 1, -(2**31)])
    kinds = {
        "shuffled": old[_shuffled(rng, count)],
        "reversed": old.flip(0),
        "sorted": old.sort().values,
        "relabelled": label[old.clamp(0, groups - 1)],
        "one group": torch.zeros_like(old),
        "one more": old + 1,
        "one less": old - 1,
        "one other": one,
        "in turns": torch.arange(count) % groups,
        "alone": torch.arange(count),
        "shorter": old[:-1],
        "plain": None,
    }
    kind = rng.choice(sorted(kinds))
    new = kinds[kind]
    if new is None:
        del tensors.found[name]
    else:
        tensors.found[name] = new.to(torch.int64 if rng.random() < 0.05 else torch.int32)
    tensors.write()
    return f"{name}: {kind}"


def record(rng: Random, files: Files, bases: Bases) -> str:
    """A value in JSON or numbers that stand beside a weight and describe it."""
    tensors = _Tensors(rng, files)
    texts = [name for name, text in tensors.metadata.items() if text.startswith("{")]
    states = [name for name in tensors.found if ".quant_state." in name]
    if texts or states:
        name = rng.choice(texts or states)
        raw = tensors.metadata[name] if texts else bytes(tensors.found[name].tolist()).decode()
        value = json.loads(raw)
        kind = _changed(rng, value)
        text = json.dumps(value)
        if texts:
            tensors.metadata[name] = text
        else:
            tensors.found[name] = torch.tensor(list(text.encode()), dtype=torch.uint8)
        tensors.write()
        return f"{name}: {kind}"
    names = [name for name, tensor in tensors.found.items() if 0 < tensor.numel() <= 32]
    name = rng.choice(names)
    tensor = tensors.found[name].clone()
    number = rng.choice([0, 1, 2, 3, 4, 8, 16, 32, 64, 96, 256, 6, 127])
    tensor.view(-1)[rng.randrange(tensor.numel())] = number
    tensors.found[name] = tensor
    tensors.write()
    return f"{name}: {number}"


def _changed(rng: Random, value: dict[str, Any]) -> str:
    """Another value in one of an object's fields, of the same kind mostly."""
    nodes: list[Any] = [value]
    for node in nodes:
        inner = node.values() if isinstance(node, dict) else node
        nodes += [child for child in inner if isinstance(child, (dict, list)) and child]
    node = rng.choice(nodes)
    key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
    old = node[key]
    if rng.random() < 0.1 and isinstance(node, dict):
        del node[key]
        return f"without {key}"
    words = ["bfloat16", "float16", "float32", "int4", "int8", "int3", "Int8Tensor", "Float8Tensor",
             "IntxUnpackedToInt8Tensor", "PerRow", "PerTensor", "PerGroup", "nf4", "fp4", "x",
             "QuantizeTensorToFloat8Kwargs", "QuantizeTensorToInt8Kwargs", "ASYMMETRIC"]  # fmt: skip
    numbers = [0, 1, 2, 3, 6, 16, 24, 32, 48, 64, 96, 128, 192, 256, -1, 2**31, 1.5, True, 2**70]
    by_kind = {str: words, int: numbers, float: [0.0, -1.0, 1e300, 0.25, 1], bool: [True, False]}
    new = rng.choice([*by_kind.get(type(old), [None, 1, "x"]), None])
    node[key] = new
    return f"{key} = {str(new)[:50]}"


def graft(rng: Random, files: Files, bases: Bases) -> str:
    """Tensors of a module of another checkpoint in one of this one's; or the other's config."""
    source = rng.choice(sorted(bases))
    kind = rng.choice(["config", "weights", "beside", "instead", "one"])
    other = bases[source]
    if kind == "config":
        files["config.json"] = other["config.json"]
        return f"config of {source}"
    if kind == "weights":
        for name in [name for name in files if "safetensors" in name]:
            del files[name]
        files |= {name: content for name, content in other.items() if "safetensors" in name}
        return f"weights of {source}"
    tensors, theirs = _Tensors(rng, files), _Tensors(rng, dict(other))
    module = rng.choice([m for m in (_module(name) for name in tensors.found) if m])
    from_module = rng.choice([m for m in (_module(name) for name in theirs.found) if m])
    own = {n: t for n, t in theirs.found.items() if n.startswith(f"{from_module}.")}
    if kind == "instead":
        tensors.found = {n: t for n, t in tensors.found.items() if not n.startswith(f"{module}.")}
    if kind == "one":
        own = dict([rng.choice(sorted(own.items(), key=lambda item: item[0]))])
    for name, tensor in own.items():
        tensors.found[f"{module}{name.removeprefix(from_module)}"] = tensor
    tensors.write()
    return f"{module}: {kind} of {source}"


def _module(name: str) -> str | None:
    """The linear that a tensor belongs to, None for one of none."""
    start, found, _ = name.rpartition("_proj.")
    return f"{start}_proj" if found else None


def _shuffled(rng: Random, count: int) -> list[int]:
    return rng.sample(range(count), count)
