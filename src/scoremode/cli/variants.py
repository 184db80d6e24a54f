"""The engines that one command runs: `vllm`, `vllm@PYTHON`, and `--variant` with settings of its own.

A variant is words as a shell has them: an engine, with `@PYTHON` that of another environment, then
KEY=VALUE for each setting that differs from the command's own flags. A first word `NAME:` is what
tables call it. A key is one of the engine's
flags, else, in capitals, an environment variable, else a keyword of vllm.LLM.
"""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scoremode.cli.engines import options_among
from scoremode.errors import UsageError, escaped
from scoremode.spec.engine import Engine
from scoremode.spec.flag import Flag, did_you_mean

if TYPE_CHECKING:
    from scoremode.engines.torch.options import TorchOptions
    from scoremode.engines.vllm.options import VllmOptions

__all__ = ["ENGINES", "Variant", "variants_of"]

ENGINES = ("torch", "vllm")
_TRUTH = {"true": True, "false": False, "1": True, "0": False}


class Variant(NamedTuple):
    """An engine to run: its options, another interpreter's `place`, and variables of its own."""

    options: "TorchOptions | VllmOptions"
    place: str | None
    environment: dict[str, str]


class _Asked(NamedTuple):
    """An engine as it was asked for by `flag`, with its settings as typed, and the name it got."""

    flag: str
    engine: str
    place: str | None
    settings: tuple[str, ...] = ()
    name: str = ""

    @property
    def label(self) -> str:
        """Its name in tables: of another interpreter that of its environment's folder."""
        if self.name:
            return self.name
        if self.place is None:
            return " ".join((self.engine, *self.settings))
        path = Path(self.place)
        folder = path.parent.parent if path.parent.name == "bin" else path
        return " ".join((f"{self.engine}@{folder.name or self.place}", *self.settings))

    @property
    def whole(self) -> str:
        """Its name where another's label is the same."""
        return " ".join((f"{self.engine}@{self.place}", *self.settings))


def variants_of(spec: Engine, engines: str | None, variants: Sequence[str]) -> dict[str, Variant]:
    """Label → engine, of `--engines` (torch without any of both) and then of `--variant`, in order.

    - `spec`: the command's flags, each for the engines that can obey it.

    Raises UsageError.
    """
    asked = [] if engines is None and variants else _of_names(engines or "torch")
    asked += [_of_words(text) for text in variants]
    labels = [each.label for each in asked]
    found: dict[str, Variant] = {}
    for each in asked:
        label = each.label
        if labels.count(label) > 1 and not each.name and each.place is not None:
            label = each.whole
        if label in found:
            raise UsageError(f"{each.flag}: {label} is named twice")
        found[label] = _variant(spec, each, [other.engine for other in asked])
    return found


def _of_names(text: str) -> list[_Asked]:
    return [_asked(f"--engines {text}", name.strip()) for name in text.split(",")]


def _of_words(text: str) -> _Asked:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--variant {text}: {error}") from None
    name = ""
    if words and words[0].endswith(":"):
        name, *words = words
    asked = _asked(f"--variant {text}", words[0] if words else "", *words[1:])
    return asked._replace(name=escaped(name[:-1]))


def _asked(flag: str, name: str, *settings: str) -> _Asked:
    engine, at, place = name.partition("@")
    if engine not in ENGINES:
        what = engine or "an empty name"
        raise UsageError(f"{flag}: {what} is not one of {', '.join(ENGINES)}")
    if at and not place:
        raise UsageError(f"{flag}: {name} names no interpreter behind the @")
    return _Asked(flag, engine, place or None, settings)


def _variant(spec: Engine, asked: _Asked, engines: Sequence[str]) -> Variant:
    changes: dict[str, Any] = {}
    keywords: list[str] = []
    variables: dict[str, str] = {}
    for setting in asked.settings:
        key, equals, text = setting.partition("=")
        name = key.lstrip("-").replace("-", "_")
        if not equals or not name.isidentifier():
            raise UsageError(f"{asked.flag}: {setting} is not KEY=VALUE")
        if name in changes or key in variables:
            raise UsageError(f"{asked.flag}: {key} is given twice")
        if name in Engine.flags and name != "engine_arg":
            changes[name] = _value(asked, Engine.flags[name], setting, text)
        elif key.isupper():
            variables[key] = text
        else:
            keywords.append(f"{name}={text}")
    if keywords and asked.engine == "torch":
        name = keywords[0].partition("=")[0]
        raise UsageError(f"{asked.flag}: the torch engine has no {name}"
                         f"{did_you_mean(name, Engine.flags)}")  # fmt: skip
    own = {pair.partition("=")[0] for pair in keywords}
    kept = [p for p in spec.engine_arg if _key(p) not in own]
    given = spec.but(engine_arg=[*kept, *keywords])
    try:
        options = options_among(given, asked.engine, engines, changes)
    except UsageError as error:
        where = f"{asked.flag}: " if asked.settings else ""
        raise UsageError(f"{where}{error}") from None
    return Variant(options, asked.place, variables)


def _key(pair: str) -> str:
    return pair.partition("=")[0].strip().lstrip("-").replace("-", "_")


def _value(asked: _Asked, flag: Flag[Any, Any], setting: str, text: str) -> Any:
    if flag.switch or flag.pair:
        if text.lower() not in _TRUTH:
            raise UsageError(f"{asked.flag}: {setting}: is neither true nor false")
        return _TRUTH[text.lower()]
    try:
        return flag.value_of(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{asked.flag}: {error}") from None
