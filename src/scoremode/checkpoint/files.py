"""Checkpoints: a model's files on disk, their headers, and lazy reads.

Only safetensors are read. A header says every tensor's dtype, shape and place, so a checkpoint is
checked whole (shards present, sizes right, no name twice) before a byte of weights is touched, and
tensors are then views of the memory-mapped files: what is not used is not read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.background.garbage import not_collecting
from scoremode.checkpoint.config_fields import check_config, language_config
from scoremode.checkpoint.hashing import Hashing
from scoremode.checkpoint.header import TensorInfo, read_header
from scoremode.checkpoint.strict_json import read_json
from scoremode.errors import CheckpointError, UnsupportedFormat, words_of
from scoremode.json_text import canonical
from scoremode.text.hub_client import asked

if TYPE_CHECKING:
    import torch

__all__ = [
    "Checkpoint",
    "TensorInfo",
    "locate",
    "open_checkpoint",
    "positions_of",
    "read_config",
    "read_json",
    "refuse_adapter",
]

_BLOCK = 4096
_Content = bytes  # `Checkpoint.bytes` is a number
_INDEX = "model.safetensors.index.json"
_GGUF = "GGUF is not decoded here: measure it with llama.cpp's own llama-perplexity"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model's folder: its config, its tensors' headers, and reads of them."""

    path: Path
    source: str
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    opened: Mapping[Path, tuple[int, ...]] = field(default_factory=dict)

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        """The config's `quantization_config`, at its top or beside the language model's."""
        return next(
            (
                config[key]
                for config in (self.config, self.text_config)
                for key in ("quantization_config", "compression_config")
                if config.get(key)
            ),
            None,
        )

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The language model's part of the config."""
        return language_config(self.config)

    @cached_property
    def shards(self) -> list[Path]:
        return sorted({t.file for t in self.tensors.values()})

    @cached_property
    def bytes(self) -> int:
        """Bytes of all weight files, headers included."""
        return sum(f.stat().st_size for f in self.shards)

    def check_unchanged(self) -> None:
        """Raises CheckpointError if a weight file is not the one whose header was read."""
        for file, before in self.opened.items():
            if _stamp(file) != before:
                raise CheckpointError(f"{file}: was changed or replaced while it was in use")

    def read(self, name: str) -> "torch.Tensor":
        """A CPU tensor that views the memory-mapped file. Raises CheckpointError."""
        import safetensors

        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError(f"{self.path}: no tensor {name}")
        try:
            return self._open(info.file).get_tensor(name)
        except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"{info.file}: tensor {name}: {words_of(error, named=False)}"
            ) from None

    def read_bytes(self, name: str) -> _Content:
        """A tensor's bytes, for those of a few values: by a read of them alone, and without torch.

        Raises CheckpointError.
        """
        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError(f"{self.path}: no tensor {name}")
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
    def _blocks(self) -> dict[Path, tuple[int, _Content]]:
        return {}

    def _open(self, file: Path) -> Any:
        import safetensors

        if file not in self._handles:
            self._handles[file] = safetensors.safe_open(str(file), framework="pt", device="cpu")
        return self._handles[file]

    @cached_property
    def _handles(self) -> dict[Path, Any]:
        return {}

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the config and of every header: cheap, and enough to tell models apart.

        It does not see the weights themselves; `hash_files` does.
        """
        digest = sha256(canonical(self.config).encode())
        for t in sorted(self.tensors.values(), key=lambda t: t.name):
            digest.update(f"{t.name} {t.file.name} {t.dtype} {t.shape}".encode())
        return digest.hexdigest()

    def hash_files(self) -> dict[str, str]:
        """sha256 of config, weight files and the model's own code, by name. Reads all bytes.

        Raises CheckpointError.
        """
        try:
            found = self.hashing().result()
        except OSError as error:
            raise CheckpointError(f"{error.filename}: {error.strerror}") from None
        return {f.relative_to(self.path).as_posix(): digest for f, digest in found.items()}

    def hashing(self) -> Hashing:
        """Begins to hash the files, if that has not begun; `hash_files` waits for it.

        The bytes are read once: a weight file that changes later is found by `check_unchanged`.
        """
        if not self._hashings:
            files = [self.path / "config.json", *self.shards, *sorted(self.path.glob("*.py"))]
            self._hashings.append(Hashing(files))
        return self._hashings[0]

    def stop_hashing(self) -> None:
        """Ends what `hashing` began, if it is not done."""
        for hashing in self._hashings:
            hashing.stop()
        self._hashings.clear()

    @cached_property
    def _hashings(self) -> list[Hashing]:
        return []


def locate(
    model: str, revision: str | None = None, *, weights: bool = True, code: bool = False
) -> tuple[Path, str]:
    """The folder of `model` (a folder or a hub id), and what to call it in a record.

    From the hub only configuration, tokenizer and, with `weights`, safetensors files are fetched,
    and Python files with `code`. Raises CheckpointError.
    """
    path = Path(model)
    if path.is_dir():
        if revision is not None:
            raise CheckpointError(f"{model} is a folder: --revision {revision} has no meaning")
        return path, str(path)
    if path.exists():
        if path.suffix.lower() == ".gguf":
            raise UnsupportedFormat(f"{model}: {_GGUF}")
        raise CheckpointError(f"{model} is a file: give the model's folder or its hub id")
    path = _download(model, revision, weights, code)
    return path, f"hub:{model}@{path.name}"


@not_collecting()
def open_checkpoint(model: str, revision: str | None = None, *, code: bool = False) -> Checkpoint:
    """The checkpoint in the folder `model`, or of that hub id; with `code`, its Python files too.

    Raises CheckpointError.
    """
    path, source = locate(model, revision, code=code)
    refuse_adapter(path)
    if not (path / "config.json").exists():
        _refuse_gguf(path)
    config = read_config(path)
    tensors, opened = {}, {}
    files, index = _weight_files(path)
    for file in files:
        opened[file] = _stamp(file)
        for info in read_header(file):
            if info.name in tensors:
                other = tensors[info.name].file.name
                raise CheckpointError(f"{path}: tensor {info.name} is in {other} and {file.name}")
            tensors[info.name] = info
    if index is not None:
        _check_index(path, index, tensors)
    return Checkpoint(path, source, config, tensors, opened)


def read_config(path: Path) -> dict[str, Any]:
    """The config.json of a folder. Raises CheckpointError."""
    config = read_json(path / "config.json")
    check_config(path / "config.json", config)
    return config


def positions_of(config: Mapping[str, Any]) -> int | None:
    """A model's number of positions by its config; None where it has no limit or says none."""
    # What older architectures call it; models without position tables have none of them.
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)


def _download(model: str, revision: str | None, weights: bool, code: bool) -> Path:
    from huggingface_hub import snapshot_download

    if model.count("/") > 1 or model.startswith((".", "/", "~")):  # no name on the hub
        raise CheckpointError(f"{model}: no such folder")
    patterns = [
        "*.json",
        "merges.txt",
        "vocab.txt",
        "tokenizer.model",
        *(["*.safetensors"] if weights else []),
        *(["*.py"] if code else []),
    ]
    try:
        call = partial(snapshot_download, model, revision=revision, allow_patterns=patterns)
        return Path(asked(call))
    except OSError as error:
        raise CheckpointError(
            f"{model}: no such folder, and not to be had from the hub ({words_of(error, named=False)})"
        ) from None


def _weight_files(path: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The weight files, and the index's map of tensors to them if there is one."""
    index = path / _INDEX
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(
            isinstance(name, str) for name in weight_map.values()
        ):
            raise CheckpointError(f"{index}: has no weight_map of tensors to files")
        names = sorted(set(weight_map.values()))
        for name in names:
            # Not one elsewhere: what a hash of this folder says must be all that was read.
            if Path(name).name != name or "\0" in name or len(name) > 255:
                raise CheckpointError(f"{index}: names the file {name!r}, which is none beside it")
            if not (path / name).is_file():
                raise CheckpointError(f"{path / name}: missing shard, named by {_INDEX}")
        return [path / name for name in names], weight_map
    files = sorted(path.glob("*.safetensors"))
    if (path / "model.safetensors") in files:
        return [path / "model.safetensors"], None
    if files:
        if len(files) == 1:
            return files, None
        raise CheckpointError(f"{path}: {len(files)} safetensors files and no {_INDEX}")
    pickles = sorted(p.name for g in ("*.bin", "*.pt", "*.pth") for p in path.glob(g))
    if pickles:
        raise CheckpointError(
            f"{path}: weights only as pickle ({pickles[0]}), which is never loaded: convert with "
            "AutoModelForCausalLM.from_pretrained(…).save_pretrained(…) where you trust the file"
        )
    _refuse_gguf(path)
    raise CheckpointError(f"{path}: no safetensors files")


def refuse_adapter(path: Path) -> None:
    """Raises UnsupportedFormat if the folder holds an adapter for a model and no model."""
    file = path / "adapter_config.json"
    if not file.exists() or (path / "model.safetensors").exists() or (path / _INDEX).exists():
        return
    if any(not f.name.startswith("adapter_") for f in path.glob("*.safetensors")):
        return
    config = read_json(file)
    kind, base = config.get("peft_type"), config.get("base_model_name_or_path")
    raise UnsupportedFormat(
        f"{path}: a{f' {kind}' if isinstance(kind, str) else 'n'} adapter"
        f"{f' for {base}' if isinstance(base, str) and base else ''}, and no model: merge it into its "
        "base (peft's merge_and_unload, then save_pretrained) and give that folder"
    )


def _refuse_gguf(path: Path) -> None:
    """Raises UnsupportedFormat if the folder has GGUF files, which carry their own config."""
    files = sorted(p.name for p in path.glob("*.gguf"))
    if files:
        raise UnsupportedFormat(f"{path}: weights only as GGUF ({files[0]}): {_GGUF}")


def _check_index(path: Path, index: Mapping[str, str], tensors: Mapping[str, TensorInfo]) -> None:
    found = {name: info.file.name for name, info in tensors.items()}
    if index.items() <= found.items():
        return
    name, file = next(item for item in index.items() if found.get(item[0]) != item[1])
    raise CheckpointError(f"{path / file}: tensor {name} is missing, named by {_INDEX}")


def _stamp(file: Path) -> tuple[int, ...]:
    """Returns numbers that change when a file is written to or replaced."""
    try:
        stat = file.stat()
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
