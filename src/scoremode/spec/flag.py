"""Flags as values: each is declared once, for argparse, Python's signatures and sweeps in TOML.

A command is a class whose attributes are flags, its own and those of the groups that it inherits:

    class Merge(Flags):
        runs: Flag[Sequence[str | Path], list[Path]] = Flag("a shard's folder", "RUN", nargs="+", …)

`Merge(runs=["a"])` takes what a Python program gives, `Merge.parsed(…)` what argparse has read; both
are read by the flag's own `read`, and `spec.runs` is its value. An attribute without an annotation is a
flag of the command line alone: type checkers leave it out of the keywords.
"""

import argparse
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from itertools import takewhile
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    NoReturn,
    Self,
    TypeVar,
    dataclass_transform,
    overload,
)

from scoremode.errors import UsageError

if TYPE_CHECKING:
    from dataclasses import KW_ONLY

__all__ = [
    "Flag",
    "Flags",
    "Group",
    "Name",
    "Number",
    "Once",
    "Parser",
    "PathName",
    "Place",
    "Prints",
    "Quantity",
    "Switch",
    "check_least",
    "check_utf8",
]

Given = TypeVar("Given")
Value = TypeVar("Value")
T = TypeVar("T")
# The subject of a flag.
Part = Literal["model", "text", "protocol", "engine", "comparison", "output"]


class Group(NamedTuple):
    """A heading of a help text, and the line below it."""

    title: str
    about: str | None = None


# Of a command with more flags, --help shows those that most calls need, `common`: one screen.
_FEW = 15


@dataclass_transform(eq_default=False)
def _attributes_are_keywords(cls: type[T]) -> type[T]:
    """Says to type checkers what `Flag.__init__` does: a dataclass would take --help longer to build
    than all the flags."""
    return cls


@_attributes_are_keywords
class Flag(Generic[Given, Value]):
    """A flag; `Given` is the type that Python callers may pass, `Value` the type of its value.

    - `help`, `metavar`: shown by --help; `spelled`: its name there, if not the attribute's.
    - `also`: other names, such as `-c`; `positional`: the flag has no name.
    - `read`: turns text into a value; `choices`: the values that are allowed.
    - `switch`: takes no value; `pair`: is a switch with a `--no-…`; `repeats`: may be given several
      times; `once`: a second one is an error; `nargs`, `const`, `required`, `action`: argparse's.
    - `group`: its heading in the help; `part`: its subject; both are the class's by default.
    - `common`: --help of a command with many flags shows it; the others are for --help all.

    Further facts:

    - `engine`: the only engine that obeys it; `refusal`: why the other one refuses it, unless its
      value is the default or `harmless`; `keyword`: vLLM takes it under the same name.
    - `sources`: the kinds of text that it applies to; None: all of them.
    - `path`: the value names a file, or a file or something on the hub.
    - `moves_score`: changes how scores are computed, so the command that repeats a run includes it.
    - `in_sweep`: a sweep's file may set it; `in_memory`: it applies to a module in memory; `consent`:
      it lets other people's code run.
    - `longest`: a longer value is recorded as its number of characters.
    """

    help: str
    metavar: str | None = None
    _: "KW_ONLY"
    read: Callable[[str], Any] = str
    default: Any = None
    choices: Sequence[Any] | None = None
    group: Group | None = None
    part: Part | None = None
    common: bool = False
    spelled: str = ""
    also: tuple[str, ...] = ()
    positional: bool = False
    switch: bool = False
    pair: bool = False
    repeats: bool = False
    once: bool = False
    required: bool = False
    nargs: int | str | None = None
    const: Any = None
    action: Any = None
    engine: Literal["torch", "vllm", "http"] | None = None
    refusal: str = ""
    harmless: tuple[Any, ...] = ()
    keyword: bool = False
    sources: frozenset[str] | None = None
    path: Literal["file", "file or hub"] | None = None
    moves_score: bool = False
    in_sweep: bool = True
    in_memory: bool = True
    consent: bool = False
    longest: int | None = None
    name: str = ""

    if not TYPE_CHECKING:

        def __init__(self, help, metavar=None, **settings):
            assert settings.keys() <= Flag.__annotations__.keys(), settings
            self.__dict__.update(help=help, metavar=metavar, **settings)
            if self.switch and self.default is None:
                self.default = False

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.spelled = self.spelled or f"--{name.replace('_', '-')}"

    @overload
    def __get__(self, spec: None, owner: type) -> Self: ...
    @overload
    def __get__(self, spec: object, owner: type) -> Value: ...
    def __get__(self, spec: Any, owner: type) -> Any:
        return self if spec is None else spec.__dict__[self.name]

    def __set__(self, spec: object, value: Given) -> None:
        raise AttributeError(f"{self.name}: a spec doesn't change; `but` makes another one")

    def but(self, **changes: Any) -> Self:
        """Returns this flag with changes, for another command."""
        flag = copy(self)
        flag.__dict__.update(changes)
        return flag

    @property
    def names(self) -> tuple[str, ...]:
        """Its names on a command line, in their order there."""
        short = [name for name in self.also if not name.startswith("--")]
        return (*short, self.spelled, *(name for name in self.also if name not in short))

    def add_to(self, parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
        """Has argparse know the flag."""
        settings: dict[str, Any] = {"help": self.help, "default": self.default}
        if not self.positional:
            settings["dest"] = self.name
        more = {"metavar": self.metavar, "action": self._action(), "choices": self.choices,
                "nargs": self.nargs, "const": self.const, "required": self.required or None,
                "type": None if self.read is str else self.read}  # fmt: skip
        settings |= {name: value for name, value in more.items() if value is not None}
        parser.add_argument(*([self.name] if self.positional else self.names), **settings)

    def _action(self) -> Any:
        if self.switch:
            return "store_true"
        if self.pair:
            return argparse.BooleanOptionalAction
        return "append" if self.repeats else Once if self.once else self.action

    def value_of(self, given: Any) -> Any:
        """The value of what a program gives; None and False give the default. Raises as `read`."""
        if self.pair:
            return given
        if given is None or given is False:
            return self.default
        if self.switch:
            return True
        if given is True and self.const is not None:
            return self._read(str(self.const))
        if self.repeats or self.nargs in ("+", "*"):
            many: Any = [given] if isinstance(given, str | Path) else given
            return [self._read(each) for each in many]
        return self._read(given)

    def _read(self, given: Any) -> Any:
        # As a program calls it: argparse names flags itself.
        if given is True or isinstance(given, list | tuple):
            raise argparse.ArgumentTypeError(f"{self.name}: takes one value, not {given!r}")
        text = _text(given)
        try:
            value = self.read(text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{self.name}: {error}") from None
        if self.choices is not None and value not in self.choices:
            choices = ", ".join(map(repr, self.choices))
            raise argparse.ArgumentTypeError(f"{self.name}: {value!r} is none of {choices}")
        return value

    def words(self, given: Any) -> list[str]:
        """A value as words of a command line; none of None, and of False where that is the default."""
        if given is None or given is False:
            return [f"--no-{self.spelled[2:]}"] if self.pair and given is False else []
        if given is True:
            return [self.spelled]
        if isinstance(given, Sequence) and not isinstance(given, str):
            return [word for each in given for word in self.words(each)]
        text = _text(given)
        if self.longest is not None and len(text) > self.longest:
            text = f"<{len(text)} characters>"
        return [text] if self.positional else [f"{self.spelled}={text}"]


def _text(given: Any) -> str:
    if not isinstance(given, Mapping):
        return str(given)
    import json

    return json.dumps(given)


Name = Flag[str | None, str | None]
PathName = Flag[str | Path | None, Path | None]
# A path, or a name on the hub.
Place = Flag[str | Path | None, str | None]
Number = Flag[int | None, int | None]
# Also with a unit, such as "32k" or "8GiB".
Quantity = Flag[int | str | None, int | None]
Switch = Flag[bool, bool]


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Flags:
    """The flags of a command, or of a part of some; a subclass has those of its bases, and its own.

    `Class(**given)` is a spec: each flag's value is an attribute. `given`: what the caller gave.
    """

    flags: ClassVar[Mapping[str, Flag[Any, Any]]] = {}
    # The command, in messages.
    called: ClassVar[str] = ""
    given: ClassVar[Mapping[str, Any]]

    def __init_subclass__(cls, part: Part | None = None, group: Group | None = None) -> None:
        flags: dict[str, Flag[Any, Any]] = {}
        for base in cls.__bases__:
            flags |= getattr(base, "flags", {})
        for name, flag in vars(cls).items():
            if isinstance(flag, Flag):
                flag.part, flag.group = flag.part or part, flag.group or group
                flags[name] = flag
        cls.flags = flags

    def __init__(self, **given: Any) -> None:
        """Raises UsageError for a value that a flag doesn't take, and for a flag that there isn't."""
        if unknown := next((name for name in given if name not in self.flags), None):
            guess = did_you_mean(unknown, self.flags)
            raise UsageError(f"{self.called}: there is no keyword {unknown}{guess}")
        try:
            values = {n: flag.value_of(given.get(n)) for n, flag in self.flags.items()}
        except argparse.ArgumentTypeError as error:
            raise UsageError(str(error)) from None
        missing = [n for n, flag in self.flags.items() if flag.required and values[n] is None]
        if missing:
            raise UsageError(f"{self.called}: {' and '.join(missing)} must be given")
        self.__dict__.update(values, given=given)
        check_utf8(self.words())

    @classmethod
    def of(cls, **given: Any) -> Self:
        """The spec of flags of whatever kind, also those of the command line alone."""
        return cls(**given)

    @classmethod
    def parsed(cls, values: Mapping[str, Any]) -> Self:
        """The spec of flags that argparse has read."""
        spec = cls.__new__(cls)
        spec.__dict__.update(
            {n: values.get(n, flag.default) for n, flag in cls.flags.items()}, given={}
        )
        return spec

    def but(self, **values: Any) -> Self:
        """Returns this spec with other values, which are read already."""
        spec = type(self).__new__(type(self))
        spec.__dict__.update(self.__dict__ | values)
        return spec

    def words(self) -> list[str]:
        """The words of a command line that asks for what was given."""
        given = dict(self.given)
        if str(given.get("model", "")).startswith("-"):
            given = {"model_flag": given.pop("model"), **given}
        words = [self.called]
        for name, value in given.items():
            words += self.flags[name].words(value)
        return words

    @classmethod
    def add_to(cls, parser: "Parser") -> None:
        """Has a parser know all flags, each in its group."""
        parser.common = {name for f in cls.flags.values() if f.common for name in f.names}
        groups: dict[Group, argparse._ArgumentGroup] = {}
        for flag in cls.flags.values():
            group = flag.group
            if group is not None and group not in groups:
                groups[group] = parser.add_argument_group(group.title, group.about)
            flag.add_to(parser if group is None else groups[group])


class Parser(argparse.ArgumentParser):
    """argparse's parser, raising UsageError instead of exiting; each command has one of its own.

    - `common`: the names of common flags; `examples`: command lines.
    """

    common: Collection[str] = ()
    examples: Sequence[str] = ()

    def __init__(self, *, add_help: bool = True, **settings: Any) -> None:
        # A beginning would mean another flag as soon as there is one: `--base`, say, `--base-url`.
        super().__init__(add_help=False, allow_abbrev=False, **settings)
        if add_help:
            self.add_argument("-h", "--help", action=_Help)

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]  typeshed: three overloads
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """Parses as argparse does; leftover words are models, of a command that takes several."""
        # First, since argparse would take `-t` for the beginning of `-tp`.
        short = [w for w in takewhile("--".__ne__, args or ()) if not w.startswith("--")]
        self._check_spelling(short)
        try:
            parsed, rest = super().parse_known_args(args, namespace)
        except UsageError:
            # A flag spelled wrong may be the one that is missed.
            self._check_spelling(args or ())
            raise
        several = self.get_default("further_models") is not None
        if several and not any(word.startswith("-") for word in rest):
            parsed.further_models, rest = tuple(rest), []
        # Here, since the program's own parser knows no command's flags.
        if rest and self._subparsers is None:
            self._check_spelling(rest, " ".join(rest))
            hint = next(filter(None, map(self._text_hint, rest)), "")
            self.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        return parsed, rest

    def _check_spelling(self, words: Sequence[str], shown: str | None = None) -> None:
        """Raises UsageError, naming `shown` or else the flag, for the first flag among `words` that
        is none."""
        known = self._option_string_actions
        for word in words if self._subparsers is None else ():
            flag = word.partition("=")[0]
            if flag == "--":
                return
            if flag.startswith("--"):
                is_known = flag in known
            else:
                # Of short ones only another program's: `-c512` is one of ours, too.
                is_known = flag in known or flag[:1] != "-" or flag[1:] not in _ELSEWHERE
            if not is_known:
                self.error(f"unrecognized arguments: {shown or word}{did_you_mean(flag, known)}")

    def _text_hint(self, word: str) -> str:
        """The end of a message about a word too many: how a file is given that may be the text."""
        if "-f" not in self._option_string_actions or word.lower().endswith(".gguf"):
            return ""
        # Path.is_file raises for a name too long.
        return f"; give a text with -f {word}" if os.path.isfile(word) else ""  # noqa: PTH113

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def uncommon(self) -> list[argparse.Action]:
        """The flags that --help leaves to --help all; none where there are few."""
        flags = [a for a in self._actions if a.option_strings and not isinstance(a, _Help)]
        if len(flags) <= _FEW:
            return []
        return [a for a in flags if not any(name in self.common for name in a.option_strings)]

    def format_help(self, *, everything: bool = False) -> str:
        """Usage, a paragraph, flags (the common ones in a list, or all by groups) and examples."""
        left_out = [] if everything else self.uncommon()
        if left_out:
            formatter = self._get_formatter()
            formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
            formatter.add_text(self.description)
            formatter.start_section("most used")
            formatter.add_arguments(
                [a for a in self._actions if a not in left_out and not isinstance(a, _Help)]
            )
            formatter.end_section()
            text = formatter.format_help()
        else:
            text = super().format_help()
        if self.examples:
            text += "\nexamples:\n" + "".join(f"  {line}\n" for line in self.examples)
        if left_out:
            text += f"\n'{self.prog} --help all' shows the other {len(left_out)} flags\n"
        return text


class Prints(argparse.Action):
    """Prints a text of the parser and the flag's values, and ends the program."""

    def text(self, parser: argparse.ArgumentParser, values: Any) -> str:
        raise NotImplementedError

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        print(self.text(parser, values), end="")
        parser.exit()


class _Help(Prints):
    """Prints the help, with `all` that of every flag."""

    def __init__(self, option_strings: Sequence[str], dest: str):
        super().__init__(
            option_strings,
            argparse.SUPPRESS,
            nargs="?",
            default=argparse.SUPPRESS,
            choices=("all",),
            metavar="all",
            help="show this help and exit; all: with every flag",
        )

    def text(self, parser: argparse.ArgumentParser, values: Any) -> str:
        assert isinstance(parser, Parser)
        return parser.format_help(everything=values == "all")


# What llama.cpp, vLLM and others call a flag, where its letters are nearer to another of ours; of what
# needs no flag here, the reason.
_ELSEWHERE: dict[str, str] = {
    word: ours
    for ours, words in {
        "context-length": "ctx ctx-size ctx-len n-ctx seqlen seq-len max-length max-model-len",
        "limit": "max-windows windows num-chunks n-chunks max-chunks",
        "reference": "base base-model baseline kl-divergence-base original ref-model reference-model",
        "model": "m model-path",
        "not needed: --device runs every layer": "ngl gpu-layers n-gpu-layers",
        "set OMP_NUM_THREADS=N instead": "t threads n-threads",
    }.items()
    for word in words.split()
}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about a word that is not known: the one that has its meaning, or the nearest
    one, or nothing."""
    # Not at the top: difflib is no part of a command that was spelled right.
    from difflib import get_close_matches

    known, called = list(known), _ELSEWHERE.get(_bare(word))
    if called and " " in called:
        return f"; {called}"
    near = [k for k in known if _bare(k) == called] or get_close_matches(word, known, 1, 0.6)
    return "".join(f"; did you mean {name}?" for name in near)


def _bare(name: str) -> str:
    """A flag's or a keyword's name as both have it."""
    return name.lstrip("-").replace("_", "-")


class Once(argparse.Action):
    """Stores a value, and refuses a second one: of two texts one would be dropped without a word."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            raise argparse.ArgumentError(self, "is given twice")
        setattr(namespace, self.dest, values)


def check_least(least: int, spec: Flags, *names: str) -> None:
    """Raises UsageError where one of these flags is given and below `least`."""
    for name in names:
        if (value := getattr(spec, name)) is not None and value < least:
            raise UsageError(f"{spec.flags[name].spelled} {value}: must be at least {least}")


def check_utf8(words: Sequence[str]) -> None:
    """Raises UsageError for a name that Python can open, and the libraries' Rust and C++ can't."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{word}: is not UTF-8, as the libraries that read and write files want it: rename "
                "it, or give a link to it"
            ) from None
