"""What the commands share that score a model and leave a run: flags, the request, the output."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.flags.arguments import (
    add_model,
    add_text,
    model_of,
    reads_model,
)
from scoremode.cli.flags.devices import add_devices
from scoremode.cli.flags.engines import ENGINES, add_tuning, add_vllm, torch_options, vllm_options
from scoremode.cli.flags.kept_text import has_kept_text, text_and_protocol
from scoremode.errors import UsageError

if TYPE_CHECKING:
    from scoremode.runs.measure import Request, Result

__all__ = ["add_run", "measured", "notifier", "request_of"]


def add_run(
    parser: argparse.ArgumentParser, *, output: Path | None, output_help: str
) -> "argparse._ArgumentGroup":
    """All flags of a run; returns the group of its output, for a command's own."""
    add_model(parser, required=True)
    add_text(parser)
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--engine",
        choices=ENGINES,
        default="torch",
        help="torch: scoremode's own (default); vllm: stock vLLM with scoremode's plugin",
    )
    add_tuning(engine)
    add_devices(engine)
    add_vllm(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o",
        "--output-path",
        type=Path,
        default=output,
        metavar="DIR",
        help=output_help,
    )
    group.add_argument(
        "--resume", action="store_true", help="go on with a killed run of this very command"
    )
    group.add_argument("--json", action="store_true", help="the record on stdout")
    group.add_argument("-v", "--verbose", action="store_true", help="the table with all details")
    group.add_argument("--quiet", action="store_true", help="no progress, no table")
    return group


def request_of(args: argparse.Namespace, command: tuple[str, ...], **more: Any) -> "Request":
    """The run that the flags ask for; `more` are fields of `Request`. Raises ScoremodeError."""
    model = model_of(args)
    assert model is not None
    if args.output_path is None:
        raise UsageError("no folder to write to: give -o DIR")
    from scoremode.results.folders.output import check_folder

    check_folder(args.output_path)
    options = torch_options(args) if args.engine == "torch" else vllm_options(args)
    if args.ranks is not None:
        options = replace(options, device=args.ranks.take_device(args.device))
    from scoremode.runs.measure import Request
    from scoremode.startup.imports import libraries

    reads_model(args, model)
    from_hub = args.text is args.file is args.dataset_file is None and not has_kept_text(args)
    if args.engine == "torch" and from_hub:
        # The hub takes its time. A text that lies here doesn't, nor should a wrong name of one.
        libraries.modules("torch")
    if args.gpu_memory_utilization is not None and (args.device or "cuda")[:3] == "cpu":
        notifier(args)("--gpu-memory-utilization changes nothing on a CPU")
    corpus, protocol = text_and_protocol(args)
    return Request(
        model=model,
        corpus=corpus,
        protocol=protocol,
        options=options,
        output=args.output_path,
        revision=args.revision,
        tokenizer=args.tokenizer,
        quantization=args.quantization if args.engine == "torch" else None,
        resume=args.resume,
        command=command,
        ranks=args.ranks,
        **more,
    )


def measured(request: "Request", args: argparse.Namespace) -> "Result":
    """`measure`, with progress and notices on stderr; on all ranks but the first the command's end."""
    from scoremode.runs.measure import follow, measure

    ranks = request.ranks
    if ranks is not None and not ranks.is_first:
        follow(request)
        sys.exit(0)
    result = measure(
        request, progress=args.screen.progress, notify=args.screen.line, clock=args.clock
    )
    args.screen.clear()
    if ranks is not None:
        ranks.end()
    return result


def notifier(args: argparse.Namespace) -> Callable[[str], None]:
    """Takes a line for the user to stderr, or nowhere with --quiet."""
    return args.screen.line
