"""The command line: `scoremode COMMAND …`. One file a command; nothing heavy is imported here."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from scoremode.cli.command import Command
from scoremode.cli.devices import parsed, run_on_devices
from scoremode.cli.process import ending
from scoremode.cli.screen import shown
from scoremode.cli.version import VersionAction
from scoremode.errors import ScoremodeError
from scoremode.spec.flag import Parser, check_utf8

__all__ = [
    "COMMANDS",
    "command",
    "command_class",
    "command_parser",
    "main",
    "parsed_command",
    "settle_imports",
]

# A suggested command of more characters is nothing to copy.
_LONGEST = 600
# Modules of this folder, in the order of the help; each has a class of that name. Only that of the
# command that is given is imported.
COMMANDS = (
    "ppl", "kld", "attribute", "tasks", "merge", "sweep", "reference", "generate", "show", "compare",
    "report", "status", "check", "card", "plan", "inspect", "verify", "demo",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command as a guest in this process. Exit codes: 0 done, 1 failed, 2 usage, 3 measured
    but invalid, or engines that disagree, 4 a gate not met, 130 interrupted, 143 terminated."""
    return ending(lambda: command(sys.argv[1:] if argv is None else argv))


def command(argv: Sequence[str]) -> int:
    """`main` without an end: raises whatever escapes."""
    argv = _hyphens(argv)
    spec, place = parsed(lambda: parsed_command(argv))
    hidden = getattr(spec, "quiet", False) or (place is not None and not place.is_first)
    try:
        with shown(("scoremode", *argv), hidden=hidden) as session:
            session.place = place
            return run_on_devices(spec, session)
    except ScoremodeError as error:
        if words := _suggestion(error, argv):
            raise type(error)(f"{error}{words}") from None
        raise
    finally:
        settle_imports()


def parsed_command(argv: Sequence[str]) -> Command:
    """Reads a command line without the program's name. Raises UsageError, and SystemExit where
    help was asked for."""
    check_utf8(argv)
    names = argv[:1] if argv and argv[0] in COMMANDS else COMMANDS
    values = vars(_parser(names).parse_args(argv))
    return command_class(values["command"]).parsed(values)


def command_class(name: str) -> type[Command]:
    return getattr(import_module(f"scoremode.cli.{name}"), name.capitalize())


def command_parser(name: str) -> argparse.ArgumentParser:
    """The parser of one command's flags."""
    (commands,) = (a for a in _parser([name])._actions if isinstance(a, argparse._SubParsersAction))
    return commands.choices[name]


def settle_imports() -> None:
    """Waits for an import in another thread: no interpreter may end in the middle of one. Without that
    module nothing was begun."""
    if module := sys.modules.get("scoremode.startup.warmup"):
        module.libraries.settle()


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    """The program's parser, with these commands."""
    parser = Parser(
        prog="scoremode",
        description="Exact perplexity and KL divergence of quantized language models, on the "
        "quantized weights.",
        epilog="'scoremode COMMAND --help' tells a command's flags.",
    )
    parser.add_argument(
        "--version",
        action=VersionAction,
        help="show the version and exit; --version -v: everything that a bug report needs",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for command in map(command_class, names):
        flags = commands.add_parser(
            command.called, usage=command.usage, help=command.summary, description=command.about
        )
        command.add_to(flags)
    return parser


def _hyphens(argv: Sequence[str]) -> list[str]:
    """Flags with underscores work as with hyphens; values stay as they are."""
    result = []
    for word in argv:
        flag, equals, value = word.partition("=")
        result.append(flag.replace("_", "-") + equals + value if word.startswith("--") else word)
    return result


def _suggestion(error: ScoremodeError, argv: Sequence[str]) -> str:
    """The end of an error's line: nothing, or the command with the flags it names, to be copied."""
    if not error.instead:
        return ""
    import shlex

    command = shlex.join(["scoremode", *_corrected(argv, error.instead)])
    # A text of pages on the command line is nothing to copy.
    return f"; such as: {command}" if command.isprintable() and len(command) <= _LONGEST else ""


def _corrected(argv: Sequence[str], instead: Mapping[str, str]) -> list[str]:
    names = {**{flag: flag for flag in instead}, "-c": "--context-length"}
    kept, words = [], iter(argv)
    for word in words:
        flag, equals, _ = word.partition("=")
        if names.get(flag) in instead:
            if not equals:
                next(words, None)
        else:
            kept.append(word)
    return [*kept, *(word for flag, value in instead.items() for word in (flag, value))]
