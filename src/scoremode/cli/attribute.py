"""`scoremode attribute`: which part of a quantized model makes how much of its damage."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scoremode.cli.command import Found, Measurement, request_of, swaps_in
from scoremode.cli.screen import Session
from scoremode.errors import UsageError
from scoremode.spec.engine import Devices
from scoremode.spec.flag import Flag, Flags, Group, Number, PathName, Place, Switch
from scoremode.spec.run import Against, KeepDense, Named, Output, Swap
from scoremode.spec.text import Protocol
from scoremode.spec.values import finite, whole

if TYPE_CHECKING:
    from scoremode.runs.request import Request

__all__ = ["Attribute"]

_WINDOWS = 16


class _Windows(Flag[int, int]):
    """`--limit` by another name."""

    def add_to(self, parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
        parser.add_argument(self.spelled, dest="limit", type=whole, metavar=self.metavar,
                            default=_WINDOWS, help=self.help)  # fmt: skip


class _Parts(Against, group=Group("parts")):
    reference = Against.reference.but(
        help="take weights from this base: a model's folder, .gguf file or hub id"
    )
    by: Flag[str, Any] = Flag(
        "split the model into decoder layers (default), into linears and each layer's experts, or "
        "into all linears of one name",
        choices=("layer", "module", "kind"),
        default="layer",
        common=True,
    )
    alone: Switch = Flag(
        "skip the measurements that need the model's own hidden states, which halves the time",
        switch=True,
        common=True,
    )
    windows = _Windows(
        f"score only the first N windows of the text (default: {_WINDOWS})", "N", common=True
    )


class _Recipe(
    Flags,
    group=Group(
        "recipe",
        "Choose each part's format among several quants of BASE and BASE itself, for the "
        "lowest predicted KLD within a budget, and measure the result.",
    ),
):
    budget: Flag[float | None, float | None] = Flag(
        "spend this many stored bits per weight on the parts that any of the quants quantizes",
        "BITS",
        read=finite,
        common=True,
    )
    others: Flag[Sequence[str], list[str]] = Flag(
        "choose from these quants as well as MODEL",
        "QUANT",
        spelled="--from",
        nargs="+",
        default=[],
        common=True,
    )
    write_recipe: PathName = Flag(
        "write the choice as llm-compressor's recipe (YAML)", "FILE", read=Path
    )


class Attribute(Named, _Parts, _Recipe, KeepDense, Swap, Measurement):
    called = "attribute"
    usage = "scoremode attribute MODEL --reference BASE [flags]"
    summary = "attribute a model's KL divergence to its layers, modules or kinds"
    about = (
        "Compares a model with its base, then mixes the two: for each part, the base with that part of "
        "the model (alone), and the model with that part of the base (how far KLD falls). Everything "
        "before a part is computed once for all of them."
    )
    examples = (
        "scoremode attribute QUANT --reference BASE -f wiki.test.raw",
        "scoremode attribute QUANT --reference BASE --by kind --windows 4",
        "scoremode attribute Q4.gguf --reference BASE --from Q8.gguf --budget 5.5",
    )
    is_shared = False
    output: PathName = Output.output.but(
        help="write each run to a folder of its own in DIR, with the attribution in it (default: "
        "runs)"
    )
    # --windows, and what `_check` refuses.
    limit: Number = Protocol.limit.but(default=_WINDOWS, common=False)
    conversations: Place = Protocol.conversations.but(common=False)
    # A server is for ppl and kld.
    engine: Flag[Literal["torch", "vllm"], str] = Devices.engine.but(  # pyright: ignore[reportIncompatibleVariableOverride, reportAssignmentType]
        choices=("torch", "vllm"), common=False
    )
    devices = Devices.devices.but(common=False)

    def found(self, session: Session) -> Found:
        self._check()
        request = request_of(
            self,
            session,
            reference=self.reference,
            swaps=swaps_in(self.swap, self.keep_dense, self.reference),
            reference_revision=None,
        )
        if self.budget is not None:
            return self._search(request, self.budget, session)
        from scoremode.engines.torch.attribution.variants import DIRECTIONS
        from scoremode.report.attribution import attribution_document
        from scoremode.runs.attribute import attribute

        screen = session.screen
        found = attribute(
            request,
            self.by,
            progress=screen.progress,
            notify=screen.line,
            clock=session.clock,
            directions=["alone"] if self.alone else DIRECTIONS,
        )
        return Found(
            found.attribution,
            lambda value: attribution_document(value, found.record, found.folder),
            run=(found.folder, found.record),
        )

    def _search(self, request: "Request", budget: float, session: Session) -> Found:
        from scoremode.report.attribution import recipe_document
        from scoremode.runs.recipe import search

        screen = session.screen
        found = search(
            request,
            self.others,
            budget,
            self.by,
            write_recipe=self.write_recipe,
            progress=screen.progress,
            notify=screen.line,
            tell=screen.stage,
        )
        return Found(
            found.value,
            lambda value: recipe_document(value, found.folder),
            run=(found.folder, found.record),
        )

    def _check(self) -> None:
        """Raises UsageError for flags of a run that an attribution does not have."""
        refused = {
            "--engine vllm": self.engine != "torch",
            f"--devices {self.devices}": self.devices is not None,
            f"--shard {self.shard}": self.shard is not None,
            f"--stop-when {self.stop_when}": self.stop_when is not None,
            f"--conversations {self.conversations}": self.conversations is not None,
        }
        for flag, given in refused.items():
            if given:
                raise UsageError(
                    f"{flag}: is not for attribute, which mixes two models in one process"
                )
        if self.budget is None:
            given = {"--from": next(iter(self.others), None), "--write-recipe": self.write_recipe}
            for flag, value in given.items():
                if value is not None:
                    raise UsageError(
                        f"{flag} {value}: is of a recipe: give its size by --budget BITS"
                    )
        elif self.alone:
            raise UsageError(
                "--alone: changes nothing of a recipe, which --budget makes of parts alone"
            )
        if self.budget is not None and not 0 < self.budget < float("inf"):
            raise UsageError(
                f"--budget {self.budget:g}: must be a positive number of bits per weight"
            )
