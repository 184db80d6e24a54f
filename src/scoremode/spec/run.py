"""Flags of a run's model, base, gates and output, in the order of the help texts."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from scoremode.errors import GateNotMet
from scoremode.spec.flag import Flag, Flags, Group, Name, PathName, Place, Switch
from scoremode.spec.values import (
    Limit,
    draft_of,
    half_life_of,
    label_of,
    margin_of,
    nats_of,
    probability_of,
    ratio_of,
    shard_of,
    share_of,
)

__all__ = [
    "COMPARISON",
    "OUTPUT",
    "Against",
    "Comparison",
    "Form",
    "Further",
    "Gates",
    "Junit",
    "KeepDense",
    "Kept",
    "Label",
    "Labels",
    "Margin",
    "Model",
    "Named",
    "Output",
    "Quiet",
    "ReferenceRevision",
    "Runs",
    "Sharding",
    "Swap",
    "Table",
    "TokenText",
]

MODEL, COMPARISON, OUTPUT = Group("model"), Group("comparison"), Group("output")
MIXTURE = Group(
    "mixture",
    "Replace modules of MODEL with another checkpoint's, in memory; no checkpoint is written. "
    "A PATTERN is a module's name, or a glob that may start after any dot and covers "
    "everything inside (layers.0, 'layers.*.mlp'), or a regular expression anchored at the "
    "name's start (re:.*down_proj).",
)
GATES = Group(f"gates (exit code {GateNotMet.exit_code} if one is not met)")
FORMS = ("table", "markdown", "csv", "json")


class _Form(argparse.Action):
    """Stores a form, and refuses a second one: of two only one could be printed."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        form, chosen = self.const or values, getattr(namespace, "chosen_form", None)
        if chosen not in (None, form):
            raise argparse.ArgumentError(self, f"the result is printed as {chosen} or as {form}")
        namespace.chosen_form = namespace.form = form


class Form(Flag[str, str]):
    """`--format`, and `--json`, which is one of its values; `what` is printed as JSON."""

    def __init__(self, what: str, group: Group | None = None):
        super().__init__(
            f"print the result in this form (default: table); json: {what}",
            choices=FORMS,
            default="table",
            spelled="--format",
            action=_Form,
            group=group,
            common=True,
            in_sweep=False,
        )

    def add_to(self, parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
        super().add_to(parser)
        parser.add_argument("--json", action=_Form, nargs=0, const="json", dest="form",
                            default="table", help="same as --format json")  # fmt: skip


class Runs(Flags):
    runs = Flag[Sequence[str | Path], list[Path]](
        "a run's folder, or a folder of runs", "RUN", read=Path, positional=True, nargs="+"
    )


class Further(Flag[Sequence[str], tuple[str, ...]]):
    """Models behind the first one, which may stand anywhere among the flags: `Parser` finds them."""

    def __init__(self) -> None:
        super().__init__("", positional=True, default=(), in_sweep=False)

    def add_to(self, parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
        parser.set_defaults(further_models=())

    def value_of(self, given: Any) -> Any:
        return tuple(given or ())


class Named(Flags, part="model"):
    """MODEL alone, which stands first in most helps."""

    model = Name(
        "model to use: a folder, a .gguf file or a hub id",
        "MODEL",
        positional=True,
        nargs="?",
        group=MODEL,
        in_sweep=False,
    )


class Model(Flags, part="model", group=MODEL):
    model = Named.model
    model_flag = Name("give MODEL as a flag", "MODEL", spelled="--model", in_sweep=False)
    revision: Name = Flag("use this branch, tag or commit of a hub model", "REV", in_memory=False)
    tokenizer: Place = Flag(
        "use the tokenizer of this folder, .gguf file or hub id (default: the model's own)",
        "PATH",
        path="file or hub",
    )


class Against(Flags, part="comparison"):
    reference: Place = Flag(
        "compare with this base: a model, a folder of scoremode reference or its address (hub:…, "
        "https://…), or a llama.cpp logits file",
        "BASE",
        required=True,
        group=COMPARISON,
        common=True,
        in_sweep=False,
    )


class ReferenceRevision(Flags, part="comparison", group=COMPARISON):
    reference_revision: Name = Flag("use this branch, tag or commit of a BASE on the hub", "REV")


class Quiet(Flags, part="output"):
    quiet: Switch = Flag(
        "print neither progress nor a table", switch=True, group=OUTPUT, in_sweep=False
    )


class Label(Flags, part="output", group=OUTPUT):
    label: Name = Flag(
        "call the model TEXT in tables, charts and the record (default: the name of its folder, "
        "file or repository)",
        "TEXT",
        read=label_of,
        once=True,
        in_sweep=False,
    )


class Labels(Flag[str | Sequence[str | None] | None, list[str | None] | None]):
    """`--label` of several models, one each in their order; a program gives None for what has none."""

    def value_of(self, given: Any) -> Any:
        many = [given] if isinstance(given, str) else given
        return many and [None if each is None else self._read(each) for each in many]


class Output(Flags, part="output", group=OUTPUT):
    output: PathName = Flag(
        "write each run to a folder of its own in DIR (default: runs)",
        "DIR",
        read=Path,
        default=Path("runs"),
        spelled="--output-path",
        also=("-o",),
        common=True,
        in_sweep=False,
    )
    resume: Switch = Flag(
        "resume an interrupted run of this same command", switch=True, common=True, in_sweep=False
    )


class Table(Flags, part="output", group=OUTPUT):
    """Flags of how a run is printed."""

    verbose = Switch("print the full table", switch=True, also=("-v",), in_sweep=False)
    form = Form("the record")
    quiet: Switch = Quiet.quiet


class Margin(Flags, part="output"):
    """`--margin`, of commands that say how runs stand beside their base."""

    # Of a command line alone: a program gives it where it asks for verdicts.
    margin = Flag[float | str | None, float | None](
        "call runs equivalent within M: a share of the perplexity, as many nats of KLD, or a share of "
        "tasks' answers (default: 0.01, or 1%%)",
        "M",
        read=margin_of,
        in_sweep=False,
    )


class TokenText(Flags, part="output", group=OUTPUT):
    token_text: Switch = Flag(
        "store each target's text in scores.parquet, in a column token_text", switch=True
    )


class Sharding(
    Flags,
    part="output",
    group=Group(
        "sharding",
        "run shards on independent machines and combine them with scoremode merge",
    ),
):
    shard: Name = Flag(
        "score only shard i of N (i from 1 to N): scores are the same as in one process, and "
        "there are no metrics until all N are merged (ppl and kld with one model)",
        "i/N",
        read=shard_of,
        in_sweep=False,
        in_memory=False,
    )


class Gates(Flags, part="output", group=GATES):
    max_kld: Flag[float | None, Limit | None] = Flag(
        "fail if the mean KLD exceeds NATS", "NATS", read=nats_of, common=True
    )
    max_kld_p99: Flag[float | None, Limit | None] = Flag(
        "fail if the KLD's 99th percentile exceeds NATS", "NATS", read=nats_of
    )
    max_ppl_ratio: Flag[float | None, Limit | None] = Flag(
        "fail if PPL / base exceeds R", "R", read=ratio_of
    )
    max_tv: Flag[float | str | None, Limit | None] = Flag(
        "fail if the mean total variation exceeds SHARE", "SHARE", read=share_of
    )
    min_acceptance: Flag[float | str | None, Limit | None] = Flag(
        "fail if the expected acceptance of the model's drafts by the base, 1 - total variation, "
        "is below SHARE, such as 0.99 or 99%%",
        "SHARE",
        read=share_of,
    )
    min_half_life: Flag[float | None, Limit | None] = Flag(
        "fail if the half-life is below N tokens: after how many a sample of the model, drawn as "
        "alike as can be, has parted from the base's with probability 1/2",
        "N",
        read=half_life_of,
    )
    min_top1: Flag[float | str | None, Limit | None] = Flag(
        "fail if the share of targets with the same top-1 token is below SHARE, such as 0.9 "
        "or 90%%",
        "SHARE",
        read=share_of,
        common=True,
    )
    gate_on: Flag[Literal["value", "upper"], Any] = Flag(
        "judge the number itself (default), or the upper bound of its 95 %% interval (the "
        "lower one of a least share), so that a gate isn't passed by chance",
        choices=("value", "upper"),
        default="value",
    )


class Junit(Flags, part="output", group=GATES):
    """`--junit`, of commands that judge; of a command line alone."""

    junit = Flag[str | Path | None, Path | None](
        "write each gate or verdict to FILE as a test case of JUnit XML, which CI services show",
        "FILE",
        read=Path,
        path="file",
        in_sweep=False,
    )


class KeepDense(Flags, part="model", group=MIXTURE):
    keep_dense: Flag[Sequence[str] | None, list[str] | None] = Flag(
        "keep these modules as the base has them; repeatable",
        "PATTERN",
        repeats=True,
        in_memory=False,
    )


class Swap(Flags, part="model", group=MIXTURE):
    swap: Flag[Sequence[str] | None, list[str] | None] = Flag(
        "take these modules from OTHER, a checkpoint of the same base; repeatable",
        "PATTERN=OTHER",
        repeats=True,
        in_memory=False,
    )


class Comparison(Flags, part="comparison", group=COMPARISON):
    llama_cpp_block = Switch(
        "also print llama-perplexity's block of statistics; with --json it is in the record",
        switch=True,
        in_sweep=False,
    )
    reference_revision: Name = ReferenceRevision.reference_revision
    full: Switch = Flag(
        "also compute Jensen-Shannon divergence and top-k agreement, by a second pass over the "
        "logits",
        switch=True,
        moves_score=True,
    )
    draft: Flag[float | None, float | None] = Flag(
        "also measure the acceptance of drafts sampled at temperature T, by a second pass over the "
        "logits; at temperature 1 every comparison has it, and greedily it is the same top-1",
        "T",
        read=draft_of,
        moves_score=True,
    )
    confident: Flag[float | str, float] = Flag(
        "report separately the share of targets where the model's top token differs and the "
        "base gave its own a probability above P (default: 0.9)",
        "P",
        read=probability_of,
        default=0.9,
        moves_score=True,
    )
    noise_floor: Flag[Literal["auto", "attention", "dtype", "engine"] | None, Any] = Flag(
        "measure how far the base is from itself when it runs again with different arithmetic: "
        "another attention backend or, where that changes nothing, another dtype (auto); or the "
        "other engine",
        choices=("auto", "attention", "dtype", "engine"),
        nargs="?",
        const="auto",
        in_memory=False,
    )


class Kept(Flags, part="output", group=Group("reference storage")):
    head: Flag[Literal["stored", "checkpoint"], Any] = Flag(
        "store the base's head in DIR (default), or leave it in its checkpoint, which must then "
        "stay where it is",
        choices=("stored", "checkpoint"),
        default="stored",
        in_memory=False,
    )
