"""A checkpoint's chat template, the special tokens that it writes, and those that end a turn.

A folder has its template in `chat_template.jinja`, `chat_template.json` or `tokenizer_config.json`, of
which transformers takes the first; several under names are the default one and those for tools and the
like. A GGUF file has `tokenizer.chat_template`.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scoremode.checkpoint.config import read_json
from scoremode.checkpoint.model_files import ModelFiles
from scoremode.errors import TokenizerError
from scoremode.lib.files import MOST_JSON, read_regular
from scoremode.text.conversations.template import ChatTemplate
from scoremode.text.tokenizer import Tokenizer

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


def chat_template(
    places: Sequence[ModelFiles], tokenizer: Tokenizer, file: Path | None = None
) -> ChatTemplate | None:
    """The first template in `places`, or that of a `file`, which is told the first place's special
    tokens; None where there is none.

    Raises CheckpointError, TokenizerError.
    """
    if file is not None:
        return ChatTemplate(str(file), _read(file), special_tokens(places[0], tokenizer))
    found = (_template(files, tokenizer) for files in places)
    return next((template for template in found if template is not None), None)


def special_tokens(files: ModelFiles, tokenizer: Tokenizer) -> dict[str, str]:
    """The special tokens among a model's files by the names that templates have for them, such as
    `bos_token`. Raises CheckpointError."""
    if not files.is_gguf:
        return _special_tokens(_object(files.folder / _CONFIG), _object(files.folder / _MAP))
    metadata, tokens = _gguf_metadata(files), {}
    for name in ("bos", "eos", "unknown", "padding"):
        token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        text = None if token_id is None else tokenizer.backend.id_to_token(int(token_id))
        if text is not None:
            tokens[{"unknown": "unk", "padding": "pad"}.get(name, name) + "_token"] = text
    return tokens


def turn_ends(places: Sequence[ModelFiles], tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of tokens at which the model stops: those of each place's `generation_config.json` and
    config, and the tokenizer's EOS. Raises CheckpointError, TokenizerError."""
    return frozenset().union(*(_turn_ends(files, tokenizer) for files in places))


def _template(files: ModelFiles, tokenizer: Tokenizer) -> ChatTemplate | None:
    tokens = special_tokens(files, tokenizer)
    if files.is_gguf:
        jinja = _gguf_metadata(files).get("tokenizer.chat_template")
        if jinja is not None and not isinstance(jinja, str):
            raise TokenizerError(f"{files.path}: tokenizer.chat_template is no text")
        return None if jinja is None else ChatTemplate(str(files.path), jinja, tokens)
    for file in (files.folder / name for name in (_JINJA, _JSON, _CONFIG)):
        if not file.exists():
            continue
        if file.name == _JINJA:
            return ChatTemplate(str(file), _read(file), tokens)
        value = _object(file).get("chat_template")
        if value is not None:
            return ChatTemplate(str(file), _default(value, file), tokens)
    return None


def _turn_ends(files: ModelFiles, tokenizer: Tokenizer) -> frozenset[int]:
    if files.is_gguf:
        metadata = _gguf_metadata(files)
        named = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _GGUF_ENDS]
        return _ids(named, tokenizer, str(files.path))
    ids: list[Any] = []
    for name in ("generation_config.json", "config.json"):
        config = _object(files.folder / name)
        for part in (config, config.get("text_config") or {}):
            value = part.get("eos_token_id") if isinstance(part, dict) else None
            ids += value if isinstance(value, list) else [value]
    if (eos := special_tokens(files, tokenizer).get("eos_token")) is not None:
        ids.append(tokenizer.backend.token_to_id(eos))
    return _ids(ids, tokenizer, str(files.folder))


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


def _gguf_metadata(files: ModelFiles) -> Mapping[str, Any]:
    # A dozen modules, which a model in any other format needs none of.
    from scoremode.checkpoint.gguf.open import gguf_metadata

    return gguf_metadata(files.path)
