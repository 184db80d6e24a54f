"""`scoremode plan`: windows and counts of a protocol on a text, with no model loaded."""

import argparse

from scoremode.cli.flags.arguments import add_model, add_text, corpus_of, named_model, protocol_of
from scoremode.cli.flags.forms import add_form, print_result
from scoremode.cli.flags.stopping import add_seed, row_seed

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "plan",
        usage="scoremode plan MODEL [flags]",
        help="windows and counts, no model",
        description="Prints what a protocol makes of a text: windows, targets, BOS, hashes. Needs a "
        "model's config and tokenizer, or --tokenizer alone; loads no weights.",
    )
    first = parser.add_argument_group("most used")
    add_model(parser, first)
    add_text(parser, first)
    add_seed(parser.add_argument_group("drawn rows"))
    add_form(first, "the plan")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    from scoremode.checkpoint.model_files import resolve_model
    from scoremode.report.inspection import plan_document
    from scoremode.runs.planning import plan_text

    model = named_model(args)
    corpus = corpus_of(args, row_seed(args))
    args.clock.begin("plan")
    files = None if model is None else resolve_model(model, args.revision)
    planned = plan_text(corpus, protocol_of(args), model=files, tokenizer=args.tokenizer)
    for note in planned.notes:
        args.screen.line(note)
    print_result(args, planned.to_json(corpus), plan_document)
    return 0
