"""GGUF files as checkpoints: tensors under the library's names, and a config made of the metadata.

A tensor in blocks is called `<module>.<TYPE>`, uint8 with a row's bytes last; the others keep the
parameter's own name.

Reads of GGUF files: views of memory-mapped tensors, and the digest of metadata.
"""

import mmap
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scoremode.checkpoint.config import check_config
from scoremode.checkpoint.files import Checkpoint, stamp
from scoremode.checkpoint.gguf.architectures import Described, describe
from scoremode.checkpoint.gguf.header import TYPES, GgufHeader, GgufTensor, parts_of, read_split
from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError, ScoremodeError, UnsupportedFormat
from scoremode.lib.json import canonical

if TYPE_CHECKING:
    import torch

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
