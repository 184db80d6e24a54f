"""A checkpoint's chat template, the special tokens that it writes, and those that end a turn.

A folder has its template in `chat_template.jinja`, `chat_template.json` or `tokenizer_config.json`, of
which transformers takes the first; several under names are the default one and those for tools and the
like. A GGUF file has `tokenizer.chat_template`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scoremode.checkpoint.config import read_json
from scoremode.checkpoint.folder import locate
from scoremode.checkpoint.gguf.names import is_gguf
from scoremode.checkpoint.gguf.open import gguf_metadata
from scoremode.errors import TokenizerError
from scoremode.lib.files import MOST_JSON, read_regular
from scoremode.text.conversations.template import ChatTemplate
from scoremode.text.tokenizer import Tokenizer

__all__ = ["chat_template", "special_tokens", "template_file", "turn_ends"]

_JINJA, _JSON, _CONFIG = "chat_template.jinja", "chat_template.json", "tokenizer_config.json"
_MAP = "special_tokens_map.json"
# Special tokens by the names under which templates write them.
_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)
# The ids at which llama.cpp ends a turn.
_GGUF_ENDS = ("eos", "eot", "eom")


def chat_template(source: str, revision: str | None, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The template of a folder, GGUF file or hub id, None where it has none.

    Raises CheckpointError, TokenizerError.
    """
    path = _place(source, revision)
    tokens = _tokens_of(path, tokenizer)
    if is_gguf(path):
        jinja = gguf_metadata(path).get("tokenizer.chat_template")
        if jinja is not None and not isinstance(jinja, str):
            raise TokenizerError(f"{path}: tokenizer.chat_template is no text")
        return None if jinja is None else ChatTemplate(str(path), jinja, tokens)
    folder = path if path.is_dir() else path.parent
    for name in (_JINJA, _JSON, _CONFIG):
        if not (folder / name).exists():
            continue
        if name == _JINJA:
            return ChatTemplate(str(folder / name), _read(folder / name), tokens)
        value = _object(folder / name).get("chat_template")
        if value is not None:
            return ChatTemplate(str(folder / name), _default(value, folder / name), tokens)
    return None


def special_tokens(source: str, revision: str | None, tokenizer: Tokenizer) -> dict[str, str]:
    """The special tokens of a folder, GGUF file or hub id by the names that templates have for them,
    such as `bos_token`. Raises CheckpointError."""
    return _tokens_of(_place(source, revision), tokenizer)


def template_file(path: Path, tokens: Mapping[str, str]) -> ChatTemplate:
    """The template in a file, which is told the special `tokens` of a model. Raises TokenizerError."""
    return ChatTemplate(str(path), _read(path), tokens)


def turn_ends(source: str, revision: str | None, tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of tokens at which the model stops: those of its `generation_config.json`, of its config,
    and the tokenizer's EOS. Raises CheckpointError, TokenizerError."""
    path = _place(source, revision)
    if is_gguf(path):
        metadata = gguf_metadata(path)
        named = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _GGUF_ENDS]
        return _ids(named, tokenizer, str(path))
    folder = path if path.is_dir() else path.parent
    found: list[Any] = []
    for name in ("generation_config.json", "config.json"):
        config = _object(folder / name)
        for each in (config, config.get("text_config") or {}):
            value = each.get("eos_token_id") if isinstance(each, dict) else None
            found += value if isinstance(value, list) else [value]
    if (eos := _tokens_of(path, tokenizer).get("eos_token")) is not None:
        found.append(tokenizer.backend.token_to_id(eos))
    return _ids(found, tokenizer, str(folder))


def _place(source: str, revision: str | None) -> Path:
    """The folder, its GGUF file or the tokenizer's file that `source` names; may fetch it."""
    path = Path(source)
    is_named = path.is_file() or (path / _CONFIG).exists()
    return path if is_named else locate(source, revision, weights=False)[0]


def _tokens_of(path: Path, tokenizer: Tokenizer) -> dict[str, str]:
    if not is_gguf(path):
        folder = path if path.is_dir() else path.parent
        return _special_tokens(_object(folder / _CONFIG), _object(folder / _MAP))
    metadata, tokens = gguf_metadata(path), {}
    for name in ("bos", "eos", "unknown", "padding"):
        token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        text = None if token_id is None else tokenizer.backend.id_to_token(int(token_id))
        if text is not None:
            tokens[{"unknown": "unk", "padding": "pad"}.get(name, name) + "_token"] = text
    return tokens


def _default(value: Any, file: Path) -> str:
    """The text of a template, of several under names the default one."""
    if isinstance(value, list):
        named = {each.get("name"): each.get("template") for each in value if isinstance(each, dict)}
        value = named.get("default")
        if value is None:
            names = ", ".join(map(str, named)) or "none"
            raise TokenizerError(
                f"{file}: has chat templates {names}, and none is the default: give one with "
                "--chat-template FILE"
            )
    if not isinstance(value, str):
        raise TokenizerError(f"{file}: chat_template is {type(value).__name__}, not text")
    return value


def _special_tokens(settings: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in _TOKENS:
        value = settings.get(name, named.get(name))
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _ids(values: Iterable[Any], tokenizer: Tokenizer, source: str) -> frozenset[int]:
    ids = set()
    for value in values:
        if value is None:
            continue
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
            raise TokenizerError(f"{source}: the id of a token that ends a turn is {value!r}")
        if int(value) < tokenizer.size:
            ids.add(int(value))
    return frozenset(ids)


def _object(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _read(path: Path) -> str:
    try:
        return read_regular(path, MOST_JSON).decode()
    except OSError as error:
        raise TokenizerError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path}: not utf-8 at byte {error.start}") from None
