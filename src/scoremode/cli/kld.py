"""`scoremode kld`: how far a model's predictions are from its base's."""

import sys
from typing import TYPE_CHECKING, Any

from scoremode.cli.command import (
    Measurement,
    base_revision,
    exit_code_of,
    gates_of,
    measured,
    named_model,
    print_run,
    request_of,
    swaps_in,
)
from scoremode.cli.screen import Session
from scoremode.cli.sweep import is_pattern, print_foreseen, print_outcome, sweep_of, swept
from scoremode.errors import UsageError
from scoremode.spec.flag import Flags, Group, Switch
from scoremode.spec.run import Against, Comparison, Further, Gates, KeepDense, Named, Swap

if TYPE_CHECKING:
    from scoremode.runs.request import Request, Result

__all__ = ["Kld"]


class _Several(
    Flags,
    part="output",
    group=Group(
        "several models",
        "folders, hub ids, .gguf files, patterns such as 'org/repo:*.gguf', or finished runs' "
        "folders",
    ),
):
    further_models = Further()
    dry_run = Switch(
        "show what would run, what is done, sources, bytes and time, without running anything",
        switch=True,
        in_sweep=False,
    )


class Kld(Named, Against, Gates, _Several, KeepDense, Swap, Comparison, Measurement):
    called = "kld"
    usage = "scoremode kld MODEL … --reference BASE [flags]"
    summary = "measure the KL divergence of a model from its base"
    about = (
        "Compares every prediction of a model with its base's: exact KL divergence both ways over "
        "the whole vocabulary, both perplexities and their ratio, all paired. Exit code 4: a gate "
        "was not met. With several models, the base runs once, each model is compared with it, "
        "and all are ranked; rerun the same command to resume, or to add models."
    )

    def request(self, session: Session) -> "Request":
        if self.llama_cpp_block and self.form == "csv":
            raise UsageError(
                "--llama-cpp-block: is another table than the one that --format csv prints"
            )
        if self.llama_cpp_block and self.shard is not None:
            raise UsageError(
                f"--llama-cpp-block: is of a whole run, and shard {self.shard} has no numbers: "
                "scoremode show prints it of the merged one"
            )
        return request_of(
            self,
            session,
            reference=self.reference,
            reference_revision=base_revision(self.reference, self.reference_revision),
            full=self.full,
            noise_floor=self.noise_floor,
            confident=self.confident,
            swaps=swaps_in(self.swap, self.keep_dense, self.reference, self.reference_revision),
            gates=gates_of(self),
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
        return exit_code_of(judged)

    @property
    def is_sweep(self) -> bool:
        """Whether more is asked for than one model's run."""
        if self.further_models or self.dry_run:
            return True
        model = named_model(self)
        return model is not None and is_pattern(model)

    def _run_several(self, session: Session) -> int:
        for flag, given in (("--keep-dense", self.keep_dense), ("--swap", self.swap)):
            if given:
                raise UsageError(f"{flag} {given[0]}: is of one MODEL, and several are given")
        pair = self.request(session)
        request = sweep_of(self, [pair], session)
        if self.dry_run:
            return print_foreseen(request, session, self.form, quiet=self.quiet)
        outcome = swept(request, session, quiet=self.quiet)
        return print_outcome(outcome, pair.gates, session, self.form, quiet=self.quiet)


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
