"""`scoremode generate`: conversations that a base model itself says, as a text to score others on."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.flags.arguments import add_model, model_of, reads_model
from scoremode.cli.flags.engines import ENGINES, engine_arguments
from scoremode.cli.flags.forms import add_form, print_result
from scoremode.cli.flags.parser import check_least, date_of, flag_of, names_file, object_of
from scoremode.cli.flags.sources import refuse_unused
from scoremode.errors import UsageError

if TYPE_CHECKING:
    from scoremode.runs.generation.generate import Engine
    from scoremode.runs.generation.replies import Prompts

__all__ = ["add_parser", "generated"]

# Flags that one engine alone can obey.
_ONLY = {"torch": ("device", "batch_size"), "vllm": ("tensor_parallel_size", "engine_arg")}
# Flags by what --prompts names.
_PROMPTS = {
    "--prompts FILE": frozenset[str](),
    "--prompts of the hub": frozenset({"dataset_config", "dataset_revision", "split"}),
}
# Keywords of vllm.LLM that have a flag here, and those that are set by us alone.
_FLAGS = {"dtype", "revision", "tensor_parallel_size", "trust_remote_code"}
_OURS = {"generation_config", "max_model_len", "model", "runner", "skip_tokenizer_init",
         "worker_extension_cls"}  # fmt: skip


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "generate",
        usage="scoremode generate BASE --prompts FILE -o chats.jsonl [flags]",
        help="conversations that a base itself says, to score quants on",
        description="Has a base model reply to prompts, by its own chat template, and writes the "
        "conversations as a data set, which --conversations of the other commands takes; beside it a "
        "record of all that made it. The same command goes on where it was killed.",
    )
    first = parser.add_argument_group("most used")
    add_model(parser, first)
    _add_prompts(parser, first)
    first.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the .jsonl file to write, not there yet"
    )
    _add_sampling(parser)
    _add_template(parser)
    _add_engines(parser, first)
    add_form(first, "the record")
    first.add_argument("--quiet", action="store_true", help="print neither progress nor a table")
    parser.set_defaults(run=run)


def _add_prompts(parser: argparse.ArgumentParser, first: argparse._ArgumentGroup) -> None:
    first.add_argument(
        "--prompts",
        metavar="PROMPTS",
        help="what the model replies to: a .jsonl or .parquet file or a data set on the hub, its rows "
        "chats (a last reply is left out) or a prompt each; or a text file, a prompt a line",
    )
    first.add_argument(
        "--num-samples", type=int, metavar="N", help="the first N prompts alone (default: all)"
    )
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument(
        "--samples-per-prompt",
        type=int,
        default=1,
        metavar="K",
        help="replies to each (default: 1)",
    )
    prompts.add_argument(
        "--system",
        metavar="TEXT",
        help="message of the system for prompts that begin with none (default: none)",
    )
    prompts.add_argument("--dataset-config", metavar="NAME", help="configuration on the hub")
    prompts.add_argument("--dataset-revision", metavar="REV", help="branch, tag or commit there")
    prompts.add_argument("--split", metavar="NAME", help="split on the hub (default: test)")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    sampling = parser.add_argument_group(
        "sampling",
        "by default the model's own distribution, whatever its generation_config.json says",
    )
    sampling.add_argument(
        "--max-new-tokens",
        type=int,
        default=512,
        metavar="N",
        help="most tokens a reply (default: 512)",
    )
    sampling.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        metavar="T",
        help="what logits are divided by; 0: the likeliest token, always (default: 1)",
    )
    sampling.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="fewest tokens whose probabilities sum to P (default: 1, all)",
    )
    sampling.add_argument(
        "--top-k", type=int, default=0, metavar="K", help="the K likeliest tokens (default: 0, all)"
    )
    sampling.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of all draws (default: 0)"
    )


def _add_template(parser: argparse.ArgumentParser) -> None:
    template = parser.add_argument_group("chat template")
    template.add_argument(
        "--chat-template",
        type=Path,
        metavar="FILE",
        help="a Jinja template in place of the model's",
    )
    template.add_argument(
        "--chat-template-kwargs",
        type=object_of,
        metavar="JSON",
        help="values for the template, such as '{\"enable_thinking\": false}'",
    )
    template.add_argument(
        "--chat-date",
        type=date_of,
        metavar="DATE",
        help="the day that a template is told that asks for today's (default: 2025-01-01)",
    )


def _add_engines(parser: argparse.ArgumentParser, first: argparse._ArgumentGroup) -> None:
    first.add_argument(
        "--engine",
        choices=ENGINES,
        default="torch",
        help="torch: transformers' generate (default); vllm: stock vLLM, many times as fast on a GPU",
    )
    engines = parser.add_argument_group("engines")
    engines.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="dtype to compute in (default: the checkpoint's where the device has instructions for it)",
    )
    engines.add_argument(
        "--trust-remote-code", action="store_true", help="run the code that the model brings along"
    )
    engines.add_argument(
        "--device", metavar="D", help="torch: cpu, cuda or cuda:1 (default: cuda if there is one)"
    )
    engines.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="torch: most replies drawn together, to prompts of one length (default: 16)",
    )
    engines.add_argument(
        "-tp",
        "--tensor-parallel-size",
        type=int,
        metavar="N",
        help="vllm: GPUs that share every layer",
    )
    engines.add_argument(
        "--engine-arg",
        action="append",
        metavar="KEY=VALUE",
        help="vllm: any other keyword of vllm.LLM, VALUE as JSON or as it is",
    )


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    from scoremode.report.inspection import generation_document

    record = generated(args, command)
    print_result(args, record, generation_document)
    return 0


def generated(args: argparse.Namespace, command: tuple[str, ...]) -> dict[str, Any]:
    """The record of the conversations that the flags ask for, once written. Raises ScoremodeError."""
    model = model_of(args)
    if args.prompts is None:
        raise UsageError("no prompts: give --prompts FILE, or a data set on the hub")
    if args.output is None:
        raise UsageError("no file to write to: give -o chats.jsonl")
    if args.output.suffix.lower() not in (".jsonl", ".ndjson"):
        raise UsageError(f"-o {args.output}: what is written are JSON lines: call it .jsonl")
    check_least(0, args, "seed")
    engine = _engine(args)
    prompts = _prompts(args).limited_to(args.num_samples).with_system(args.system)
    reads_model(args, model)
    from scoremode.engines.sampling import Sampling
    from scoremode.runs.generation.generate import Generation, generate
    from scoremode.text.conversations.template import DATE

    wanted = Generation(
        base=model,
        prompts=prompts,
        output=args.output,
        engine=engine,
        sampling=Sampling(args.max_new_tokens, args.temperature, args.top_p, args.top_k),
        samples=args.samples_per_prompt,
        seed=args.seed,
        revision=args.revision,
        tokenizer=args.tokenizer,
        template=args.chat_template,
        arguments=args.chat_template_kwargs or {},
        date=args.chat_date or DATE,
        trust_remote_code=args.trust_remote_code,
        command=command,
    )
    args.screen.words["generate"] = "generating"

    def progress(done: int, of: int) -> None:
        args.screen.words["generate"] = f"generating, {done:,} of {of:,} replies"

    return generate(wanted, notify=args.screen.line, progress=progress, clock=args.clock)


def _prompts(args: argparse.Namespace) -> "Prompts":
    args.clock.begin("text")
    from scoremode.runs.generation.replies import prompts_from_file, prompts_from_hub

    is_file = names_file(args.prompts)
    refuse_unused(args, "--prompts FILE" if is_file else "--prompts of the hub", _PROMPTS)
    if is_file:
        return prompts_from_file(Path(args.prompts))
    args.screen.reads("text", f"data set {args.prompts}", from_hub=True)
    return prompts_from_hub(
        args.prompts,
        args.dataset_config,
        split=args.split or "test",
        revision=args.dataset_revision,
    )


def _engine(args: argparse.Namespace) -> "Engine":
    """How the model is run. Raises UsageError for a flag that the engine can't obey."""
    check_least(1, args, "batch_size", "tensor_parallel_size")
    for engine, names in _ONLY.items():
        for name in names:
            if engine != args.engine and getattr(args, name):
                raise UsageError(f"{flag_of(name)}: is for --engine {engine}")
    if args.engine == "vllm":
        from scoremode.engines.vllm.sampler import VllmSampling

        arguments = engine_arguments(args.engine_arg or [], _FLAGS, _OURS)
        if args.tensor_parallel_size is not None:
            arguments["tensor_parallel_size"] = args.tensor_parallel_size
        return VllmSampling(args.dtype, args.trust_remote_code, arguments)
    args.clock.begin("import")
    from scoremode.engines.torch.sampler import TorchSampling

    size = {} if args.batch_size is None else {"batch_size": args.batch_size}
    return TorchSampling(args.device, args.dtype, trust_remote_code=args.trust_remote_code, **size)
