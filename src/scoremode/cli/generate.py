"""`scoremode generate`: conversations that a base model itself says, as a text to score others on."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scoremode.cli.command import Command, Found, model_of, reads_model
from scoremode.cli.engines import engine_arguments
from scoremode.cli.screen import Session
from scoremode.cli.text import refuse_unused
from scoremode.errors import UsageError
from scoremode.spec.engine import Devices, Dtype, Engine
from scoremode.spec.flag import (
    Flag,
    Flags,
    Group,
    Name,
    Number,
    PathName,
    Switch,
    check_least,
)
from scoremode.spec.run import OUTPUT, Form, Model, Named, Quiet
from scoremode.spec.text import Day, Text, Values, names_file
from scoremode.spec.values import finite, whole

if TYPE_CHECKING:
    from scoremode.runs import generate as generation
    from scoremode.runs.replies import Prompts

__all__ = ["Generate"]

_PROMPTS = ("--prompts FILE", "--prompts of the hub")
_OF_HUB = frozenset({"--prompts of the hub"})
_SAMPLING = Group(
    "sampling", "default: the model's own distribution, ignoring its generation_config.json"
)
_OF_PROMPTS, _TEMPLATE, _ENGINES = Group("prompts"), Group("chat template"), Group("engines")


class _Prompts(Flags, group=_OF_PROMPTS):
    prompts = Name(
        "reply to these prompts: a .jsonl or .parquet file or a data set on the hub, each row "
        "a chat (its last reply is dropped) or a prompt; or a text file with a prompt per "
        "line",
        "PROMPTS",
        common=True,
    )
    num_samples: Number = Flag(
        "use only the first N prompts (default: all)", "N", read=whole, common=True
    )
    output = PathName(
        "write this .jsonl file, which must not exist yet",
        "FILE",
        read=Path,
        group=OUTPUT,
        also=("-o",),
        common=True,
    )


class _Replies(Flags, group=_OF_PROMPTS):
    samples_per_prompt: Flag[int, int] = Flag(
        "generate K replies to each prompt (default: 1)", "K", read=whole, default=1, common=True
    )
    system: Name = Flag(
        "add this system message to prompts without one (default: none)", "TEXT", common=True
    )
    dataset_config: Name = Flag(
        "use this configuration of the hub data set", "NAME", sources=_OF_HUB
    )
    dataset_revision: Name = Flag(
        "use this branch, tag or commit of the hub data set", "REV", sources=_OF_HUB
    )
    split: Name = Flag(
        "use this split of the hub data set (default: test)", "NAME", sources=_OF_HUB
    )


class _Sampling(Flags, group=_SAMPLING):
    max_new_tokens: Flag[int, int] = Flag(
        "generate at most N tokens per reply (default: 512)",
        "N",
        read=whole,
        default=512,
        common=True,
    )
    temperature: Flag[float, float] = Flag(
        "divide logits by T; 0: always take the likeliest token (default: 1)",
        "T",
        read=finite,
        default=1.0,
        common=True,
    )
    top_p: Flag[float, float] = Flag(
        "sample from the fewest tokens whose probabilities sum to P (default: 1, all)",
        "P",
        read=finite,
        default=1.0,
    )
    top_k: Flag[int, int] = Flag(
        "sample from the K likeliest tokens (default: 0, all)", "K", read=whole, default=0
    )
    seed: Flag[int, int] = Flag(
        "use this seed for all draws (default: 0)", "N", read=whole, default=0, common=True
    )
    chat_template: PathName = Text.chat_template.but(
        help="use a Jinja template in place of the model's", group=_TEMPLATE, sources=None
    )
    chat_template_kwargs: Values = Text.chat_template_kwargs.but(group=_TEMPLATE, sources=None)
    chat_date: Day = Text.chat_date.but(group=_TEMPLATE, sources=None)


class _Engines(Flags, part="engine", group=_ENGINES):
    engine: Flag[Literal["torch", "vllm"], str] = Devices.engine.but(  # pyright: ignore[reportAssignmentType]  no server
        choices=("torch", "vllm"),
        help="run this engine; torch: transformers' generate (default); vllm: stock vLLM, many "
        "times as fast on a GPU",
    )
    form = Form("the record", OUTPUT)
    quiet: Flag[bool, bool] = Quiet.quiet
    dtype: Flag[Dtype, Any] = Engine.dtype.but(
        help="compute in this dtype (default: the checkpoint's where the device has instructions "
        "for it)",
        group=_ENGINES,
    )
    trust_remote_code: Switch = Engine.trust_remote_code.but(group=_ENGINES)
    device: Name = Engine.device.but(help=f"torch: {Engine.device.help}", group=_ENGINES)
    batch_size: Number = Flag(
        "torch: generate at most N replies at a time, to prompts of equal length (default: 16)",
        "N",
        read=whole,
        engine="torch",
    )
    tensor_parallel_size: Number = Flag(
        "vllm: split every layer across N GPUs", "N", read=whole, also=("-tp",), engine="vllm"
    )
    engine_arg: Flag[Sequence[str] | None, list[str] | None] = Flag(
        "vllm: pass any other keyword to vllm.LLM, VALUE as JSON or plain text; repeatable",
        "KEY=VALUE",
        repeats=True,
        engine="vllm",
    )


class Generate(Named, _Prompts, Model, _Replies, _Sampling, _Engines, Command):
    called = "generate"
    usage = "scoremode generate BASE --prompts FILE -o chats.jsonl [flags]"
    summary = "generate conversations with a base, to score quants on"
    about = (
        "Generates a base model's replies to prompts with its own chat template, and writes "
        "the conversations as a data set for the --conversations of other commands, with a "
        "record beside it. Rerun the same command to resume."
    )
    examples = (
        "scoremode generate BASE --prompts prompts.txt -o chats.jsonl",
        "scoremode generate BASE --prompts org/chats --split train -o chats.jsonl",
    )

    def found(self, session: Session) -> Found:
        from scoremode.report.inspection import generation_document

        return Found(_generated(self, session), generation_document)


def _generated(spec: Generate, session: Session) -> dict[str, Any]:
    """The record of the conversations that the flags ask for, once written."""
    model = model_of(spec)
    if spec.prompts is None:
        raise UsageError("no prompts: give --prompts FILE, or a data set on the hub")
    if spec.output is None:
        raise UsageError("no file to write to: give -o chats.jsonl")
    if spec.output.suffix.lower() not in (".jsonl", ".ndjson"):
        raise UsageError(f"-o {spec.output}: the output is JSON Lines: name it .jsonl")
    check_least(0, spec, "seed")
    engine = _engine(spec, session)
    prompts = _prompts(spec, spec.prompts, session).limited_to(spec.num_samples)
    prompts = prompts.with_system(spec.system)
    reads_model(session, model)
    from scoremode.engines.sampling import Sampling
    from scoremode.runs.generate import Generation, generate
    from scoremode.text.conversations.template import DATE

    wanted = Generation(
        base=model,
        prompts=prompts,
        output=spec.output,
        engine=engine,
        sampling=Sampling(spec.max_new_tokens, spec.temperature, spec.top_p, spec.top_k),
        samples=spec.samples_per_prompt,
        seed=spec.seed,
        revision=spec.revision,
        tokenizer=spec.tokenizer,
        template=spec.chat_template,
        arguments=spec.chat_template_kwargs or {},
        date=spec.chat_date or DATE,
        trust_remote_code=spec.trust_remote_code,
        command=session.command,
    )
    screen = session.screen
    return generate(wanted, notify=screen.line, progress=screen.progress, clock=session.clock)


def _prompts(spec: Generate, name: str, session: Session) -> "Prompts":
    session.clock.begin("text")
    from scoremode.runs.replies import prompts_from_file, prompts_from_hub

    is_file = names_file(name)
    refuse_unused(spec, _PROMPTS[not is_file], _PROMPTS)
    if is_file:
        return prompts_from_file(Path(name))
    session.screen.reads("text", f"data set {name}", from_hub=True)
    return prompts_from_hub(
        name, spec.dataset_config, split=spec.split or "test", revision=spec.dataset_revision
    )


def _engine(spec: Generate, session: Session) -> "generation.Engine":
    """The engine that runs the model. Raises UsageError for a flag that the engine can't obey."""
    check_least(1, spec, "batch_size", "tensor_parallel_size")
    for name, flag in spec.flags.items():
        if flag.engine not in (None, spec.engine) and getattr(spec, name):
            raise UsageError(f"{flag.spelled}: is for --engine {flag.engine}")
    if spec.engine == "vllm":
        from scoremode.engines.vllm.sampler import VllmSampling

        arguments = engine_arguments(spec, spec.engine_arg or [], "generation")
        if spec.tensor_parallel_size is not None:
            arguments["tensor_parallel_size"] = spec.tensor_parallel_size
        return VllmSampling(spec.dtype, spec.trust_remote_code, arguments)
    session.clock.begin("import")
    from scoremode.engines.torch.sampler import TorchSampling

    size = {} if spec.batch_size is None else {"batch_size": spec.batch_size}
    return TorchSampling(spec.device, spec.dtype, trust_remote_code=spec.trust_remote_code, **size)
