"""Reads of GGUF files: views of memory-mapped tensors, and the digest of metadata."""

import mmap
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scoremode.checkpoint.gguf.header import GgufHeader
from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError
from scoremode.lib.json import canonical

if TYPE_CHECKING:
    import torch

__all__ = ["GgufFiles"]

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

    def metadata(self, shards: Iterable[Path]) -> dict[str, str]:
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
