"""GGUF files as checkpoints: tensors under the library's names, and a config made of the metadata.

A tensor in blocks is called `<module>.<TYPE>`, uint8 with a row's bytes last; the others keep the
parameter's own name.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from scoremode.checkpoint.config import check_config
from scoremode.checkpoint.files import Checkpoint, stamp
from scoremode.checkpoint.gguf.architectures import Described, describe
from scoremode.checkpoint.gguf.files import GgufFiles
from scoremode.checkpoint.gguf.header import GgufHeader, GgufTensor
from scoremode.checkpoint.gguf.split import parts_of, read_split
from scoremode.checkpoint.gguf.types import TYPES
from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError, ScoremodeError, UnsupportedFormat

__all__ = ["gguf_config", "gguf_metadata", "open_gguf"]

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
