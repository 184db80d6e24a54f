"""GGUF files as checkpoints: a config made of the metadata, and tensors under the library's names.

Nothing that may move a number is left to a default of the library's: it comes from the file, or from
what llama.cpp does where the file says nothing, or the file is refused. A tensor in blocks is called
`<module>.<TYPE>`, uint8 with a row's bytes last; the others keep the parameter's own name. Tensors are
views of the memory-mapped files.
"""

import mmap
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scoremode.checkpoint.config import check_config
from scoremode.checkpoint.files import Checkpoint, stamp
from scoremode.checkpoint.gguf.deepseek import DEEPSEEK
from scoremode.checkpoint.gguf.dense import DENSE, GEMMA
from scoremode.checkpoint.gguf.facts import (
    FACTOR_TENSORS,
    Facts,
    flag,
    integer,
    rope_parameters,
    shown,
)
from scoremode.checkpoint.gguf.header import TYPES, GgufHeader, GgufTensor, parts_of, read_split
from scoremode.checkpoint.gguf.mixtures import MIXTURES, SHARED_EXPERTS
from scoremode.checkpoint.gguf.plain import PLAIN
from scoremode.checkpoint.gguf.table import Architecture, Layout
from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError, ScoremodeError, UnsupportedFormat, UnsupportedModel
from scoremode.lib.json import canonical

if TYPE_CHECKING:
    import torch


# By what files have as `general.architecture`.
ARCHITECTURES: dict[str, Architecture] = {**DENSE, **GEMMA, **PLAIN}
# And of files that have an `expert_count`.
OF_EXPERTS: dict[str, Architecture] = {**MIXTURES, **DEEPSEEK, **SHARED_EXPERTS}
# Types of dense tensors, and what configs call them.
_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_TOKENS = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}
# Old converters' notes, and what only other ways to run a model use.
_IGNORED = ("tensor_data_layout", "pooling_type")
# Of which llama.cpp looks up rows as they are.
_TABLE = "token_embd"
# What NVFP4's linears have as well; the second one llama.cpp reads, and uses nowhere.
_BESIDE_BLOCKS = ("scale", _UNUSED := "input_scale")
_BLOCK = re.compile(r"blk\.(\d+)\.")


class Described(NamedTuple):
    """A model as transformers would have it.

    - `config`: a config.json.
    - `names`: ggml's name of each tensor → the library's, which ends in `weight`, `bias` or the name of
      a parameter. Tensors that the config has taken up are not in it.
    - `layouts`: of those, by the library's name, that lie otherwise.
    """

    config: dict[str, Any]
    names: dict[str, str]
    layouts: dict[str, Layout]


def describe(header: GgufHeader) -> Described:
    """Describes the model of a file, or of all files of a split together.

    Raises UnsupportedModel for an architecture, a key or a setting that is not known here,
    CheckpointError for what is missing or contradicts itself. Both name it.
    """
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CheckpointError(f"general.architecture is {shown(name)}, no name")
    facts = Facts(header, name, {tensor.name: tensor for tensor in header.tensors})
    # Mixtral's is Llama's, too.
    count = facts.get(integer("expert_count", 0))
    table = (OF_EXPERTS if count else ARCHITECTURES).get(name)
    if table is None:
        read = ", ".join(sorted(ARCHITECTURES | OF_EXPERTS))
        own = f" with {count} experts" if count else ""
        raise UnsupportedModel(f"GGUF architecture {shown(name)}{own} is not supported: {read} are")
    _fill(facts, table)
    names = _names(facts, table)
    layouts = {}
    for tensor, library in names.items():
        # One of a weight alone says so.
        make = table.layouts.get(_BLOCK.sub("blk.*.", tensor)) or table.layouts.get(
            _pattern(tensor)
        )
        if make is not None and not library.endswith(".scale"):
            layouts[library] = make(facts.config)
    return Described(facts.config, names, layouts)


def _fill(facts: Facts, table: Architecture) -> None:
    """Fills `facts.config`; refuses keys of the architecture that are not known."""
    config = facts.config
    config |= {"model_type": table.model_type, "architectures": [table.model]}
    config |= {field: facts.get(key) for field, key in table.fields.items()}
    config |= _heads(facts, table) if table.heads is None else table.heads(facts)
    config["vocab_size"] = _vocabulary(facts)
    if (positions := facts.get(integer("context_length", 1))) < 1:
        raise CheckpointError(f"{facts.architecture}.context_length is {positions}")
    config["tie_word_embeddings"] = "output.weight" not in facts.tensors
    for field, key in _TOKENS.items():
        token = facts.header.metadata.get(key)
        within = type(token) is int and token < config["vocab_size"]
        config[field] = token if within else None
    config["dtype"] = _dtype(facts)
    config |= table.constants
    config |= {field: facts.has(tensor) for field, tensor in table.biases.items()}
    config |= table.settings(facts)
    facts.expect(flag("attention.causal"), True)
    if not facts.get(integer("expert_count", 0)):
        facts.expect(integer("expert_used_count"), 0)
    facts.ignore((*_IGNORED, *table.ignored))
    if unknown := facts.unasked():
        values = facts.header.metadata
        listed = ", ".join(f"{key} ({shown(values[key])})" for key in unknown[:20])
        raise UnsupportedModel(
            f"metadata that is not known, and might move every number: {listed}; what moves none, "
            "gguf-new-metadata --remove-metadata KEY takes out"
        )


def _heads(facts: Facts, table: Architecture) -> dict[str, Any]:
    """The fields of heads, and of how they rotate."""
    heads = facts.get(integer("attention.head_count"))
    keys = facts.get(integer("attention.head_count_kv", heads))
    if heads < 1 or keys < 1 or heads % keys:
        raise CheckpointError(
            f"{facts.architecture}.attention.head_count is {heads}, and head_count_kv {keys}"
        )
    found: dict[str, Any] = {table.keys: keys}
    head_dim = _head_dim(facts, heads)
    if table.head_dim:
        found["head_dim"] = head_dim
    elif head_dim * heads != facts.get(integer("embedding_length")):
        raise UnsupportedModel(
            f"{facts.architecture}.attention.key_length is {head_dim}, and {heads} heads of that are "
            "not the hidden size: not supported"
        )
    if table.rope:
        found["rope_parameters"] = rope_parameters(facts, head_dim, partial=table.partial)
    return found


def _head_dim(facts: Facts, heads: int) -> int:
    hidden = facts.get(integer("embedding_length"))
    head_dim = facts.get(integer("attention.key_length", hidden // heads))
    values = facts.get(integer("attention.value_length", head_dim))
    if head_dim < 1:
        raise CheckpointError(f"{facts.architecture}.attention.key_length is {head_dim}")
    if values != head_dim:
        raise UnsupportedModel(
            f"heads of {head_dim} for keys and {values} for values: not supported"
        )
    return head_dim


def _vocabulary(facts: Facts) -> int:
    """The number of rows that the embedding has."""
    table = facts.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise CheckpointError("there is no tensor token_embd.weight, of two dimensions")
    rows = table.shape[0]
    if (said := facts.get(integer("vocab_size", rows))) != rows:
        raise CheckpointError(
            f"{facts.architecture}.vocab_size is {said}, and {table.name} has {rows} rows"
        )
    tokens = facts.header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) != rows:
        # llama.cpp doesn't load it either.
        raise CheckpointError(
            f"tokenizer.ggml.tokens are {len(tokens):,}, and {table.name} has {rows:,} rows"
        )
    return rows


def _dtype(facts: Facts) -> str:
    """The dtype of `--dtype auto`: the dense matrices' type, bfloat16 where any is packed."""
    matrices: list[GgufTensor] = [t for t in facts.tensors.values() if len(t.shape) > 1]
    types = Counter(tensor.type for tensor in matrices)
    if not types or set(types) - set(_FLOATS):
        return "bfloat16"
    return _FLOATS[types.most_common(1)[0][0]]


def _pattern(tensor: str) -> str:
    """`blk.*.attn_q` of `blk.7.attn_q.weight`."""
    return _BLOCK.sub("blk.*.", tensor).rpartition(".")[0]


def _names(facts: Facts, table: Architecture) -> dict[str, str]:
    known = table.names(facts) if callable(table.names) else table.names
    found: dict[str, str] = {}
    for tensor in facts.tensors.values():
        if tensor.name in FACTOR_TENSORS:
            continue
        library = _library(tensor.name, known)
        home, _, suffix = tensor.name.rpartition(".")
        beside = facts.tensors.get(f"{home}.weight")
        if suffix in _BESIDE_BLOCKS and (home == _TABLE or not _is_packed(beside)):
            library = None
        if library is None:
            raise CheckpointError(
                f"{tensor.file}: tensor {tensor.name} is none that architecture "
                f"{facts.architecture} has here: not supported"
            )
        if suffix != _UNUSED:
            found[tensor.name] = library
    return found


def _is_packed(tensor: GgufTensor | None) -> bool:
    return tensor is not None and TYPES[tensor.type].is_packed


def _library(tensor: str, names: Mapping[str, str]) -> str | None:
    """The library's name, None for a tensor that has none: by the whole of its name, or a module's."""
    block = _BLOCK.match(tensor)
    number = block[1] if block else ""
    pattern = _pattern(tensor)
    suffix = tensor.rpartition(".")[2]
    if (whole := names.get(f"{pattern}.{suffix}")) is not None:
        return whole.replace("*", number)
    module = names.get(pattern)
    if module is None or suffix not in ("weight", "bias", *_BESIDE_BLOCKS):
        return None
    return f"{module.replace('*', number)}.{suffix}"


# Safetensors' spelling → torch's.
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
}  # fmt: skip


class GgufFiles:
    """The files of one model, by their `headers`; `beside`: those of a split without tensors of it."""

    def __init__(self, headers: Sequence[GgufHeader], beside: Sequence[Path]):
        self._headers, self.beside = headers, beside
        self._mapped: dict[Path, mmap.mmap] = {}

    @property
    def digest(self) -> bytes:
        """sha256 of all metadata, whatever its order."""
        digest = sha256()
        for header in self._headers:
            for key in sorted(header.metadata):
                digest.update(canonical([key, _plain(header.metadata[key])]).encode())
        return digest.digest()

    def config_file(self, path: Path) -> Path:
        return path

    def read(self, info: TensorInfo) -> "torch.Tensor":
        import torch

        dtype: torch.dtype = getattr(torch, _DTYPES[info.dtype])
        content = self._content(info.file)
        if len(content) < info.begin + info.bytes:
            raise CheckpointError(f"{info.file}: tensor {info.name}: the file has become shorter")
        raw = torch.frombuffer(content, dtype=torch.uint8, count=info.bytes, offset=info.begin)
        if raw.data_ptr() % dtype.itemsize:
            # Of a file whose alignment is less than a value's.
            raw = raw.clone()
        return raw.view(dtype).view(info.shape)

    def metadata(self, files: Iterable[Path]) -> dict[str, str]:
        """The metadata that is one value each."""
        return {
            key: str(value)
            for header in self._headers
            for key, value in header.metadata.items()
            if isinstance(value, str | int | float)
        }

    def _content(self, file: Path) -> mmap.mmap:
        if file not in self._mapped:
            # Torch warns of memory that nothing may write to; what is written to a private mapping
            # stays in this process, and without a reserve it takes no memory until then.
            flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
            try:
                with file.open("rb") as opened:
                    self._mapped[file] = mmap.mmap(
                        opened.fileno(), 0, flags, mmap.PROT_READ | mmap.PROT_WRITE
                    )
            except (OSError, ValueError) as error:
                words = getattr(error, "strerror", None) or error
                raise CheckpointError(f"{file}: {words}") from None
        return self._mapped[file]


def _plain(value: Any) -> Any:
    """A value of the metadata as JSON has it; of an array of numbers its type and a hash."""
    if isinstance(value, np.ndarray):
        return {value.dtype.str: sha256(value.tobytes()).hexdigest(), "count": value.size}
    return [_plain(item) for item in value] if isinstance(value, list) else value


# Each file of a model, and what changes when it is written to.
_Stamps = tuple[tuple[Path, tuple[int, ...]], ...]


def open_gguf(path: Path, source: str) -> Checkpoint:
    """The checkpoint in a GGUF file, or in all files of the split that it is the first of.

    Raises CheckpointError, UnsupportedModel.
    """
    stamps = _stamps(path)
    headers, found = _read(path, stamps), _described(path, stamps)
    tensors: dict[str, TensorInfo] = {}
    origin: dict[str, str] = {}
    for _, header in headers:
        for tensor in header.tensors:
            # What has no name is in the config, such as a rotation's factors.
            if (name := found.names.get(tensor.name)) is None:
                continue
            info = _info(tensor, name)
            if name in origin:
                raise CheckpointError(
                    f"{path}: tensors {origin[name]} and {tensor.name} are both {name}"
                )
            origin[name], tensors[info.name] = tensor.name, info
    shards = {info.file for info in tensors.values()}
    beside = [file for file, _ in headers if file not in shards]
    return Checkpoint(
        path,
        source,
        _config(found, tensors),
        tensors,
        dict(stamps),
        layouts=found.layouts,
        files=GgufFiles([header for _, header in headers], beside),
    )


def gguf_config(path: Path) -> Mapping[str, Any]:
    """The config that `open_gguf` finds, checked, without tensors' formats.

    Raises CheckpointError, UnsupportedModel.
    """
    return _described(path, _stamps(path)).config


def gguf_metadata(path: Path) -> Mapping[str, Any]:
    """The metadata of a GGUF file, of a split its first's. Raises CheckpointError."""
    return _read(path, _stamps(path))[0][1].metadata


def _stamps(path: Path) -> _Stamps:
    parts = [path.with_name(name) for name in parts_of(path.name)]
    return tuple((file, stamp(file)) for file in parts if file == path or file.exists())


# A run asks for tensors, config and tokenizer of a file, and a base's; the stamps tell a changed one.
@lru_cache(maxsize=2)
def _read(path: Path, stamps: _Stamps) -> list[tuple[Path, GgufHeader]]:
    return read_split(path)


@lru_cache(maxsize=2)
def _described(path: Path, stamps: _Stamps) -> Described:
    headers = _read(path, stamps)
    kind = headers[0][1].metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedFormat(f"{path}: general.type is {str(kind)[:80]}: it holds no model")
    tensors = [tensor for _, header in headers for tensor in header.tensors]
    try:
        found = describe(GgufHeader(headers[0][1].metadata, tensors))
    except ScoremodeError as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise type(error)(f"{path}: {error}") from None
    check_config(path, found.config)
    return found


def _config(found: Described, tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    if any(name.rpartition(".")[2] in TYPES for name in tensors):
        return found.config | {"quantization_config": {"quant_method": "gguf"}}
    return dict(found.config)


def _info(tensor: GgufTensor, name: str) -> TensorInfo:
    """A tensor's header under the library's name."""
    kind = TYPES[tensor.type]
    if not kind.is_packed:
        return TensorInfo(name, tensor.file, kind.name, tensor.shape, tensor.bytes, tensor.begin)
    module, _, suffix = name.rpartition(".")
    if suffix != "weight" or len(tensor.shape) < 2:
        raise UnsupportedFormat(
            f"{tensor.file}: tensor {tensor.name} ({name}) is {kind.name} {list(tensor.shape)}: only "
            "matrices are decoded from blocks"
        )
    shape = (*tensor.shape[:-1], tensor.shape[-1] // kind.values * kind.bytes)
    return TensorInfo(f"{module}.{kind.name}", tensor.file, "U8", shape, tensor.bytes, tensor.begin)
