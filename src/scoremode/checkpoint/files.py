"""Checkpoints: a model's files on disk, their headers, and lazy reads.

Safetensors are read, and GGUF. A header says every tensor's dtype, shape and place, so a checkpoint is
checked whole (all files present, sizes right, no name twice) before a byte of weights is touched, and
tensors are then views of the memory-mapped files: what is not used is not read.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from scoremode.checkpoint.bulk_io import Hashing
from scoremode.checkpoint.config import (
    check_config,
    language_config,
    quantizations,
    read_config,
    read_json,
)
from scoremode.checkpoint.model_files import (
    INDEX,
    MODELOPT,
    ModelFiles,
    own_config,
    refuse_adapter,
    resolve_local,
    weight_files,
)
from scoremode.checkpoint.safetensors_files import (
    SafetensorsFiles,
    TensorInfo,
    WeightFiles,
    read_header,
)
from scoremode.errors import CheckpointError, words_of
from scoremode.lib.json import canonical
from scoremode.lib.tasks import not_collecting

if TYPE_CHECKING:
    import torch

    from scoremode.checkpoint.gguf.table import Layout

_BLOCK = 4096
_Content = bytes  # `Checkpoint.bytes` is a number
# Replaces names of the folder that is read by those of the files that were given.
Shown = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model's folder, or its GGUF file: its config, its tensors' headers, and reads of them.

    - `modelopt`: what ModelOpt's own file beside the config says, None without one.
    - `quantized_by`: the name of GPTQ's or AWQ's own file, and the `quantization_config` that it is;
      None where the config has one.
    - `layouts`: parameters, by the names of `tensors` and `weight` for packed ones, that lie otherwise
      than the library has them.
    - `files`: how its files are read.
    """

    path: Path
    source: str
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    opened: Mapping[Path, tuple[int, ...]] = field(default_factory=dict)
    modelopt: Mapping[str, Any] | None = None
    quantized_by: tuple[str, Mapping[str, Any]] | None = None
    layouts: Mapping[str, "Layout"] = field(default_factory=dict)
    files: WeightFiles = field(default_factory=SafetensorsFiles, repr=False)
    # For each file, the block of bytes that was read last and where it began.
    _blocks: dict[Path, tuple[int, _Content]] = field(default_factory=dict, init=False, repr=False)
    _hashings: list[Hashing] = field(default_factory=list, init=False, repr=False)

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        """The config's quantization, at its top or beside the language model's; else that of the file
        `quantized_by`; else ModelOpt's own, as a config of that method."""
        for _, quantization in quantizations(self.config):
            return quantization
        if self.quantized_by is not None:
            return self.quantized_by[1]
        return {**self.modelopt, "quant_method": "modelopt"} if self.modelopt else None

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The language model's part of the config."""
        return language_config(self.config)

    @property
    def config_file(self) -> Path:
        """The file that has the config, of a GGUF file itself."""
        return self.files.config_file(self.path)

    @property
    def is_folder(self) -> bool:
        """Tells whether other libraries can be given `path`: a folder with a config.json."""
        return self.config_file != self.path

    @property
    def place(self) -> str:
        """The absolute path by which it is found again."""
        if self.is_folder:
            return str(self.path.resolve())
        # A hub's cache has a link of the file's name to one that is called by a hash.
        return str(self.path.parent.resolve() / self.path.name)

    @cached_property
    def weight_files(self) -> list[Path]:
        return sorted({t.file for t in self.tensors.values()})

    @cached_property
    def bytes(self) -> int:
        """Bytes of all weight files, headers included."""
        return sum(f.stat().st_size for f in self.weight_files)

    def check_unchanged(self) -> None:
        """Raises CheckpointError if a weight file is not the one whose header was read."""
        for file, before in self.opened.items():
            if stamp(file) != before:
                raise CheckpointError(f"{file}: was changed or replaced while it was in use")

    def read(self, name: str) -> "torch.Tensor":
        """A CPU tensor that views the memory-mapped file. Raises CheckpointError."""
        return self.files.read(self._info(name))

    def metadata(self) -> dict[str, str]:
        """The entries beside tensors in the headers of all weight files. Raises CheckpointError."""
        return self.files.metadata(self.weight_files)

    def read_bytes(self, name: str) -> _Content:
        """A tensor's bytes, for those of a few values: by a read of them alone, and without torch.

        Raises CheckpointError.
        """
        info = self._info(name)
        # Writers put small tensors of one kind side by side: one read has many of them.
        start, block = self._blocks.get(info.file, (0, b""))
        at = info.begin - start
        if not 0 <= at <= len(block) - info.bytes:
            try:
                with info.file.open("rb", buffering=0) as file:
                    file.seek(info.begin)
                    block = file.read(max(info.bytes, _BLOCK))
            except OSError as error:
                raise CheckpointError(f"{info.file}: {error.strerror}") from None
            at, self._blocks[info.file] = 0, (info.begin, block)
        content = block[at : at + info.bytes]
        if len(content) < info.bytes:
            raise CheckpointError(f"{info.file}: tensor {name}: the file has become shorter")
        return content

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the config, another file's too, and of every header: cheap, and enough to tell
        models apart.

        It does not see the weights themselves; `hash_files` does.
        """
        digest = sha256(canonical(self.config).encode())
        if self.modelopt is not None:
            digest.update(canonical(self.modelopt).encode())
        if self.quantized_by is not None:
            digest.update(canonical(self.quantized_by[1]).encode())
        for t in sorted(self.tensors.values(), key=lambda t: t.name):
            digest.update(f"{t.name} {t.file.name} {t.dtype} {t.shape}".encode())
        digest.update(self.files.digest)
        return digest.hexdigest()

    def hash_files(self) -> dict[str, str]:
        """sha256 of configs, weight files and the model's own code, by name. Reads all bytes.

        Raises CheckpointError.
        """
        try:
            found = self.hashing().result()
        except OSError as error:
            raise CheckpointError(f"{error.filename}: {error.strerror}") from None
        folder = self.config_file.parent
        return {f.relative_to(folder).as_posix(): digest for f, digest in found.items()}

    def hashing(self) -> Hashing:
        """Begins to hash the files, if that has not begun; `hash_files` waits for it.

        The bytes are read once: a weight file that changes later is found by `check_unchanged`.
        """
        if not self._hashings:
            self._hashings.append(Hashing([*self.files.beside, *self.weight_files]))
        return self._hashings[0]

    def _info(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError(f"{self.path}: no tensor {name}")
        return info

    def stop_hashing(self) -> None:
        """Ends what `hashing` began, if it is not done."""
        for hashing in self._hashings:
            hashing.stop()
        self._hashings.clear()


@not_collecting()
def open_checkpoint(model: ModelFiles | Path | str, *, code: bool = False) -> Checkpoint:
    """The checkpoint of a model's files, found before; of a path, which is one here, it finds them.

    Downloads the weights of a model of the hub; with `code`, its Python files too. Raises
    CheckpointError.
    """
    files = resolve_local(model)
    files.fetch(code=code)
    if files.is_gguf:
        # Beside it, since it makes a Checkpoint.
        from scoremode.checkpoint.gguf.open import open_gguf

        return open_gguf(files.path, files.source)
    return _open_folder(files.path, files.source)


def config_of(files: ModelFiles) -> Mapping[str, Any]:
    """The config of a model, without its weights where they lie apart.

    Raises CheckpointError, and UnsupportedModel of a GGUF file.
    """
    if files.is_gguf:
        from scoremode.checkpoint.gguf.open import gguf_config

        return gguf_config(files.path)
    refuse_adapter(files.path)
    return read_config(files.path)


def _open_folder(path: Path, source: str) -> Checkpoint:
    refuse_adapter(path)
    config = read_config(path)
    modelopt = read_json(path / MODELOPT) if (path / MODELOPT).exists() else None
    tensors, opened = {}, {}
    files, index = weight_files(path)
    for file in files:
        opened[file] = stamp(file)
        for info in read_header(file):
            if info.name in tensors:
                other = tensors[info.name].file.name
                raise CheckpointError(f"{path}: tensor {info.name} is in {other} and {file.name}")
            tensors[info.name] = info
    for name, file in index.items():
        if name not in tensors or tensors[name].file.name != file:
            raise CheckpointError(f"{path / file}: tensor {name} is missing, named by {INDEX}")
    # A dense checkpoint may have been made where such a file lay.
    packed = any(name.endswith(".qweight") for name in tensors)
    quantized_by = own_config(path) if packed and not quantizations(config) else None
    configs = ["config.json", *([MODELOPT] if modelopt is not None else [])]
    configs += [quantized_by[0]] if quantized_by is not None else []
    beside = [path / name for name in configs] + sorted(path.glob("*.py"))
    return Checkpoint(
        path,
        source,
        config,
        tensors,
        opened,
        modelopt,
        quantized_by,
        files=SafetensorsFiles(beside),
    )


def stamp(file: Path) -> tuple[int, ...]:
    """Returns numbers that change when a file is written to or replaced."""
    try:
        stat = file.stat()
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


@contextmanager
def opened_config(file: str) -> Iterator[tuple[Checkpoint, Shown]]:
    """A checkpoint that has the config in `file`, and no tensors; and a function that makes its
    messages name that file.

    ModelOpt's own file beside a `config.json` belongs to it, as GPTQ's and AWQ's do where it says
    nothing; given alone ModelOpt's is a checkpoint's whose model isn't known. The library reads no
    other file than a folder's config.json, so there is such a folder as long as the context lasts.
    Raises CheckpointError.
    """
    given = Path(file)
    config, path = read_json(given), Path(file)
    modelopt: Mapping[str, Any] | None = None
    beside = given.parent / MODELOPT if given.name == "config.json" else None
    with TemporaryDirectory(prefix="scoremode-") as name:
        folder = Path(name)
        names = {str(folder / "config.json"): str(path)}
        try:
            if _is_modelopts(config):
                names[str(folder / MODELOPT)] = str(path)
                shutil.copyfile(given, folder / MODELOPT)
                config, modelopt = {}, config
            elif beside is not None and beside.exists():
                names[str(folder / MODELOPT)] = str(beside)
                shutil.copyfile(beside, folder / MODELOPT)
                modelopt = read_json(beside)
            (folder / "config.json").write_text(json.dumps(config))
        except OSError as error:
            raise CheckpointError(f"{file}: {words_of(error, named=False)}") from None
        check_config(given, config)
        names[str(folder)] = str(path)
        quantized_by = None
        if beside is not None and modelopt is None and not quantizations(config):
            quantized_by = own_config(given.parent)

        def shown(value: Any) -> Any:
            if isinstance(value, str):
                for before, after in names.items():
                    value = value.replace(before, after)
            elif isinstance(value, Mapping):
                return {key: shown(item) for key, item in value.items()}
            elif isinstance(value, list):
                return [shown(item) for item in value]
            return value

        found = Checkpoint(
            folder, str(path), config, {}, modelopt=modelopt, quantized_by=quantized_by
        )
        yield found, shown


def _is_modelopts(config: Mapping[str, Any]) -> bool:
    return "model_type" not in config and isinstance(config.get("quantization"), Mapping)
