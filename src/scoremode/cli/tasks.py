"""`scoremode tasks`: lm-evaluation-harness's tasks, by exact log-likelihoods."""

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.flags.arguments import add_model, base_revision, model_of, reads_model
from scoremode.cli.flags.devices import add_devices, on_devices
from scoremode.cli.flags.engines import ENGINES, add_tuning, torch_options, vllm_options
from scoremode.cli.flags.forms import add_form
from scoremode.cli.flags.parser import tokens_of
from scoremode.cli.flags.run import measured, print_run
from scoremode.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scoremode.checkpoint.model_files import ModelFiles
    from scoremode.runs.request import Request
    from scoremode.tasks.harness import Harness
    from scoremode.text.task_requests import RequestCorpus

__all__ = ["add_parser", "request_for"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "tasks",
        usage="scoremode tasks MODEL --tasks NAME[,NAME] [flags]",
        help="lm-evaluation-harness's tasks",
        description="Scores the log-likelihoods that tasks of lm-evaluation-harness ask for, in one "
        "run, and has the harness make its metrics of them; with --reference every answer is paired "
        "with a base's. It needs the extra scoremode[lm-eval].",
    )
    first = parser.add_argument_group("most used")
    add_model(parser, first)
    first.add_argument(
        "--tasks",
        required=True,
        metavar="NAMES",
        help="tasks, groups and tags by the harness's names, such as hellaswag,arc_challenge,mmlu",
    )
    first.add_argument(
        "--num-fewshot",
        type=int,
        metavar="N",
        help="examples before each question (default: the task's)",
    )
    first.add_argument(
        "--limit",
        type=float,
        metavar="N",
        help="only the first N questions of each task; below 1: a share",
    )
    first.add_argument(
        "--reference", metavar="BASE", help="the base whose answers are paired with the model's: a "
        "folder, a .gguf file or a hub id",
    )  # fmt: skip
    first.add_argument(
        "-o", "--output-path", type=Path, default=Path("runs"), metavar="DIR",
        help="where runs go, a folder each (default: runs)",
    )  # fmt: skip
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
    prompts = parser.add_argument_group("prompts", "as the harness has them")
    prompts.add_argument(
        "--include-path",
        type=Path,
        metavar="DIR",
        help="a folder with YAML files of your own tasks",
    )
    prompts.add_argument(
        "--confirm-run-unsafe-code",
        action="store_true",
        help="run the Python that tasks bring along: !function in a file of --include-path",
    )
    prompts.add_argument(
        "--apply-chat-template", action="store_true", help="ask by the model's chat template"
    )
    prompts.add_argument(
        "--system-instruction", metavar="TEXT", help="a system message, or text before each prompt"
    )
    prompts.add_argument(
        "--no-fewshot-as-multiturn", action="store_false", dest="fewshot_as_multiturn",
        help="with a chat template, all examples in one message instead of a turn each",
    )  # fmt: skip
    prompts.add_argument(
        "-c", "--context-length", type=tokens_of, metavar="L",
        help="tokens that the model reads at a time; a longer prompt loses its beginning (default: its "
        "number of positions)",
    )  # fmt: skip
    parser.add_argument_group("comparison").add_argument(
        "--reference-revision", metavar="REV", help="branch, tag or commit of a BASE on the hub"
    )
    add_tuning(parser)
    parser.set_defaults(run=on_devices(run), is_shared=True, shard=None)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    harness, places = _harness(args)
    args.clock.begin("text")
    request = request_for(args, command, harness.corpus(), places, judge=harness)
    result = measured(request, args)
    print_run(args, result.record, result.folder)
    return 0


def request_for(
    args: argparse.Namespace,
    command: tuple[str, ...],
    corpus: "RequestCorpus",
    places: "Sequence[ModelFiles]",
    **more: Any,
) -> "Request":
    """The run that scores the requests of `corpus`, by the flags.

    `places`: the model's files, behind those of a tokenizer given in place of its own; `more`: fields
    of `Request`. Raises ScoremodeError.
    """
    from scoremode.results.folders.paths import check_folder

    check_folder(args.output_path)
    options = torch_options(args) if args.engine == "torch" else vllm_options(args)
    if args.ranks is not None:
        from dataclasses import replace

        options = replace(options, device=args.ranks.take_device(args.device))
    from scoremode.runs.request import Request
    from scoremode.text.task_requests import TASKS

    reads_model(args, places[-1].name)
    return Request(
        model=places[-1],
        tokenizer=None if args.tokenizer is None else places[0],
        corpus=corpus,
        protocol=TASKS.override(context_length=args.context_length),
        options=options,
        output=args.output_path,
        quantization=args.quantization if args.engine == "torch" else None,
        resume=args.resume,
        reference=args.reference,
        reference_revision=base_revision(args),
        command=command,
        ranks=args.ranks,
        **more,
    )


def _harness(args: argparse.Namespace) -> "tuple[Harness, list[ModelFiles]]":
    """The tasks that the flags name, and the files that their chat template is looked for in.

    Raises CheckpointError for a model that isn't there, and UsageError where lm-evaluation-harness is
    not installed, or the flags name no task."""
    if find_spec("lm_eval") is None:
        raise UsageError(
            "scoremode tasks needs lm-evaluation-harness: pip install 'scoremode[lm-eval]'"
        )
    names = tuple(name.strip() for name in args.tasks.split(",") if name.strip())
    if not names:
        raise UsageError(f"--tasks {args.tasks!r}: names no task")
    if args.num_fewshot is not None and args.num_fewshot < 0:
        raise UsageError(f"--num-fewshot {args.num_fewshot}: must be at least 0")
    if args.limit is not None and not (
        0 < args.limit < 1 or (args.limit >= 1 and args.limit % 1 == 0)
    ):
        raise UsageError(
            f"--limit {args.limit:g}: must be a number of questions, or a share below 1"
        )
    if not (args.fewshot_as_multiturn or args.apply_chat_template):
        raise UsageError("--no-fewshot-as-multiturn: changes nothing without --apply-chat-template")
    if args.include_path is not None and not args.include_path.is_dir():
        raise UsageError(f"--include-path {args.include_path}: is no folder")
    from scoremode.checkpoint.model_files import resolve_model, tokenizer_places
    from scoremode.tasks.chat import ChatPrompts
    from scoremode.tasks.harness import Harness, Prompting

    places = tokenizer_places(args.tokenizer, resolve_model(model_of(args), args.revision))
    harness = Harness(
        Prompting(
            tasks=names,
            num_fewshot=args.num_fewshot,
            limit=args.limit,
            include_path=args.include_path,
            runs_code=args.confirm_run_unsafe_code,
            chat=args.apply_chat_template,
            multiturn=args.fewshot_as_multiturn,
            system=args.system_instruction,
        ),
        ChatPrompts(places),
        quiet=not args.verbose,
    )
    return harness, places
