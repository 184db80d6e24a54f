"""`scoremode reference`: a base model's predictions, kept to compare others with."""

import argparse

from scoremode.cli.running import add_run, measured, print_json, request_of

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "reference",
        help="keep a base model's predictions, for scoremode kld",
        description="Scores a base model and keeps its final hidden states and its head, from which "
        "scoremode kld makes the base's logits again, exactly: a twentieth of what 16-bit logits take.",
    )
    group = add_run(
        parser, output=None, output_help="the reference's own folder, which must not exist yet"
    )
    group.add_argument(
        "--head",
        choices=("stored", "checkpoint"),
        default="stored",
        help="where its head is kept: in DIR (default), or left in the base's checkpoint, which must "
        "then stay where it is",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    result = measured(request_of(args, command, keep=args.head), args)
    if args.json:
        print_json(result.record)
    elif not args.quiet:
        from scoremode.report.table import reference_table

        print(reference_table(result.record, result.folder))
    return 0
