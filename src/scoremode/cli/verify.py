"""`scoremode verify`: do the engines agree with a float32 reference, and with each other?"""

import argparse

from scoremode.cli.flags.arguments import (
    add_model,
    add_text,
    corpus_of,
    model_of,
    protocol_of,
    reads_model,
)
from scoremode.cli.flags.engines import ENGINES, add_tuning, options_of, reference_options
from scoremode.cli.flags.forms import add_form, print_result
from scoremode.cli.flags.parser import check_least
from scoremode.errors import InvalidMeasurement, UsageError

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "verify",
        usage="scoremode verify MODEL [flags]",
        help="engines against a float32 reference, and against each other",
        description="Scores sampled windows with each engine and with a float32 reference (the torch "
        "engine in float32, its row sums in float64), and says whether the differences are those of "
        "rounding. Exit code 0: all engines agree; 3: some don't.",
    )
    first = parser.add_argument_group("most used")
    add_model(parser, first)
    first.add_argument(
        "--engines",
        default="torch",
        metavar="NAMES",
        help="torch (default), vllm, or torch,vllm; a flag for one of them goes to that one, and "
        "the torch engine's flags but --dtype to the reference as well",
    )
    first.add_argument(
        "--windows", type=int, default=8, metavar="N", help="windows to draw (default: 8)"
    )
    first.add_argument(
        "--seed", type=int, default=0, metavar="S", help="seed of the draw of windows (default: 0)"
    )
    add_text(parser, first)
    add_form(first, "all of it")
    first.add_argument("--quiet", action="store_true", help="print neither progress nor a table")
    add_tuning(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    model = model_of(args)
    names = _names(args.engines)
    check_least(1, args, "windows")
    check_least(0, args, "seed")
    options, reference = options_of(args, names), reference_options(args)
    from scoremode.report.checks import verify_document
    from scoremode.runs.rescore.verify import VerifyRequest, verify

    reads_model(args, model)
    request = VerifyRequest(
        model=model,
        corpus=corpus_of(args),
        protocol=protocol_of(args),
        engines=options,
        reference=reference,
        windows=args.windows,
        seed=args.seed,
        revision=args.revision,
        tokenizer=args.tokenizer,
        quantization=args.quantization,
        command=command,
    )
    screen = args.screen
    result = verify(request, progress=screen.progress, notify=screen.line, tell=screen.stage)
    print_result(args, result, verify_document)
    return 0 if result["agree"] else InvalidMeasurement.exit_code


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ENGINES:
            raise UsageError(f"--engines {text}: {name or 'an empty name'} is not one of "
                             f"{', '.join(ENGINES)}")  # fmt: skip
        if names.count(name) > 1:
            raise UsageError(f"--engines {text}: {name} is named twice")
    return names
