"""Tokenizers of a checkpoint: of a folder, a GGUF file, and those that only transformers can read."""

from hashlib import sha256
from pathlib import Path

from scoremode.checkpoint.folder import locate
from scoremode.checkpoint.gguf.opened import gguf_metadata
from scoremode.checkpoint.gguf.place import is_gguf
from scoremode.checkpoint.gguf.tokenizer import has_vocabulary, tokenizer_of
from scoremode.checkpoint.strict_json import read_json
from scoremode.errors import TokenizerError
from scoremode.lib.files import MOST_JSON, check_regular
from scoremode.lib.tasks import importing
from scoremode.text.tokenizer import Tokenizer, adopt, load_tokenizer, naming

__all__ = ["checkpoint_tokenizer", "has_tokenizer"]

# What transformers makes a fast tokenizer from where there is no tokenizer.json.
_SLOW_FILES = ("tokenizer.model", "vocab.json", "vocab.txt")
_FILES = ("tokenizer.json", *_SLOW_FILES)
# What holds a tokenizer that no library here reads; of a folder with such a file alone transformers
# makes one of five tokens, or runs the model's own code.
_UNREAD_FILES = ("tekken.json", "*tiktoken*", "*.model*", "*.vocab", "rwkv_vocab*")


def checkpoint_tokenizer(source: str, revision: str | None = None) -> Tokenizer:
    """The tokenizer in a folder or a GGUF file, of a hub id, or of a `tokenizer.json`.

    Raises TokenizerError, CheckpointError.
    """
    path = _find(source, revision)
    if is_gguf(path):
        return tokenizer_of(gguf_metadata(path), str(path))
    if path.is_file() or (path / "tokenizer.json").exists():
        return load_tokenizer(path)
    if any((path / name).exists() for name in _SLOW_FILES):
        return _converted(path)
    unread = sorted({file.name for pattern in _UNREAD_FILES for file in path.glob(pattern)})
    beside = f", only {' and '.join(unread[:3])}, which can't be read here" if unread else ""
    raise TokenizerError(
        f"{path}: has no {', '.join(_FILES[:-1])} or {_FILES[-1]}{beside}; give a tokenizer.json of "
        "the same tokenizer, or its folder, by --tokenizer"
    )


def has_tokenizer(source: str, revision: str | None = None) -> bool:
    """Tells whether `checkpoint_tokenizer` finds any file of one. Raises CheckpointError."""
    path = _find(source, revision)
    if is_gguf(path):
        return has_vocabulary(gguf_metadata(path))
    return path.is_file() or any((path / f).exists() for f in _FILES)


def _find(source: str, revision: str | None) -> Path:
    path = Path(source)
    # A folder's own files before those of a GGUF file that lies there, too.
    if path.is_file() or any((path / name).exists() for name in _FILES):
        return path
    return locate(source, revision, weights=False)[0]


def _check_files(path: Path) -> None:
    """Raises TokenizerError where transformers would read something that is no file."""
    for file in path.iterdir():
        try:
            if file.suffix in (".json", ".txt", ".model"):
                check_regular(file, MOST_JSON)
        except OSError as error:
            raise TokenizerError(f"{file}: {error.strerror}") from None


def _converted(path: Path) -> Tokenizer:
    _check_files(path)
    with importing():
        from transformers import AutoTokenizer

    with naming(str(path), "has no tokenizer.json, and none can be made"):
        fast = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        backend = fast.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    settings_file = path / "tokenizer_config.json"
    settings = read_json(settings_file) if settings_file.exists() else {}
    # transformers has already applied the settings that change ids; only the names are still needed.
    named = {k: str(getattr(fast, k)) for k in ("bos_token", "eos_token") if getattr(fast, k)}
    named = {k: v for k, v in settings.items() if not k.startswith("add_")} | named
    digest = sha256(backend.to_str().encode()).hexdigest()
    return adopt(backend, named, source=str(path), digest=digest)
