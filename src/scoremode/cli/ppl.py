"""`scoremode ppl`: the perplexity of a model, with its record."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scoremode.cli.arguments import (
    add_model,
    add_text,
    bytes_of,
    corpus_of,
    model_of,
    protocol_of,
)
from scoremode.errors import UsageError

if TYPE_CHECKING:
    from scoremode.engines.torch.engine import TorchOptions

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
    engine.add_argument("--engine", choices=("torch",), default="torch", help="torch (default)")
    engine.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="what to compute in; auto is the checkpoint's where the device has instructions "
        "for it, else float32",
    )
    engine.add_argument(
        "--arithmetic",
        choices=("auto", "weights"),
        default="auto",
        help="weights: quantized weights, unquantized activations; all that this version has",
    )
    engine.add_argument("--kv-cache", choices=("none",), default="none", help="none (default)")
    engine.add_argument("--device", help="cpu, cuda, cuda:1 (default: cuda if there is one)")
    engine.add_argument(
        "--max-memory",
        type=bytes_of,
        metavar="SIZE",
        help="of the device, such as 10GiB: bounds a pass's hidden states, and on a GPU everything",
    )
    engine.add_argument("--batch-size", type=int, metavar="W", help="windows of a micro-batch")
    engine.add_argument("--trust-remote-code", action="store_true", help="run the model's own code")
    vllm = parser.add_argument_group(
        "vLLM's flags", "accepted where they change nothing for the torch engine, else refused"
    )
    vllm.add_argument("--quantization", metavar="METHOD")
    vllm.add_argument("-tp", "--tensor-parallel-size", type=int, default=1, metavar="N")
    vllm.add_argument("-pp", "--pipeline-parallel-size", type=int, default=1, metavar="N")
    vllm.add_argument(
        "--gpu-memory-utilization", type=float, metavar="SHARE", help="bounds a GPU's memory"
    )
    vllm.add_argument("--disable-custom-all-reduce", action="store_true")
    vllm.add_argument("--enforce-eager", action="store_true")
    vllm.add_argument("--max-num-batched-tokens", type=int, metavar="N")
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
    options = torch_options(args)
    from scoremode.measure import Request, measure
    from scoremode.report.table import run_table

    def notify(line: str) -> None:
        if not args.quiet:
            print(f"scoremode: {line}", file=sys.stderr)

    if args.gpu_memory_utilization is not None and (options.device or "cuda")[:3] == "cpu":
        notify("--gpu-memory-utilization changes nothing on a CPU")
    request = Request(
        model=model,
        corpus=corpus_of(args),
        protocol=protocol_of(args),
        options=options,
        output=args.output_path,
        revision=args.revision,
        tokenizer=args.tokenizer,
        quantization=args.quantization,
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


def torch_options(args: argparse.Namespace) -> "TorchOptions":
    """The engine's options. Raises UsageError for what only vLLM could do."""
    only_vllm = {
        "--tensor-parallel-size": args.tensor_parallel_size,
        "--pipeline-parallel-size": args.pipeline_parallel_size,
    }
    for flag, value in only_vllm.items():
        if value != 1:
            raise UsageError(
                f"{flag} {value}: the torch engine runs on one device and needs no more, since it "
                "holds one dense layer at a time; splitting a model is for --engine vllm, which this "
                "version does not have yet"
            )
    if args.max_num_batched_tokens is not None:
        raise UsageError(
            f"--max-num-batched-tokens {args.max_num_batched_tokens}: is vLLM's; the torch engine "
            "takes --batch-size in windows"
        )
    if args.batch_size is not None and args.batch_size < 1:
        raise UsageError(f"--batch-size {args.batch_size}: must be at least 1")
    share = args.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        raise UsageError(f"--gpu-memory-utilization {share}: must be above 0 and at most 1")
    from scoremode.engines.torch.engine import TorchOptions

    return TorchOptions(
        dtype=args.dtype,
        device=args.device,
        max_memory=args.max_memory,
        memory_share=share,
        batch_windows=args.batch_size,
        trust_remote_code=args.trust_remote_code,
    )


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
