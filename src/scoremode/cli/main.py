"""The command line: `scoremode COMMAND …`. One file a command; nothing heavy is imported here."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from scoremode.cli.flags.devices import is_follower, parsed
from scoremode.cli.flags.parser import Parser
from scoremode.cli.flags.suggestion import suggestion
from scoremode.cli.process.endings import ending
from scoremode.cli.process.screen import shown
from scoremode.cli.version import VersionAction
from scoremode.errors import ScoremodeError, UsageError

__all__ = ["command", "command_parser", "main", "parsed_command", "settle_imports"]

# Modules of this folder, in the order of the help. Only that of the command that is given is imported.
_COMMANDS = (
    "ppl",
    "kld",
    "attribute",
    "tasks",
    "merge",
    "sweep",
    "reference",
    "generate",
    "show",
    "compare",
    "report",
    "status",
    "check",
    "card",
    "plan",
    "inspect",
    "verify",
    "demo",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command as a guest in this process. Exit codes: 0 done, 1 failed, 2 usage, 3 measured
    but invalid, or engines that disagree, 4 a gate not met, 130 interrupted, 143 terminated."""
    return ending(lambda: command(sys.argv[1:] if argv is None else argv))


def command(argv: Sequence[str]) -> int:
    """`main` without an end: raises whatever escapes."""
    argv = _hyphens(argv)
    args = parsed(lambda: parsed_command(argv))
    try:
        with shown(args, hidden=is_follower(args)):
            return args.run(args, ("scoremode", *argv))
    except ScoremodeError as error:
        if words := suggestion(error, argv):
            raise type(error)(f"{error}{words}") from None
        raise
    finally:
        settle_imports()


def parsed_command(argv: Sequence[str]) -> argparse.Namespace:
    """The flags of a command line without the program's name. Raises UsageError, and SystemExit where
    help was asked for."""
    _check_utf8(argv)
    names = argv[:1] if argv and argv[0] in _COMMANDS else _COMMANDS
    return _parser(names).parse_args(argv)


def command_parser(name: str) -> argparse.ArgumentParser:
    """The parser of one command's flags."""
    (commands,) = (a for a in _parser([name])._actions if isinstance(a, argparse._SubParsersAction))
    return commands.choices[name]


def settle_imports() -> None:
    """Waits for an import in another thread: no interpreter may end in the middle of one. Without that
    module nothing was begun."""
    if module := sys.modules.get("scoremode.startup.warmup"):
        module.libraries.settle()


def _parser(names: Sequence[str] = _COMMANDS) -> argparse.ArgumentParser:
    parser = Parser(
        prog="scoremode",
        description="Exact perplexity and KL divergence of quantized language models, on the "
        "quantized weights.",
        epilog="'scoremode COMMAND --help' tells a command's flags.",
    )
    parser.add_argument(
        "--version",
        action=VersionAction,
        help="show the version and exit; --version -v: all that a bug report needs",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in names:
        import_module(f"scoremode.cli.{name}").add_parser(commands)
    return parser


def _hyphens(argv: Sequence[str]) -> list[str]:
    """Flags with underscores work as with hyphens; values stay as they are."""
    result = []
    for word in argv:
        flag, equals, value = word.partition("=")
        result.append(flag.replace("_", "-") + equals + value if word.startswith("--") else word)
    return result


def _check_utf8(argv: Sequence[str]) -> None:
    """Raises UsageError for a name that Python can open, and the libraries' Rust and C++ can't."""
    for word in argv:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{word}: is not UTF-8, as the libraries that read and write files want it: rename "
                "it, or give a link to it"
            ) from None
