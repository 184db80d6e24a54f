"""The command line: `scoremode COMMAND …`. One file a command; nothing heavy is imported here."""

import argparse
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from scoremode import __version__
from scoremode.cli import compare, demo, inspect, kld, plan, ppl, reference, show, verify
from scoremode.cli.devices import parsed
from scoremode.cli.suggesting import suggestion
from scoremode.errors import ScoremodeError

__all__ = ["main"]

_COMMANDS = (ppl, kld, reference, show, compare, plan, inspect, verify, demo)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Exit codes: 0 done, 1 failed, 2 usage, 3 measured but invalid, or
    engines that disagree, 4 a gate not met, 130 interrupted, 143 terminated."""
    argv = _hyphens(sys.argv[1:] if argv is None else argv)
    try:
        args = parsed(lambda: _parser().parse_args(argv))
        with _ended_by_sigterm():
            try:
                code = args.run(args, ("scoremode", *argv))
            finally:
                _settle_imports()
        sys.stdout.flush()
        return code
    except ScoremodeError as error:
        print(f"scoremode: error: {error}{suggestion(error, argv)}", file=sys.stderr)
        return error.exit_code
    except _Terminated:
        print("scoremode: terminated", file=sys.stderr)
        return 143
    except KeyboardInterrupt:
        print("scoremode: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        sys.stderr.close()
        return 0
    except OSError as error:
        # Files of ours have their own errors: this is the output's, or the system's.
        print(f"scoremode: error: {error}", file=sys.stderr)
        return 1


def _settle_imports() -> None:
    """No interpreter may end in the middle of an import. Nothing was begun without this module."""
    if module := sys.modules.get("scoremode.checkpoint.libraries"):
        module.libraries.settle()


class _Terminated(KeyboardInterrupt):
    """SIGTERM: ends a command as Ctrl-C does, so that whatever it started is ended too."""


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: Any) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scoremode",
        description="Exact perplexity and KL divergence of quantized language models, on the "
        "quantized weights.",
        epilog="'scoremode COMMAND --help' tells a command's flags.",
    )
    parser.add_argument("--version", action="version", version=f"scoremode {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


def _hyphens(argv: Sequence[str]) -> list[str]:
    """Flags with underscores work as with hyphens; values stay as they are."""
    result = []
    for word in argv:
        flag, equals, value = word.partition("=")
        result.append(flag.replace("_", "-") + equals + value if word.startswith("--") else word)
    return result
