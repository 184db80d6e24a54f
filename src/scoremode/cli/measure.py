"""The commands that make a text into a plan and score it: `ppl`, `kld`, `reference`, and `plan`, which
stops before the model."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scoremode.cli.command import (
    Command,
    Found,
    Measurement,
    base_revision,
    check_junit,
    exit_code_of,
    gates_of,
    measured,
    model_of,
    named_model,
    print_run,
    request_of,
    swaps_in,
    write_gates,
)
from scoremode.cli.references import Push, pushed
from scoremode.cli.screen import Session
from scoremode.cli.text import base_of, corpus_of, protocol_of, row_seed
from scoremode.errors import UsageError
from scoremode.spec.engine import Http
from scoremode.spec.flag import Flag, Flags, Group, PathName, Switch
from scoremode.spec.run import (
    COMPARISON,
    OUTPUT,
    Against,
    Comparison,
    Form,
    Further,
    Gates,
    Junit,
    KeepDense,
    Kept,
    Label,
    Labels,
    Margin,
    Model,
    Named,
    Output,
    Swap,
    Table,
)
from scoremode.spec.text import Protocol, Seed
from scoremode.spec.values import whole

if TYPE_CHECKING:
    from scoremode.reference.stored import StoredReference
    from scoremode.runs.request import Request, Result

__all__ = ["Kld", "Plan", "Ppl", "Reference"]


_OR_KEPT = Named.model.but(
    help="model to measure: a folder, .gguf file or hub id; or kept predictions: a reference or "
    "llama.cpp's file"
)


class Ppl(Named, Swap, Http, Measurement):
    called = "ppl"
    model = _OR_KEPT
    usage = "scoremode ppl MODEL [flags]"
    summary = "measure the perplexity of a model"
    about = "Measures the exact perplexity of a model's quantized weights under a protocol."
    examples = (
        "scoremode ppl MODEL -f wiki.test.raw",
        "scoremode ppl QUANT.gguf --dataset-file wiki.test.raw --limit 20",
        "scoremode ppl org/model --protocol exl3 --format json",
        "scoremode ppl --engine http --base-url http://HOST:8000/v1 --tokenizer MODEL",
    )

    def request(self, session: Session) -> "Request":
        return request_of(self, session, swaps=swaps_in(self.swap))

    def run(self, session: Session) -> int:
        result = measured(self.request(session), session)
        print_run(self, session, result.record.document, result.folder)
        return 0


class _Several(
    Flags,
    part="output",
    group=Group(
        "several models",
        "folders (also of models), hub ids, .gguf files, patterns such as 'org/repo:*.gguf', or "
        "finished runs' folders",
    ),
):
    further_models = Further()
    dry_run = Switch(
        "list runs to do and runs done, with sources, bytes and time, without running anything",
        switch=True,
        in_sweep=False,
    )


class _KeptToo(Flags, part="output", group=OUTPUT):
    keep: Switch = Flag(
        "also keep the model's final states, so that the run itself can be a BASE; DIR is then its own "
        "folder",
        switch=True,
        in_sweep=False,
        in_memory=False,
    )


class Kld(
    Named, Against, Gates, Junit, _Several, KeepDense, Swap, Comparison, Http, Measurement, _KeptToo
):
    called = "kld"
    model = _OR_KEPT
    margin = Margin.margin.but(group=COMPARISON)
    label: Labels = Labels(  # pyright: ignore[reportIncompatibleVariableOverride]  of several
        f"{Label.label.help}; with several models, once for each, in their order",
        "TEXT",
        group=Label.label.group,
        part="output",
        read=Label.label.read,
        repeats=True,
        in_sweep=False,
    )
    usage = "scoremode kld MODEL … --reference BASE [flags]"
    summary = "measure the KL divergence of a model from its base"
    about = (
        "Compares every prediction of a model with its base's: exact KL divergence in both "
        "directions over the whole vocabulary, both perplexities and their ratio, all paired. "
        "Exit code 4: a gate was not met. With several models, the base runs once, each "
        "model is compared with it, and all are ranked; rerun the same command to resume, or "
        "to add models."
    )
    examples = (
        "scoremode kld QUANT.gguf --reference BASE -f wiki.test.raw",
        "scoremode kld Q4.gguf Q5.gguf Q6.gguf --reference BASE",
        "scoremode kld QUANT --reference BASE --conversations chats.jsonl",
        "scoremode kld QUANT --reference BASE --max-kld 0.05 --min-top1 90%",
    )

    def request(self, session: Session) -> "Request":
        gates = gates_of(self)
        check_junit(self.junit, gates)
        if self.junit is not None and self.shard is not None:
            raise UsageError(
                f"--junit {self.junit}: shard {self.shard} is judged when it is merged"
            )
        if self.llama_cpp_block and self.form == "csv":
            raise UsageError(
                "--llama-cpp-block: is another table than the one that --format csv prints"
            )
        if self.llama_cpp_block and self.shard is not None:
            raise UsageError(
                f"--llama-cpp-block: is of a whole run, and shard {self.shard} has no numbers: "
                "scoremode show prints it of the merged one"
            )
        labels = self.label or [None]
        if labels[1:] and not self.is_sweep:
            raise UsageError(f"--label {labels[1]}: one MODEL has one label, {labels[0]}")
        revision = base_revision(self.reference, self.reference_revision)
        base = base_of(self.reference, session)
        return request_of(
            self,
            session,
            # Of several models each has its own.
            label=None if self.is_sweep else labels[0],
            reference=base,
            reference_revision=revision,
            full=self.full,
            draft=self.draft,
            noise_floor=self.noise_floor,
            confident=self.confident,
            swaps=swaps_in(self.swap, self.keep_dense, base, self.reference_revision),
            gates=gates,
            keep="stored" if self.keep else None,
        )

    def run(self, session: Session) -> int:
        if self.is_sweep:
            return self._run_several(session)
        request = self.request(session)
        result = measured(request, session)
        assert request.gates is not None
        if request.shard is not None:
            print_run(self, session, result.record.document, result.folder)
            return 0
        judged = request.gates.judge(result.whole)
        document = result.record.document
        shown: dict[str, Any] = document | {"gates": [gate.to_json() for gate in judged]}
        print_run(self, session, shown, result.folder)
        if self.llama_cpp_block and self.form != "json":
            _print_block(result, self.form, apart=not self.quiet)
        write_gates(self.junit, self.called, judged, result.whole)
        return exit_code_of(judged)

    @property
    def is_sweep(self) -> bool:
        """Whether more is asked for than one model's run."""
        if self.further_models or self.dry_run:
            return True
        model = named_model(self)
        # Path.exists raises for a name too long.
        if model is None or not os.path.exists(model):  # noqa: PTH110
            return model is not None and any(c in model for c in "*?[")
        from scoremode.checkpoint.model_files import models_in

        return len(models_in(Path(model))) > 1

    def _run_several(self, session: Session) -> int:
        from scoremode.cli.sweep import print_foreseen, print_outcome, sweep_of, swept

        if self.engine == "http":
            raise UsageError("--engine http: takes one MODEL, and several are given")
        for flag, given in (("--keep-dense", self.keep_dense), ("--swap", self.swap)):
            if given:
                raise UsageError(f"{flag} {given[0]}: takes one MODEL, and several are given")
        if self.keep:
            raise UsageError("--keep: takes one MODEL, and several are given")
        pair = self.request(session)
        request = sweep_of(self, [pair], session)
        if self.dry_run:
            return print_foreseen(request, session, self.form, quiet=self.quiet)
        outcome = swept(request, session, quiet=self.quiet)
        return print_outcome(
            outcome,
            pair.gates,
            session,
            self.form,
            quiet=self.quiet,
            margin=self.margin,
            junit=self.junit,
        )


def _print_block(result: "Result", form: str, *, apart: bool) -> None:
    """`apart`: behind a table."""
    if result.record.llama_cpp is None:
        print(f"scoremode: no llama.cpp block: {result.record.llama_cpp_note}", file=sys.stderr)
        return
    from scoremode.report.rendering import preformatted
    from scoremode.results.folders.finished import read_verified
    from scoremode.results.statistics.llama_cpp import block_of

    block = block_of(read_verified(result.folder, result.whole)[0])
    assert block is not None
    text = preformatted(block.text()) if form == "markdown" else block.text()
    print("\n" * apart + text)


class _Export(Flags, part="output", group=Group("export (protocol llama.cpp only)")):
    export_llama_cpp = PathName(
        "also write the file that llama-perplexity --kl-divergence reads; with a finished "
        "reference as MODEL, nothing is run",
        "FILE",
        read=Path,
        common=True,
    )
    export_nats = Flag[Literal[16, 24] | None, Literal[16, 24] | None](
        "reach this many nats below each row's largest entry in FILE (default: 16, as in "
        "llama.cpp; 24: as in ik_llama.cpp)",
        read=whole,
        choices=(16, 24),
    )


class Reference(Named, Kept, _Export, Push, Measurement):
    called = "reference"
    usage = "scoremode reference BASE -o DIR [flags]"
    summary = "keep a base model's predictions, for scoremode kld"
    about = (
        "Scores a base model and keeps its final hidden states and its head, from which scoremode "
        "kld recomputes the base's logits exactly, in a twentieth of the space of 16-bit logits."
    )
    examples = (
        "scoremode reference BASE -o reference -f wiki.test.raw",
        "scoremode reference BASE -o reference --protocol llama.cpp",
        "scoremode reference reference --export-llama-cpp base.kld",
        "scoremode reference reference --push hub:org/reference --license apache-2.0",
    )
    output: PathName = Output.output.but(
        help="keep the reference in this folder, which must not exist yet", default=None
    )

    def request(self, session: Session) -> "Request":
        return request_of(self, session, keep=self.head)

    def run(self, session: Session) -> int:
        if self.export_nats is not None and self.export_llama_cpp is None:
            raise UsageError(f"--export-nats {self.export_nats}: needs --export-llama-cpp FILE")
        self.check_push()
        from scoremode.reference.stored import StoredReference, is_run

        file, folder = self.export_llama_cpp, Path(model_of(self))
        if is_run(folder):
            self._check_only_used(folder, session)
            kept = StoredReference(folder)
            if file is not None:
                self._export(kept, file, session)
            if self.form == "json":
                from scoremode.lib.json import print_json

                print_json(kept.record.document)
            return 0 if self.push is None else pushed(self, kept, session)
        request = self.request(session)
        if file is not None:
            from scoremode.llama_cpp.export import check_exportable

            check_exportable(request.protocol)
            if not file.parent.is_dir():
                raise UsageError(f"--export-llama-cpp {file}: its folder doesn't exist")
        result = measured(request, session)
        if file is not None:
            self._export(StoredReference(result.folder), file, session)
        print_run(self, session, result.record.document, result.folder)
        if self.push is None:
            return 0
        return pushed(self, StoredReference(result.folder), session)

    def _check_only_used(self, folder: Path, session: Session) -> None:
        """Raises UsageError for a finished reference that is not to be exported or published, or with
        anything that is of a run."""
        if session.ranks is not None:
            raise UsageError(f"{folder}: is a run already, and its export runs in one process")
        if self.export_llama_cpp is None and self.push is None:
            raise UsageError(
                f"{folder}: is a run already: --export-llama-cpp FILE exports a reference, --push "
                "hub:ORG/NAME publishes it"
            )
        allowed = {"model_flag", "device", *Named.flags, *_Export.flags, *Push.flags, *Table.flags}
        for name, flag in self.flags.items():
            if name not in allowed and (value := getattr(self, name)) != flag.default:
                raise UsageError(
                    f"{flag.spelled} {value}: {folder} is a run already, and its export takes no "
                    "flags of a run"
                )

    def _export(self, kept: "StoredReference", file: Path, session: Session) -> None:
        from scoremode.engines.torch.device import choose_device
        from scoremode.llama_cpp.export import export_llama_cpp

        screen = session.screen
        screen.words["score"] = f"writing {file}"
        session.clock.begin("score")
        export_llama_cpp(
            kept,
            file,
            nats=self.export_nats or 16,
            device=choose_device(self.device, None, None).torch,
            progress=screen.progress,
        )
        screen.clear()
        size = file.stat().st_size / 1e9
        screen.line(f"{file}: {size:.3g} GB for llama-perplexity --kl-divergence")


class Plan(Model, Protocol, Seed, Command):
    called = "plan"
    usage = "scoremode plan MODEL [flags]"
    summary = "show windows and counts, without a model"
    about = (
        "Prints how a protocol divides a text: windows, targets, BOS, hashes. Needs a model's "
        "config and tokenizer, or --tokenizer alone; loads no weights."
    )
    examples = (
        "scoremode plan MODEL -f wiki.test.raw -c 2k",
        "scoremode plan --tokenizer MODEL --protocol exl3 --format json",
    )
    seed = Seed.seed.but(group=Group("sampling"))
    form = Form("the plan", OUTPUT)

    def found(self, session: Session) -> Found:
        from scoremode.checkpoint.model_files import resolve_model
        from scoremode.report.inspection import plan_document
        from scoremode.results.statistics.blocks import planned_blocks
        from scoremode.runs.planning import plan_text

        model = named_model(self)
        corpus = corpus_of(self, session, row_seed(self))
        session.clock.begin("plan")
        files = None if model is None else resolve_model(model, self.revision)
        planned = plan_text(corpus, protocol_of(self), model=files, tokenizer=self.tokenizer)
        for note in planned.notes:
            session.screen.line(note)
        value = planned.to_json(corpus) | {"intervals": planned_blocks(planned.plan)}
        return Found(value, plan_document)
