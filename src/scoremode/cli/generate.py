"""`scoremode generate`: conversations that a base model itself says, as a text to score others on."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scoremode.cli.command import Command, model_of, print_result, reads_model
from scoremode.cli.engines import engine_arguments
from scoremode.cli.screen import Session
from scoremode.cli.text import names_file, refuse_unused
from scoremode.errors import UsageError
from scoremode.spec.engine import Devices, Engine
from scoremode.spec.flag import MOST_USED, Flag, Flags, Group, Name, Number, PathName, check_least
from scoremode.spec.run import Form, Model, Named, Quiet
from scoremode.spec.text import Text
from scoremode.spec.values import finite, whole

if TYPE_CHECKING:
    from scoremode.runs.generation import generate as generation
    from scoremode.runs.generation.replies import Prompts

__all__ = ["Generate", "generated"]

_PROMPTS = ("--prompts FILE", "--prompts of the hub")
_OF_HUB = frozenset({"--prompts of the hub"})
# Keywords of vllm.LLM that are set by us alone.
_OURS = {"generation_config", "max_model_len", "model", "runner", "skip_tokenizer_init",
         "worker_extension_cls"}  # fmt: skip
_SAMPLING = Group(
    "sampling", "by default the model's own distribution, whatever its generation_config.json says"
)
_TEMPLATE, _ENGINES = Group("chat template"), Group("engines")


class _Prompts(Flags, group=MOST_USED):
    prompts = Name(
        "what the model replies to: a .jsonl or .parquet file or a data set on the hub, its rows chats "
        "(a last reply is left out) or a prompt each; or a text file, a prompt a line",
        "PROMPTS",
    )
    num_samples: Number = Flag("the first N prompts alone (default: all)", "N", read=whole)
    output = PathName("the .jsonl file to write, not there yet", "FILE", read=Path, also=("-o",))


class _Replies(Flags, group=Group("prompts")):
    samples_per_prompt: Flag[int, int] = Flag(
        "replies to each (default: 1)", "K", read=whole, default=1
    )
    system: Name = Flag(
        "message of the system for prompts that begin with none (default: none)", "TEXT"
    )
    dataset_config: Name = Flag("configuration on the hub", "NAME", sources=_OF_HUB)
    dataset_revision: Name = Flag("branch, tag or commit there", "REV", sources=_OF_HUB)
    split: Name = Flag("split on the hub (default: test)", "NAME", sources=_OF_HUB)


class _Sampling(Flags, group=_SAMPLING):
    max_new_tokens: Flag[int, int] = Flag(
        "most tokens a reply (default: 512)", "N", read=whole, default=512
    )
    temperature: Flag[float, float] = Flag(
        "what logits are divided by; 0: the likeliest token, always (default: 1)",
        "T",
        read=finite,
        default=1.0,
    )
    top_p: Flag[float, float] = Flag(
        "fewest tokens whose probabilities sum to P (default: 1, all)",
        "P",
        read=finite,
        default=1.0,
    )
    top_k: Flag[int, int] = Flag(
        "the K likeliest tokens (default: 0, all)", "K", read=whole, default=0
    )
    seed: Flag[int, int] = Flag("seed of all draws (default: 0)", "N", read=whole, default=0)
    chat_template = Text.chat_template.but(
        help="a Jinja template in place of the model's", group=_TEMPLATE, sources=None
    )
    chat_template_kwargs = Text.chat_template_kwargs.but(group=_TEMPLATE, sources=None)
    chat_date = Text.chat_date.but(group=_TEMPLATE, sources=None)


class _Engines(Flags, part="engine", group=_ENGINES):
    engine: Flag[Literal["torch", "vllm"], str] = Devices.engine.but(
        help="torch: transformers' generate (default); vllm: stock vLLM, many times as fast on a GPU"
    )
    form = Form("the record", MOST_USED)
    quiet: Flag[bool, bool] = Quiet.quiet
    dtype = Engine.dtype.but(
        help="dtype to compute in (default: the checkpoint's where the device has instructions for it)",
        group=_ENGINES,
    )
    trust_remote_code = Engine.trust_remote_code.but(group=_ENGINES)
    device: Name = Engine.device.but(help=f"torch: {Engine.device.help}", group=_ENGINES)
    batch_size: Number = Flag(
        "torch: most replies drawn together, to prompts of one length (default: 16)",
        "N",
        read=whole,
        engine="torch",
    )
    tensor_parallel_size: Number = Flag(
        "vllm: GPUs that share every layer", "N", read=whole, also=("-tp",), engine="vllm"
    )
    engine_arg: Flag[Sequence[str] | None, list[str] | None] = Flag(
        "vllm: any other keyword of vllm.LLM, VALUE as JSON or as it is",
        "KEY=VALUE",
        repeats=True,
        engine="vllm",
    )


class Generate(Named, _Prompts, Model, _Replies, _Sampling, _Engines, Command):
    called = "generate"
    usage = "scoremode generate BASE --prompts FILE -o chats.jsonl [flags]"
    summary = "conversations that a base itself says, to score quants on"
    about = (
        "Has a base model reply to prompts, by its own chat template, and writes the conversations as "
        "a data set, which --conversations of the other commands takes; beside it a record of all that "
        "made it. The same command goes on where it was killed."
    )

    def run(self, session: Session) -> int:
        from scoremode.report.inspection import generation_document

        record = generated(self, session)
        print_result(session, record, generation_document, self.form, quiet=self.quiet)
        return 0


def generated(spec: Generate, session: Session) -> dict[str, Any]:
    """The record of the conversations that the flags ask for, once written. Raises ScoremodeError."""
    model = model_of(spec)
    if spec.prompts is None:
        raise UsageError("no prompts: give --prompts FILE, or a data set on the hub")
    if spec.output is None:
        raise UsageError("no file to write to: give -o chats.jsonl")
    if spec.output.suffix.lower() not in (".jsonl", ".ndjson"):
        raise UsageError(f"-o {spec.output}: what is written are JSON lines: call it .jsonl")
    check_least(0, spec, "seed")
    engine = _engine(spec, session)
    prompts = _prompts(spec, spec.prompts, session).limited_to(spec.num_samples)
    prompts = prompts.with_system(spec.system)
    reads_model(session, model)
    from scoremode.engines.sampling import Sampling
    from scoremode.runs.generation.generate import Generation, generate
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
    words = session.screen.words
    words["generate"] = "generating"

    def progress(done: int, of: int) -> None:
        words["generate"] = f"generating, {done:,} of {of:,} replies"

    return generate(wanted, notify=session.screen.line, progress=progress, clock=session.clock)


def _prompts(spec: Generate, name: str, session: Session) -> "Prompts":
    session.clock.begin("text")
    from scoremode.runs.generation.replies import prompts_from_file, prompts_from_hub

    is_file = names_file(name)
    refuse_unused(spec, _PROMPTS[not is_file], _PROMPTS)
    if is_file:
        return prompts_from_file(Path(name))
    session.screen.reads("text", f"data set {name}", from_hub=True)
    return prompts_from_hub(
        name, spec.dataset_config, split=spec.split or "test", revision=spec.dataset_revision
    )


def _engine(spec: Generate, session: Session) -> "generation.Engine":
    """How the model is run. Raises UsageError for a flag that the engine can't obey."""
    check_least(1, spec, "batch_size", "tensor_parallel_size")
    for name, flag in spec.flags.items():
        if flag.engine not in (None, spec.engine) and getattr(spec, name):
            raise UsageError(f"{flag.spelled}: is for --engine {flag.engine}")
    if spec.engine == "vllm":
        from scoremode.engines.vllm.sampler import VllmSampling

        arguments = engine_arguments(spec, spec.engine_arg or [], _OURS)
        if spec.tensor_parallel_size is not None:
            arguments["tensor_parallel_size"] = spec.tensor_parallel_size
        return VllmSampling(spec.dtype, spec.trust_remote_code, arguments)
    session.clock.begin("import")
    from scoremode.engines.torch.sampler import TorchSampling

    size = {} if spec.batch_size is None else {"batch_size": spec.batch_size}
    return TorchSampling(spec.device, spec.dtype, trust_remote_code=spec.trust_remote_code, **size)
