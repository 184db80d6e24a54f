"""`scoremode ppl`: the perplexity of a model, with its record."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scoremode.cli.arguments import (
    add_model,
    add_text,
    corpus_of,
    model_of,
    protocol_of,
)
from scoremode.cli.engines import add_tuning, add_vllm, torch_options, vllm_options

__all__ = ["add_parser", "progress_bar"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "ppl",
        help="perplexity of a model",
        description="Measures the exact perplexity of a model's quantized weights under a protocol.",
    )
    add_model(parser, required=True)
    add_text(parser)
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--engine",
        choices=("torch", "vllm"),
        default="torch",
        help="torch: scoremode's own (default); vllm: stock vLLM with scoremode's plugin",
    )
    add_tuning(engine)
    add_vllm(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "-o", "--output-path", type=Path, default=Path("runs"), metavar="DIR", help="default: runs"
    )
    output.add_argument(
        "--resume", action="store_true", help="go on with a killed run of this very command"
    )
    output.add_argument("--json", action="store_true", help="the record on stdout")
    output.add_argument("--quiet", action="store_true", help="no progress, no table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    model = model_of(args)
    assert model is not None
    options = torch_options(args) if args.engine == "torch" else vllm_options(args)
    from scoremode.measure import Request, measure
    from scoremode.report.table import run_table

    def notify(line: str) -> None:
        if not args.quiet:
            print(f"scoremode: {line}", file=sys.stderr)

    if args.gpu_memory_utilization is not None and (args.device or "cuda")[:3] == "cpu":
        notify("--gpu-memory-utilization changes nothing on a CPU")
    request = Request(
        model=model,
        corpus=corpus_of(args),
        protocol=protocol_of(args),
        options=options,
        output=args.output_path,
        revision=args.revision,
        tokenizer=args.tokenizer,
        quantization=args.quantization if args.engine == "torch" else None,
        resume=args.resume,
        command=command,
    )
    with progress_bar(hidden=args.quiet) as progress:
        result = measure(request, progress=progress, notify=notify)
    if args.json:
        json.dump(result.record, sys.stdout, indent=2, ensure_ascii=False)
        print()
    elif not args.quiet:
        print(run_table(result.record, result.folder))
    return 0


@contextmanager
def progress_bar(*, hidden: bool) -> "Iterator[Callable[[float, int], None] | None]":
    """A bar of window tokens on stderr, with rate and time left; none without a terminal."""
    if hidden or not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    bar: tqdm | None = None

    def progress(tokens: float, total: int) -> None:
        nonlocal bar
        if bar is None:
            bar = tqdm(total=total, unit=" tok", unit_scale=True, dynamic_ncols=True, leave=False)
        bar.update(tokens)

    try:
        yield progress
    finally:
        if bar is not None:
            bar.close()
