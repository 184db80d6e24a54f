"""The command line: `scoremode COMMAND …`. One file a command; nothing heavy is imported here."""

import argparse
import sys
from collections.abc import Sequence

from scoremode import __version__
from scoremode.cli import demo, inspect, plan, ppl, verify
from scoremode.errors import ScoremodeError

__all__ = ["main"]

_COMMANDS = (ppl, plan, inspect, verify, demo)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Exit codes: 0 done, 1 failed, 2 usage, 3 measured but invalid,
    or engines that disagree, 130 interrupted."""
    argv = _hyphens(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(argv)
    try:
        code = args.run(args, ("scoremode", *argv))
        sys.stdout.flush()
        return code
    except ScoremodeError as error:
        print(f"scoremode: error: {error}", file=sys.stderr)
        return error.exit_code
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scoremode",
        description="Exact perplexity of quantized language models, on the quantized weights.",
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
