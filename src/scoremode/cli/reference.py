"""`scoremode reference`: a base model's predictions, kept to compare others with, or exported."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scoremode.cli.flags.arguments import model_of
from scoremode.cli.flags.devices import on_devices
from scoremode.cli.flags.parser import flag_of
from scoremode.cli.flags.run import add_run, measured, print_run, request_of
from scoremode.errors import UsageError
from scoremode.lib.json import print_json

if TYPE_CHECKING:
    from scoremode.reference.stored import StoredReference
    from scoremode.runs.request import Request

__all__ = ["add_parser"]

# Flags that an export takes by itself, without a run; and what is no flag.
_EXPORTING = {"model", "model_flag", "export_llama_cpp", "export_nats", "device", "form",
              "chosen_form", "quiet", "verbose", "screen", "clock"}  # fmt: skip


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "reference",
        usage="scoremode reference BASE -o DIR [flags]",
        help="keep a base model's predictions, for scoremode kld",
        description="Scores a base model and keeps its final hidden states and its head, from which "
        "scoremode kld makes the base's logits again, exactly: a twentieth of what 16-bit logits take.",
    )
    add_run(
        parser,
        output=None,
        output_help="the reference's own folder, which must not exist yet",
        add_groups=partial(_add_groups, parser),
    )
    parser.set_defaults(
        run=on_devices(run), request_of=_request_of, is_shared=True, default_of=parser.get_default
    )


def _add_groups(parser: argparse.ArgumentParser) -> None:
    kept = parser.add_argument_group("what is kept")
    kept.add_argument(
        "--head",
        choices=("stored", "checkpoint"),
        default="stored",
        help="where the base's head is kept: in DIR (default), or left in its checkpoint, which must "
        "then stay where it is",
    )
    export = parser.add_argument_group("export (protocol llama.cpp only)")
    export.add_argument(
        "--export-llama-cpp",
        type=Path,
        metavar="FILE",
        help="write what llama-perplexity --kl-divergence reads as well; with a finished reference as "
        "MODEL nothing is run",
    )
    export.add_argument(
        "--export-nats",
        type=int,
        choices=(16, 24),
        help="how far FILE reaches below each row's largest entry (default: 16, as llama.cpp's; 24 is "
        "ik_llama.cpp's)",
    )


def _request_of(args: argparse.Namespace, command: tuple[str, ...]) -> "Request":
    return request_of(args, command, keep=args.head)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    if args.export_nats is not None and args.export_llama_cpp is None:
        raise UsageError(f"--export-nats {args.export_nats}: needs --export-llama-cpp FILE")
    from scoremode.reference.stored import StoredReference, is_run

    model = model_of(args)
    folder = Path(model)
    if is_run(folder):
        _check_only_exports(args, folder)
        kept = StoredReference(folder)
        _export(kept, args)
        if args.form == "json":
            print_json(kept.record)
        return 0
    request = _request_of(args, command)
    if args.export_llama_cpp is not None:
        from scoremode.llama_cpp.export import check_exportable

        check_exportable(request.protocol)
        if not args.export_llama_cpp.parent.is_dir():
            raise UsageError(f"--export-llama-cpp {args.export_llama_cpp}: is in no folder")
    result = measured(request, args)
    if args.export_llama_cpp is not None:
        _export(StoredReference(result.folder), args)
    print_run(args, result.record, result.folder)
    return 0


def _check_only_exports(args: argparse.Namespace, folder: Path) -> None:
    """Raises UsageError for a finished reference with anything that is of a run."""
    if args.ranks is not None:
        raise UsageError(f"{folder}: is a run already, and its export runs in one process")
    if args.export_llama_cpp is None:
        raise UsageError(f"{folder}: is a run already: --export-llama-cpp FILE exports a reference")
    for name, value in vars(args).items():
        if name not in _EXPORTING and value != args.default_of(name):
            raise UsageError(
                f"{flag_of(name)} {value}: {folder} is a run already, and its export takes "
                "no flag of another"
            )


def _export(kept: "StoredReference", args: argparse.Namespace) -> None:
    from scoremode.engines.torch.device import choose_device
    from scoremode.llama_cpp.export import export_llama_cpp

    file = args.export_llama_cpp
    args.screen.words["score"] = f"writing {file}"
    args.clock.begin("score")
    export_llama_cpp(
        kept,
        file,
        nats=args.export_nats or 16,
        device=choose_device(args.device, None, None).torch,
        progress=args.screen.progress,
    )
    args.screen.clear()
    args.screen.line(
        f"{file}: {file.stat().st_size / 1e9:.3g} GB for llama-perplexity --kl-divergence"
    )
