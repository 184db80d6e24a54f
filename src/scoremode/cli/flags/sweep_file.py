"""A sweep that a file describes, as command lines of `scoremode kld`, one for each text and protocol.

Nothing is defined twice: each key is a flag of that command, and its value is read by its parser.
"""

import argparse
import datetime
import glob
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scoremode.errors import UsageError
from scoremode.untrusted_files import MOST_JSON, read_regular

__all__ = ["command_lines", "read_sweep_file"]

_KEYS = ("base", "models", "output", "texts", "protocols", "flags")
_TEXT = {"text", "preset", "file", "dataset", "dataset_file", "dataset_config", "dataset_revision",
         "split", "text_field", "num_samples", "seed", "conversations", "group_by", "chat_template",
         "chat_template_kwargs", "chat_date", "skip_bad_rows"}  # fmt: skip
_PROTOCOL = {"protocol", "context_length", "stride", "limit", "bos", "vocabulary", "score", "long"}
# What the sweep itself says, or the command line that names the file.
_NOT_FLAGS = {"help", "model", "reference", "output_path", "resume", "json", "format", "quiet",
              "verbose", "dry_run", "devices", "shard", "llama_cpp_block", "list_presets"}  # fmt: skip
_PATHS = ("file", "dataset_file", "tokenizer", "conversations", "chat_template", "calibration")
# Of these a name may be the hub's.
_ON_HUB = ("tokenizer", "conversations", "calibration")


def read_sweep_file(file: Path, kld: argparse.ArgumentParser) -> list[list[str]]:
    """The command lines of a TOML file, whose paths are relative to it; `kld`: the command's parser.

    Raises UsageError, naming what is wrong.
    """
    try:
        text = read_regular(file, MOST_JSON).decode()
        spec = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{file}: not readable: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{file}: is not TOML: {error}") from None
    spec.setdefault("output", file.stem)
    try:
        return command_lines(spec, kld, file.parent)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None


def command_lines(
    spec: Mapping[str, Any], kld: argparse.ArgumentParser, folder: Path | None = None
) -> list[list[str]]:
    """A command line for each text under each protocol, or for each of several kept references.

    - `spec`: `base`, `models`, `output`, `texts`, `protocols`, `flags`; a text or protocol is a mapping
      of flags, or a file's or a protocol's name.
    - `folder`: what paths are relative to, if not the current one.

    Raises UsageError.
    """
    if unknown := [key for key in spec if key not in _KEYS]:
        raise UsageError(f"has {unknown[0]}, which is none of {', '.join(_KEYS)}")
    bases, models = _names(spec, "base", folder), _names(spec, "models", folder)
    texts = [_section("texts", _table(t, "file"), _TEXT, kld, folder) for t in _list(spec, "texts")]
    protocols = [
        _section("protocols", _table(p, "protocol"), _PROTOCOL, kld, folder)
        for p in _list(spec, "protocols")
    ]
    flags = spec.get("flags", {})
    if not isinstance(flags, Mapping):
        raise UsageError("its flags are no table")
    # A seed may be that of the windows that are drawn, whatever the text.
    taken = (
        _NOT_FLAGS | (_TEXT - {"seed"} if texts else set()) | (_PROTOCOL if protocols else set())
    )
    allowed = {a.dest for a in kld._actions if a.option_strings} | {"format", "json"}
    common = _section("flags", flags, allowed - taken, kld, folder)
    if len(bases) > 1 and texts:
        raise UsageError("has several bases, each kept with its text, and texts as well")
    for base in bases if len(bases) > 1 else ():
        if not (Path(base) / "record.json").is_file():
            raise UsageError(f"has several bases, of which {base} is no kept reference")
    output = str(spec.get("output", "runs"))
    place = output if folder is None else str(folder / output)
    return [
        ["kld", *models, f"--reference={base}", f"--output-path={place}", *common, *text, *protocol]
        for base in bases
        for text in texts or [[]]
        for protocol in protocols or [[]]
    ]


def _names(spec: Mapping[str, Any], key: str, folder: Path | None) -> list[str]:
    """Models, as they are found from `folder`; what isn't there is the hub's."""
    value = spec.get(key)
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not names or not all(isinstance(n, str) for n in names):
        raise UsageError(f"has no {key}: a model's name, or a list of names")
    for name in names:
        if not name or name.startswith("-"):
            raise UsageError(f"its {key} has {name!r}, which is no model's name")
    return [_found(name, folder) for name in names]


def _found(name: str, folder: Path | None) -> str:
    if folder is None:
        return name
    place = str(folder / name)
    if os.path.exists(place):  # noqa: PTH110
        return place
    if any(c in name for c in "*?[") and ":" not in name:
        # The folder's own name is no pattern.
        return str(Path(glob.escape(str(folder))) / name)
    return place if name.startswith(("./", "../", "~")) else name


def _list(spec: Mapping[str, Any], key: str) -> list[Any]:
    value = spec.get(key, [])
    if isinstance(value, str | Mapping):
        return [value]
    if not isinstance(value, Sequence):
        raise UsageError(f"its {key} are no list")
    return list(value)


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    return {name: str(value) if isinstance(value, Path) else value}


def _section(
    section: str,
    values: Mapping[str, Any],
    allowed: set[str],
    kld: argparse.ArgumentParser,
    folder: Path | None,
) -> list[str]:
    """The words of a table's flags. Raises UsageError for a key that is none, or not here."""
    words = []
    for key, value in values.items():
        name, flag = key.replace("-", "_"), f"--{key.replace('_', '-')}"
        if name not in allowed or flag not in kld._option_string_actions:
            raise UsageError(f"its {section} have {key}, which is no flag of a sweep's {section}")
        if name in _PATHS and folder is not None:
            value = _relative(name, value, folder)
        words += _words(section, flag, value)
    return words


def _relative(name: str, value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_relative(name, each, folder) for each in value]
    if not isinstance(value, str) or value == "-":
        return value
    return _found(value, folder) if name in _ON_HUB else str(folder / value)


def _words(section: str, flag: str, value: Any) -> list[str]:
    if value is True:
        return [flag]
    if value is False:
        # The one flag whose absence is not its being off.
        return ["--no-enforce-eager"] if flag == "--enforce-eager" else []
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [word for each in value for word in _words(section, flag, each)]
    # The one flag that takes an object.
    if isinstance(value, Mapping) and flag == "--chat-template-kwargs":
        return [f"{flag}={json.dumps(value)}"]
    if isinstance(value, str | int | float | Path | datetime.date):
        return [f"{flag}={value}"]
    raise UsageError(f"its {section} have {flag[2:]} = {value!r}, which no flag takes")
