"""`scoremode tasks`: lm-evaluation-harness's tasks, by exact log-likelihoods."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.command import Command, base_revision, measured, model_of, print_run, reads_model
from scoremode.cli.engines import engine_options
from scoremode.cli.screen import Session
from scoremode.errors import UsageError
from scoremode.spec.engine import Devices, Engine
from scoremode.spec.flag import (
    Flag,
    Flags,
    Group,
    Name,
    Number,
    PathName,
    Place,
    Quantity,
    Switch,
)
from scoremode.spec.run import Against, Comparison, Label, Margin, Model, Named, Output, Table
from scoremode.spec.text import Protocol
from scoremode.spec.values import finite, whole

if TYPE_CHECKING:
    from scoremode.checkpoint.model_files import ModelFiles
    from scoremode.harness.harness import Harness
    from scoremode.runs.request import Request
    from scoremode.text.task_requests import RequestCorpus

__all__ = ["Tasks", "request_for"]


class _Asked(Flags, group=Group("tasks")):
    tasks = Flag[str, str](
        "run these tasks, groups and tags of the harness, such as hellaswag,arc_challenge,mmlu",
        "NAMES",
        required=True,
        common=True,
    )
    num_fewshot: Number = Flag(
        "put N examples before each question (default: the task's)",
        "N",
        read=whole,
        common=True,
    )
    limit: Flag[float | None, float | None] = Flag(
        "ask only the first N questions of each task; below 1: that share of them",
        "N",
        read=finite,
        common=True,
    )
    reference: Place = Against.reference.but(
        help="pair each answer with this base's: a folder, a .gguf file or a hub id",
        required=False,
    )


class _Prompts(Flags, group=Group("prompts", "flags with the harness's own names and meanings")):
    include_path: PathName = Flag(
        "add your own tasks, from the YAML files in this folder", "DIR", read=Path
    )
    confirm_run_unsafe_code: Switch = Flag(
        "run Python that comes with tasks: !function in a file of --include-path", switch=True
    )
    apply_chat_template: Switch = Flag(
        "format prompts with the model's chat template", switch=True, common=True
    )
    system_instruction: Name = Flag(
        "put a system message, or this text, before each prompt", "TEXT"
    )
    no_fewshot_as_multiturn: Switch = Flag(
        "with a chat template, put all examples in one message instead of one turn each",
        switch=True,
    )
    context_length: Quantity = Protocol.context_length.but(
        help="give the model at most L tokens at a time; longer prompts are truncated at the "
        "beginning (default: the model's number of positions)",
        group=None,
        common=False,
    )


class _Base(Flags, group=Group("comparison")):
    reference_revision: Name = Comparison.reference_revision


class Tasks(
    Named, _Asked, _Base, Margin, Model, _Prompts, Output, Label, Table, Devices, Engine, Command
):
    called = "tasks"
    usage = "scoremode tasks MODEL --tasks NAME[,NAME] [flags]"
    summary = "run tasks of lm-evaluation-harness"
    about = (
        "Scores the log-likelihoods that tasks of lm-evaluation-harness ask for, in one run, "
        "and lets the harness compute its metrics from them; with --reference every answer is "
        "paired with a base's. Needs the extra scoremode[lm-eval]."
    )
    examples = (
        "scoremode tasks MODEL --tasks hellaswag,arc_challenge --limit 100",
        "scoremode tasks QUANT --reference BASE --tasks mmlu --num-fewshot 5",
    )
    is_shared = True

    def request(self, session: Session) -> "Request":
        harness, places = self._harness()
        session.clock.begin("text")
        return request_for(self, session, harness.corpus(), places, judge=harness)

    def run(self, session: Session) -> int:
        result = measured(self.request(session), session)
        print_run(self, session, result.record.document, result.folder)
        return 0

    def _harness(self) -> "tuple[Harness, list[ModelFiles]]":
        """The tasks that the flags name, and the files that their chat template is looked for in.

        Raises CheckpointError for a model that isn't there, and UsageError where lm-evaluation-harness
        is not installed, or the flags name no task.
        """
        if find_spec("lm_eval") is None:
            raise UsageError(
                "scoremode tasks needs lm-evaluation-harness: pip install 'scoremode[lm-eval]'"
            )
        names = tuple(name.strip() for name in self.tasks.split(",") if name.strip())
        if not names:
            raise UsageError(f"--tasks {self.tasks!r}: names no task")
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise UsageError(f"--num-fewshot {self.num_fewshot}: must be at least 0")
        if self.limit is not None and not (
            0 < self.limit < 1 or (self.limit >= 1 and self.limit % 1 == 0)
        ):
            raise UsageError(
                f"--limit {self.limit:g}: must be a number of questions, or a share below 1"
            )
        if self.no_fewshot_as_multiturn and not self.apply_chat_template:
            raise UsageError(
                "--no-fewshot-as-multiturn: changes nothing without --apply-chat-template"
            )
        if self.include_path is not None and not self.include_path.is_dir():
            raise UsageError(f"--include-path {self.include_path}: isn't a folder")
        from scoremode.checkpoint.model_files import resolve_model, tokenizer_places
        from scoremode.harness.chat import ChatPrompts
        from scoremode.harness.harness import Harness, Prompting

        places = tokenizer_places(self.tokenizer, resolve_model(model_of(self), self.revision))

        harness = Harness(
            Prompting(
                tasks=names,
                num_fewshot=self.num_fewshot,
                limit=self.limit,
                include_path=self.include_path,
                runs_code=self.confirm_run_unsafe_code,
                chat=self.apply_chat_template,
                multiturn=not self.no_fewshot_as_multiturn,
                system=self.system_instruction,
            ),
            ChatPrompts(places),
            quiet=not self.verbose,
        )
        return harness, places


def request_for(
    spec: Tasks,
    session: Session,
    corpus: "RequestCorpus",
    places: "Sequence[ModelFiles]",
    **more: Any,
) -> "Request":
    """The run that scores the requests of `corpus`, by the flags.

    `places`: the model's files, behind those of a tokenizer given in place of its own; `more`: fields
    of `Request`. Raises ScoremodeError.
    """
    output = spec.output
    assert output is not None
    from scoremode.results.folders.paths import check_folder

    check_folder(output)
    options = engine_options(spec, spec.engine)
    if session.ranks is not None:
        options = replace(options, device=session.ranks.take_device(spec.device))
    from scoremode.runs.request import Request
    from scoremode.text.task_requests import TASKS

    reads_model(session, places[-1].name)
    return Request(
        model=places[-1],
        tokenizer=None if spec.tokenizer is None else places[0],
        corpus=corpus,
        protocol=TASKS.override(context_length=spec.context_length),
        options=options,
        output=output,
        quantization=spec.quantization if spec.engine == "torch" else None,
        resume=spec.resume,
        reference=spec.reference,
        reference_revision=base_revision(spec.reference, spec.reference_revision),
        label=spec.label,
        command=session.command,
        ranks=session.ranks,
        **more,
    )
