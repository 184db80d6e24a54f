"""`scoremode attribute`: which part of a quantized model makes how much of its damage."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scoremode.cli.flags.arguments import Group
from scoremode.cli.flags.forms import print_result
from scoremode.cli.flags.mixing import add_mixing, swaps_in
from scoremode.cli.flags.run import add_run, request_of
from scoremode.errors import UsageError

if TYPE_CHECKING:
    from scoremode.runs.request import Request

__all__ = ["add_parser"]

_WINDOWS = 16


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "attribute",
        usage="scoremode attribute MODEL --reference BASE [flags]",
        help="which layers, modules or kinds of a model make how much of its KL divergence",
        description="Compares a model with its base, and then mixes the two: for each part the base "
        "with that part of the model (alone), and the model with that part of the base (how far KLD "
        "falls). What lies before a part is computed once for all of them.",
    )
    add_run(
        parser,
        output=Path("runs"),
        output_help="where runs go, a folder each, with the attribution in it (default: runs)",
        add_first=_add_first,
        add_groups=partial(_add_groups, parser),
    )
    parser.set_defaults(run=run, limit=_WINDOWS, ranks=None, reference_revision=None)


def _add_first(first: Group) -> None:
    first.add_argument(
        "--reference",
        required=True,
        metavar="BASE",
        help="the base: a model's folder, .gguf file or hub id, of which weights are taken",
    )
    first.add_argument(
        "--by",
        choices=("layer", "module", "kind"),
        default="layer",
        help="what is one part: a decoder layer with all it has (default), a linear or a layer's "
        "experts, or all linears of a name",
    )
    first.add_argument(
        "--alone",
        action="store_true",
        help="leave out what needs the model's own states: half the time",
    )
    first.add_argument(
        "--windows",
        dest="limit",
        type=int,
        metavar="N",
        help=f"the first N windows of the text alone (default: {_WINDOWS})",
    )


def _add_groups(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "recipe",
        "The format of each part, out of several quants of BASE and BASE itself: the choice of least "
        "predicted KLD within a size, and what it measures.",
    )
    group.add_argument(
        "--budget",
        type=float,
        metavar="BITS",
        help="stored bits per weight of all parts that any of the quants quantizes",
    )
    group.add_argument(
        "--from",
        dest="others",
        nargs="+",
        default=[],
        metavar="QUANT",
        help="further quants to choose from, beside MODEL",
    )
    group.add_argument(
        "--write-recipe",
        type=Path,
        metavar="FILE",
        help="write the choice as llm-compressor's recipe (YAML)",
    )
    add_mixing(parser, with_base=True)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    _check(args)
    request = request_of(
        args, command, reference=args.reference, swaps=swaps_in(args), reference_revision=None
    )
    if args.budget is not None:
        return _search(args, request)
    from scoremode.report.attribution import attribution_document
    from scoremode.runs.attribution.attribute import DIRECTIONS, attribute

    screen = args.screen
    found = attribute(
        request,
        args.by,
        progress=screen.progress,
        notify=screen.line,
        clock=args.clock,
        directions=["alone"] if args.alone else DIRECTIONS,
    )
    screen.clear()
    print_result(
        args,
        found.attribution,
        lambda value: attribution_document(value, found.record, found.folder),
    )
    return 0


def _search(args: argparse.Namespace, request: "Request") -> int:
    from scoremode.report.attribution import recipe_document
    from scoremode.runs.attribution.recipe import search

    screen = args.screen
    found = search(
        request,
        args.others,
        args.budget,
        args.by,
        write_recipe=args.write_recipe,
        progress=screen.progress,
        notify=screen.line,
        tell=lambda name: screen.stage("attribute", name),
    )
    screen.clear()
    print_result(args, found.value, lambda value: recipe_document(value, found.folder))
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raises UsageError for flags of a run that an attribution does not have."""
    refused = {
        "--engine vllm": args.engine != "torch",
        f"--devices {args.devices}": args.devices is not None,
        f"--shard {args.shard}": args.shard is not None,
        f"--stop-when {args.stop_when}": args.stop_when is not None,
        f"--conversations {args.conversations}": args.conversations is not None,
    }
    for flag, given in refused.items():
        if given:
            raise UsageError(f"{flag}: is not for attribute, which mixes two models in one process")
    if args.budget is None:
        given = {"--from": next(iter(args.others), None), "--write-recipe": args.write_recipe}
        for flag, value in given.items():
            if value is not None:
                raise UsageError(f"{flag} {value}: is of a recipe: give its size by --budget BITS")
    elif args.alone:
        raise UsageError(
            "--alone: changes nothing of a recipe, which --budget makes of parts alone"
        )
    if args.budget is not None and not 0 < args.budget < float("inf"):
        raise UsageError(f"--budget {args.budget:g}: must be a positive number of bits per weight")
