"""A sweep that a file describes, as command lines of `scoremode kld`, one for each text and protocol.

Nothing is defined twice: each key is a flag of that command, and its value is read by its parser.

A file may come from a stranger, and running it is no consent to all that it asks for: what runs code
comes from the command line alone, and nothing is written outside the file's own folder.
"""

import argparse
import datetime
import glob
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scoremode.errors import UsageError, words_of
from scoremode.lib.files import read_regular

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
# The model's code, and keywords of vLLM, some of which name classes to import and folders to write.
_CONSENT = {"trust_remote_code", "engine_arg"}
# tomllib keeps or copies every beginning of a dotted key: one of 20,000 parts takes 1.5 GB, or minutes
# in braces.
_MOST_PARTS = 32
_MOST_BYTES = 1 << 17
_PART = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*\.[ \t]*"""
_LONG_KEY = re.compile(rf"(?:^|[{{,])[ \t\[]*(?:{_PART}){{{_MOST_PARTS}}}", re.MULTILINE)


def read_sweep_file(
    file: Path,
    kld: argparse.ArgumentParser,
    consent: Sequence[str] = (),
    output: Path | None = None,
) -> list[list[str]]:
    """The command lines of a TOML file, whose paths are relative to it.

    - `kld`: the command's parser.
    - `consent`: flags that only a command line may give, for every line.
    - `output`: the folder that all goes to, instead of the file's own choice.

    Raises UsageError, naming what is wrong.
    """
    spec = _spec(file)
    try:
        place = _output(spec.pop("output", file.stem), file) if output is None else str(output)
        return command_lines({**spec, "output": place}, kld, file.parent, consent)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None
    # Nested too deep to be told, or a number of too many digits.
    except (RecursionError, ValueError) as error:
        raise UsageError(f"{file}: {words_of(error, named=False)}") from None


def _spec(file: Path) -> dict[str, Any]:
    """A TOML file's content. Raises UsageError."""
    try:
        text = read_regular(file, _MOST_BYTES).decode()
        if found := _LONG_KEY.search(text):
            line = text.count("\n", 0, found.start()) + 1
            raise UsageError(f"{file}, line {line}: its key has more than {_MOST_PARTS} parts")
        return tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{file}: not readable: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: is not TOML: {words_of(error, named=False)}") from None


def _output(name: Any, file: Path) -> str:
    """The folder that a file itself names. Raises UsageError for one outside the file's folder."""
    if not isinstance(name, str) or "\0" in name:
        raise UsageError(f"its output is {name!r}, no folder's name")
    place = file.parent / name
    is_plain = not Path(name).is_absolute() and ".." not in Path(name).parts
    # A link that came with the file may lead anywhere; Path.resolve raises for one in a circle.
    target, folder = (Path(os.path.realpath(path)) for path in (place, file.parent))
    if not is_plain or not target.is_relative_to(folder):
        raise UsageError(
            f"its output {name!r} is not inside the file's own folder: give -o {name} on the command "
            "line to write there"
        )
    return str(place)


def command_lines(
    spec: Mapping[str, Any],
    kld: argparse.ArgumentParser,
    folder: Path | None = None,
    consent: Sequence[str] = (),
) -> list[list[str]]:
    """A command line for each text under each protocol, or for each of several kept references.

    - `spec`: `base`, `models`, `output`, `texts`, `protocols`, `flags`; a text or protocol is a mapping
      of flags, or a file's or a protocol's name.
    - `folder`: that of the file which `spec` was read from: its paths but `output` are relative to it,
      and it can't give the flags in `consent`. None for what a caller's own program says.

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
    common = [*_section("flags", flags, allowed - taken, kld, folder), *consent]
    if len(bases) > 1 and texts:
        raise UsageError("has several bases, each kept with its text, and texts as well")
    for base in bases if len(bases) > 1 else ():
        if not (Path(base) / "record.json").is_file():
            raise UsageError(f"has several bases, of which {base} is no kept reference")
    place = str(spec.get("output", "runs"))
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
        if not name or name.startswith("-") or "\0" in name:
            raise UsageError(f"its {key} has {name!r}, which is no model's name")
    return [_found(name, folder) for name in names]


def _found(name: str, folder: Path | None) -> str:
    if folder is None:
        return name
    place = _no_flag(str(folder / name))
    if os.path.exists(place):  # noqa: PTH110
        return place
    if any(c in name for c in "*?[") and ":" not in name:
        # The folder's own name is no pattern.
        return _no_flag(str(Path(glob.escape(str(folder))) / name))
    return place if name.startswith(("./", "../", "~")) else name


def _no_flag(path: str) -> str:
    """A path that no parser takes for a flag: `./--trust-remote-code` loses its beginning as a Path."""
    return f"./{path}" if path.startswith("-") else path


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
        if folder is not None and name in _CONSENT:
            raise UsageError(
                f"its {section} have {key}, and consent to run code comes from the command line "
                f"alone: scoremode sweep FILE {flag}" + " KEY=VALUE" * (name == "engine_arg")
            )
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
    if isinstance(value, str | int | float | Path | datetime.date) and "\0" not in str(value):
        return [f"{flag}={value}"]
    raise UsageError(f"its {section} have {flag[2:]} = {value!r}, which no flag takes")
