"""Parts shared by the commands that score a model and leave a run: flags, the request, the output."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.flags.arguments import Group, add_model, add_text, model_of, reads_model
from scoremode.cli.flags.calibration import add_calibration, calibration_of
from scoremode.cli.flags.devices import add_devices
from scoremode.cli.flags.engines import ENGINES, add_tuning, torch_options, vllm_options
from scoremode.cli.flags.forms import add_form, print_result
from scoremode.cli.flags.kept_text import has_kept_text, text_and_protocol
from scoremode.cli.flags.sharding import add_sharding, shard_of
from scoremode.cli.flags.stopping import add_stopping
from scoremode.errors import UsageError

if TYPE_CHECKING:
    from scoremode.checkpoint.model_files import ModelFiles
    from scoremode.runs.request import Request, Result

__all__ = ["add_run", "measured", "print_run", "request_of"]


def add_run(
    parser: argparse.ArgumentParser,
    *,
    output: Path | None,
    output_help: str,
    add_first: Callable[[Group], None] = lambda _: None,
    add_groups: Callable[[], None] = lambda: None,
) -> None:
    """All flags of a run: in the first group those that most runs need, in the last ones what only
    one engine has. `add_first` adds a command's own to the first group, `add_groups` the groups that
    come behind it."""
    first = parser.add_argument_group("most used")
    add_groups()
    add_model(parser, first)
    add_first(first)
    add_text(parser, first)
    add_calibration(parser)
    first.add_argument(
        "-o", "--output-path", type=Path, default=output, metavar="DIR", help=output_help
    )
    first.add_argument(
        "--resume", action="store_true", help="go on with a killed run of this very command"
    )
    first.add_argument("-v", "--verbose", action="store_true", help="print the table in full")
    add_form(first, "the record")
    first.add_argument("--quiet", action="store_true", help="print neither progress nor a table")
    first.add_argument(
        "--engine",
        choices=ENGINES,
        default="torch",
        help="torch: scoremode's own (default); vllm: stock vLLM with scoremode's plugin",
    )
    add_devices(first)
    parser.add_argument_group("what is written").add_argument(
        "--token-text",
        action="store_true",
        help="write each target's text to scores.parquet, in a column token_text",
    )
    add_stopping(parser)
    add_sharding(parser)
    add_tuning(parser)


def request_of(args: argparse.Namespace, command: tuple[str, ...], **more: Any) -> "Request":
    """The run that the flags ask for; `more` are fields of `Request`. Raises ScoremodeError."""
    model = model_of(args)
    if args.output_path is None:
        raise UsageError("no folder to write to: give -o DIR")
    from scoremode.results.folders.paths import check_folder

    check_folder(args.output_path)
    options = torch_options(args) if args.engine == "torch" else vllm_options(args)
    if args.ranks is not None:
        options = replace(options, device=args.ranks.take_device(args.device))
    from scoremode.runs.request import Request
    from scoremode.startup.warmup import libraries

    reads_model(args, model)
    from_hub = args.text is args.file is args.dataset_file is None and not has_kept_text(args)
    if args.engine == "torch" and from_hub:
        # The hub takes its time. A text that lies here doesn't, nor should a wrong name of one.
        libraries.modules("torch")
    found = _found_on_hub(model, args.revision) if from_hub else model
    if (base := more.get("reference")) is not None:
        named = base, more["reference_revision"]
        more["reference"] = found if named == (model, args.revision) else _found_on_hub(*named)
    if args.gpu_memory_utilization is not None and (args.device or "cuda")[:3] == "cpu":
        args.screen.line("--gpu-memory-utilization changes nothing on a CPU")
    corpus, protocol = text_and_protocol(args)
    calibration = calibration_of(args)
    return Request(
        model=found,
        corpus=corpus,
        protocol=protocol,
        options=options,
        output=args.output_path,
        revision=args.revision,
        tokenizer=args.tokenizer,
        quantization=args.quantization if args.engine == "torch" else None,
        resume=args.resume,
        token_text=args.token_text,
        shard=shard_of(args),
        calibration=calibration,
        command=command,
        ranks=args.ranks,
        **more,
    )


def _found_on_hub(model: str, revision: str | None) -> "str | ModelFiles":
    """The files of a model or a base of the hub, found before a data set is asked for there: a
    misspelled name is the model's error, and without a network not the data set's, and a reference
    whose folder is misspelled brings its own text. Others as they are named. Raises CheckpointError."""
    from scoremode.checkpoint.gguf.names import named_gguf
    from scoremode.checkpoint.model_files import resolve_model

    is_here = os.path.exists(model)  # noqa: PTH110  Path.exists raises for a name too long
    # A pattern names several, and of a GGUF file nothing but all of it is fetched.
    if is_here or any(c in model for c in "*?[") or named_gguf(model):
        return model
    return resolve_model(model, revision)


def measured(request: "Request", args: argparse.Namespace) -> "Result":
    """`measure`, with progress and notices on stderr; on all ranks but the first the command's end."""
    from scoremode.runs.measure import follow, measure

    ranks = request.ranks
    if ranks is not None and not ranks.is_first:
        follow(request)
        ranks.depart()
        sys.exit(0)
    result = measure(
        request,
        progress=args.screen.progress,
        notify=args.screen.line,
        clock=args.clock,
        watch=args.screen.estimate if args.screen.is_terminal else None,
    )
    args.screen.clear()
    if ranks is not None:
        ranks.end()
    return result


def print_run(
    args: argparse.Namespace, record: Mapping[str, Any], folder: Path, *, worst: bool = False
) -> None:
    """Prints a run's record with --json, else, but with --quiet, its table."""
    from scoremode.report.run import finished_document

    document = partial(finished_document, folder=folder, verbose=args.verbose, worst=worst)
    print_result(args, record, document)
