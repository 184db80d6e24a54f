"""Safetensors files: their headers, checked against the file, and reads of their tensors.

A header is JSON that comes with the weights, and each number in it is believed only if it is an integer
and agrees with the others: every tensor lies in the file, whole and apart from the rest.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from scoremode.checkpoint.config import is_deep, parse_json
from scoremode.errors import CheckpointError, words_of
from scoremode.lib.files import check_regular

if TYPE_CHECKING:
    import torch

# Bits of one element: https://huggingface.co/docs/safetensors and its Rust `Dtype`.
DTYPE_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32,
    "F16": 16, "BF16": 16, "I16": 16, "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I8": 8, "U8": 8, "BOOL": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
FLOATS = {"F64", "F32", "F16", "BF16"}
MOST_HEADER = 100_000_000  # the format's own limit
# Tensors of one file: Kimi-K2 in 4 bits has 210,000 in 60 files.
_MOST_TENSORS = 500_000
_MAX_RANK = 64  # torch's
_MAX = 1 << 63


class TensorInfo(NamedTuple):
    """A tensor as its file's header describes it; `dtype` in safetensors' spelling, `begin` its
    first byte in the file."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    begin: int = 0

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def read_header(file: Path) -> list[TensorInfo]:
    """Every tensor of a safetensors file, in the order of its bytes. Raises CheckpointError."""
    try:
        check_regular(file)
        size = file.stat().st_size
        with file.open("rb") as f:
            prefix = f.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
            if length > min(size - 8, MOST_HEADER):
                raise CheckpointError(f"{file}: truncated or not safetensors ({size} bytes)")
            content = f.read(length)
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from None
    start = 8 + length
    infos, end = tensors_in(file, content, start), start
    for info in infos:
        if info.begin != end:
            raise CheckpointError(
                f"{file}: tensor {info.name} begins at byte {info.begin - start} of the data, the "
                f"one before it ends at {end - start}"
            )
        end += info.bytes
    if end != size:
        raise CheckpointError(
            f"{file}: {size} bytes, and its header describes {end}: truncated or damaged"
        )
    return infos


def tensors_in(file: Path, content: bytes, start: int) -> list[TensorInfo]:
    """Every tensor that a safetensors file's header describes, `content` its JSON and `start` the
    first byte behind it, in the order of its bytes. Raises CheckpointError."""
    if (count := content.count(b'"data_offsets"')) > _MOST_TENSORS:
        raise CheckpointError(f"{file}: {count:,} tensors, more than {_MOST_TENSORS:,}")
    try:
        header = parse_json(content, has_constants=False)
    except ValueError as error:
        raise CheckpointError(f"{file}: its header is not safetensors' JSON: {error}") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: its header is not safetensors' JSON")
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())
    ):
        raise CheckpointError(f"{file}: its __metadata__ is not names and strings")
    infos = [_info(file, start, name, entry) for name, entry in header.items()]
    infos.sort(key=attrgetter("begin", "bytes"))
    return infos


def _info(file: Path, start: int, name: str, entry: Any) -> TensorInfo:
    try:
        dtype, shape, (begin, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        dtype, shape, begin, stop = "", None, 0, 0
    if (
        type(shape) is not list
        or (len(entry) > 3 and is_deep(entry))
        or len(shape) > _MAX_RANK
        # True is an int to Python.
        or not all(type(n) is int and 0 <= n < _MAX for n in (*shape, begin, stop))
    ):
        raise CheckpointError(f"{file}: tensor {name}: malformed header entry")
    bits = DTYPE_BITS.get(dtype) if type(dtype) is str else None
    if bits is None:
        raise CheckpointError(f"{file}: tensor {name}: unknown dtype {str(dtype)[:80]}")
    if math.prod(shape) * bits % 8:
        raise CheckpointError(f"{file}: tensor {name}: {shape} of {dtype} are no whole bytes")
    needed = math.prod(shape) * bits // 8
    if stop - begin != needed:
        raise CheckpointError(
            f"{file}: tensor {name}: {dtype} {shape} takes {needed} bytes, "
            f"its header gives {stop - begin}"
        )
    return TensorInfo(name, file, dtype, tuple(shape), needed, start + begin)


class WeightFiles(Protocol):
    """A checkpoint's files of one format, as they are read and told from others."""

    @property
    def beside(self) -> Sequence[Path]:
        """Files that make the model what it is, beside those with its tensors."""
        ...

    @property
    def digest(self) -> bytes:
        """The part of their headers that counts beside tensors, in the same bytes for the same
        values."""
        ...

    def config_file(self, path: Path) -> Path:
        """The file that has the config of the checkpoint at `path`."""
        ...

    def read(self, info: TensorInfo) -> "torch.Tensor":
        """A CPU tensor that views the memory-mapped file. Raises CheckpointError."""
        ...

    def metadata(self, files: Iterable[Path]) -> dict[str, str]:
        """Their headers' entries in words, beside tensors. Raises CheckpointError."""
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

    def metadata(self, files: Iterable[Path]) -> dict[str, str]:
        import safetensors

        found: dict[str, str] = {}
        for file in files:
            try:
                with safetensors.safe_open(str(file), framework="pt", device="cpu") as opened:
                    found |= opened.metadata() or {}
            except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
                raise CheckpointError(f"{file}: {words_of(error, named=False)}") from None
        return found
