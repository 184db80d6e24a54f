"""The commands that score again to see whether numbers hold: `check` audits published runs, `verify`
compares engines with a float32 reference."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from scoremode.cli.command import Command, Found, check_junit, model_of, reads_model
from scoremode.cli.engines import reference_options, vllm_options
from scoremode.cli.screen import Session
from scoremode.cli.text import base_of, corpus_of, protocol_of
from scoremode.cli.variants import variants_of
from scoremode.errors import InvalidMeasurement, UsageError
from scoremode.spec.engine import Engine
from scoremode.spec.flag import (
    Flag,
    Flags,
    Group,
    Name,
    Number,
    Place,
    Switch,
    check_least,
)
from scoremode.spec.run import OUTPUT, Form, Junit, Model, Named, Quiet, Runs
from scoremode.spec.text import Protocol
from scoremode.spec.values import finite, whole

__all__ = ["Check", "Verify"]


class _Again(Flags, group=Group("second run")):
    against: Place = Flag(
        "score a share of the windows again, with MODEL and the record's own options, and compare "
        "target by target",
        "MODEL",
    )
    share: Flag[float | None, float | None] = Flag(
        "score this share of the windows, drawn as whole micro-batches (default: 0.1)",
        "S",
        read=finite,
    )
    seed: Number = Flag(
        "draw windows with this seed, to repeat an earlier check (default: a seed from the "
        "system, printed)",
        "N",
        read=whole,
    )
    device: Name = Flag("run on cpu, cuda or cuda:1 (default: the record's kind, else cpu)", "D")
    trust_remote_code: Switch = Flag("run code that comes with the model", switch=True)


class _Places(
    Flags,
    group=Group("locations", "local copies of the run's files; default: the paths in the record"),
):
    model: Place = Flag(
        "find the model in this folder or .gguf file (default: --against's)", "PATH"
    )
    tokenizer: Place = Flag(
        "find the tokenizer in this folder, .gguf file or tokenizer.json", "PATH"
    )
    reference: Place = Flag(
        "find the base in this folder, .gguf file or file of logits, or at this address", "PATH"
    )
    file: Flag[str | Path | Sequence[str | Path], list[Path]] = Flag(
        "find the text, or the data set's file, here; repeat as often as in the run",
        "PATH",
        read=Path,
        also=("-f",),
        repeats=True,
        default=[],
    )
    fetch: Switch = Flag(
        "download the data set, model and base from the hub if the run took them from there",
        switch=True,
    )


class Check(Runs, _Again, _Places, Command):
    called = "check"
    summary = "audit a published run: its numbers, hashes and token ids"
    about = (
        "Recomputes every number of a run from its scores, and every hash of what can be "
        "reached: the text, the tokenizer, the model's files, the base. Reports what holds, "
        "what could not be checked and why, and everything that is wrong. Exit code 0: "
        "everything that could be checked holds; 3: something is wrong."
    )
    examples = (
        "scoremode check runs/RUN",
        "scoremode check runs --fetch --format json",
        "scoremode check runs/RUN --against MODEL --share 0.2",
    )
    verbose = Switch("print a line for each check that holds", switch=True, also=("-v",))
    form = Form("all findings")
    quiet: Switch = Flag("print neither progress nor findings", switch=True)

    def found(self, session: Session) -> Found:
        check_least(0, self, "seed")
        from scoremode.report.checks import check_document
        from scoremode.runs.check.check import check, rerun_of
        from scoremode.runs.check.inputs import Sources

        screen = session.screen
        rerun = rerun_of(self.against, self.share, self.seed, self.device, self.trust_remote_code)
        base = base_of(self.reference, session)
        places = self.model, self.tokenizer, base, tuple(self.file)
        value = check(
            self.runs,
            Sources(*places, fetch=self.fetch),
            rerun,
            progress=screen.progress,
            notify=screen.line,
            tell=screen.stage,
        )
        return Found(
            {**value, "command": list(session.command)},
            partial(check_document, verbose=self.verbose),
            InvalidMeasurement.exit_code if value["counts"]["wrong"] else 0,
        )


class _Sample(Flags, group=Group("sample")):
    engines: Flag[str | None, str | None] = Flag(
        "verify torch (default), vllm, torch,vllm, or vllm@PYTHON, that of another environment; flags "
        "for one engine go to that one, and the torch engine's except --dtype to the reference, too",
        "NAMES",
        common=True,
    )
    variant: Flag[Sequence[str] | None, list[str]] = Flag(
        "verify this, too: [LABEL:] NAME[@PYTHON] and flags, keywords of vllm.LLM or environment "
        "variables that differ, such as 'vllm max_num_seqs=1'; repeatable",
        "WORDS",
        repeats=True,
        default=[],
        common=True,
    )
    no_reference: Switch = Flag(
        "compare the engines with one another alone, without a float32 reference, which a large model "
        "may not have the time for",
        switch=True,
    )
    worst: Flag[int, int] = Flag(
        "list the N targets where each pair differs most (default: 5)", "N", read=whole, default=5
    )
    windows: Flag[int, int] = Flag(
        "score N randomly drawn windows (default: 8)", "N", read=whole, default=8, common=True
    )
    seed: Flag[int, int] = Flag(
        "draw the windows with this seed (default: 0)", "S", read=whole, default=0, common=True
    )


class _Printed(Flags, group=OUTPUT):
    form = Form("all of it")
    quiet: Switch = Quiet.quiet


class Verify(Named, _Sample, Junit, Model, Protocol, _Printed, Engine, Command):
    called = "verify"
    usage = "scoremode verify MODEL [flags]"
    summary = "compare engines, or two installations, with a float32 reference"
    about = (
        "Scores sampled windows with each engine and with a float32 reference (the torch engine in "
        "float32, its row sums in float64), and reports whether the differences are within rounding, "
        "at which positions they are, and the targets that differ most. "
        "Exit code 0: all engines agree; 3: some don't."
    )
    examples = (
        "scoremode verify MODEL -f wiki.test.raw",
        "scoremode verify MODEL --engines torch,vllm --windows 16",
        "scoremode verify MODEL --engines vllm,vllm@/opt/vllm-0.33",
        "scoremode verify MODEL --engines vllm --variant 'vllm max_num_seqs=1'",
    )

    def found(self, session: Session) -> Found:
        model = model_of(self)
        check_least(1, self, "windows", "worst")
        check_least(0, self, "seed")
        check_junit(self.junit)
        variants = variants_of(self, self.engines, self.variant)
        if self.no_reference and len(variants) < 2:
            raise UsageError(
                f"--no-reference: leaves {next(iter(variants))} alone, with no other one"
            )
        if self.no_reference and all(label.startswith("vllm") for label in variants):
            # Refuses what only a torch engine, which there is none of, could obey.
            vllm_options(self)
        from scoremode.report.checks import verify_document
        from scoremode.runs.rescore.verify import Elsewhere, VerifyRequest, verify

        reads_model(session, model)
        request = VerifyRequest(
            model=model,
            corpus=corpus_of(self, session),
            protocol=protocol_of(self),
            engines={name: variant.options for name, variant in variants.items()},
            reference=None if self.no_reference else reference_options(self),
            elsewhere={
                name: Elsewhere(variant.place, variant.environment)
                for name, variant in variants.items()
                if variant.place or variant.environment
            },
            worst=self.worst,
            windows=self.windows,
            seed=self.seed,
            revision=self.revision,
            tokenizer=self.tokenizer,
            quantization=self.quantization,
            command=session.command,
        )
        screen = session.screen
        result = verify(request, progress=screen.progress, notify=screen.line, tell=screen.stage)
        if self.junit is not None:
            from scoremode.report.junit import verify_cases, write_junit

            write_junit(self.junit, "scoremode verify", verify_cases(result))
        code = 0 if result["agree"] else InvalidMeasurement.exit_code
        return Found(result, verify_document, code)
