"""Reads of safetensors files, and what in a folder beside them makes the model."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from scoremode.checkpoint.header import TensorInfo
from scoremode.errors import CheckpointError, words_of

if TYPE_CHECKING:
    import torch

__all__ = ["SafetensorsFiles", "WeightFiles"]


class WeightFiles(Protocol):
    """A checkpoint's files of one format, as they are read and told from others."""

    @property
    def beside(self) -> Sequence[Path]:
        """Files that make the model what it is, beside those with its tensors."""
        ...

    @property
    def digest(self) -> bytes:
        """What of their headers counts beside tensors, in the same bytes for the same values."""
        ...

    def config_file(self, path: Path) -> Path:
        """The file that has the config of the checkpoint at `path`."""
        ...

    def read(self, info: TensorInfo) -> "torch.Tensor":
        """A CPU tensor that views the memory-mapped file. Raises CheckpointError."""
        ...

    def metadata(self, shards: Iterable[Path]) -> dict[str, str]:
        """What they say beside tensors, in words. Raises CheckpointError."""
        ...


class SafetensorsFiles:
    """A folder's files; `beside`: its configs and the model's own code."""

    def __init__(self, beside: Sequence[Path] = ()):
        self.beside = beside
        self.digest = b""
        self._handles: dict[Path, Any] = {}

    def config_file(self, path: Path) -> Path:
        return path / "config.json"

    def read(self, info: TensorInfo) -> "torch.Tensor":
        import safetensors

        try:
            if info.file not in self._handles:
                opened = safetensors.safe_open(str(info.file), framework="pt", device="cpu")
                self._handles[info.file] = opened
            return self._handles[info.file].get_tensor(info.name)
        except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"{info.file}: tensor {info.name}: {words_of(error, named=False)}"
            ) from None

    def metadata(self, shards: Iterable[Path]) -> dict[str, str]:
        import safetensors

        found: dict[str, str] = {}
        for file in shards:
            try:
                with safetensors.safe_open(str(file), framework="pt", device="cpu") as opened:
                    found |= opened.metadata() or {}
            except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
                raise CheckpointError(f"{file}: {words_of(error, named=False)}") from None
        return found
