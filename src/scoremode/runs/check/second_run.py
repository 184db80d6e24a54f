"""A share of a finished run's windows, scored once more with the record's own options.

On the same device with the same versions the same bits are expected. Elsewhere a difference is judged
by what `scoremode verify` allows rounding (`results.statistics.agreement`), and the mean KLD may move
by what such a difference of log-probabilities, of rms r, can do to it: r √(2 KLD) + r². (Errors of
size r on the logits change KL(p‖q) by Σ (q - p) δ, which Pinsker's inequality bounds by r √(2 KLD), and
by less than r² in second order.)
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.model_files import ModelFiles
from scoremode.engines.base import Extras
from scoremode.engines.kv_formats import cache_of
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import UsageError
from scoremode.results.audit.findings import FOLLOWING, Findings
from scoremode.results.record.definition import Done
from scoremode.results.record.model import Reference as ReferenceSection
from scoremode.results.record.section import differences
from scoremode.results.record.sections import versions
from scoremode.results.scores import Scores, concatenate
from scoremode.results.statistics.agreement import LIMITS, Difference
from scoremode.runs.check.inputs import Sources, Unreachable
from scoremode.runs.models import reopened
from scoremode.runs.rescore.rescore import Sample, judged, rescore

if TYPE_CHECKING:
    import torch

    from scoremode.checkpoint.files import Checkpoint
    from scoremode.engines.base import BaseEngine
    from scoremode.engines.torch.engine import TorchEngine
    from scoremode.head.project import Logits
    from scoremode.reference.base import Reference, Span


# The versions in a record that can move a score.
_COMPUTING = ("scoremode", "torch", "transformers", "platform")
_PART = "second run"
# Columns that a model computes; the others are the plan's.
_MEASURED = ("logprob", "top1", "top1_logprob", "base_logprob", "base_top1", "base_top1_logprob",
            "kld", "kld_reverse", "tv", "tv_draft", "jsd", "base_entropy", "model_entropy",
            "topk_sets", "topk_order", "kld_llama_cpp")  # fmt: skip
# Columns without a known limit of rounding.
_UNJUDGED = ("top1", "base_top1", "kld_reverse", "tv", "tv_draft", "jsd", "base_entropy",
             "model_entropy", "topk_sets", "topk_order", "kld_llama_cpp")  # fmt: skip


@dataclass(frozen=True, eq=False)
class SecondRun:
    """A second run of some windows.

    - `scores`: by the whole plan's windows, in its order; `engine`: `Engine.identity` of now;
      `described`: what `Engine.describe` adds; `base`: the same of a base that ran beside.
    - `without_base`: why there is no comparison with the base, None where there is one or none was.
    """

    scores: Scores
    engine: dict[str, Any]
    without_base: str | None
    described: Mapping[str, Any] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)


def options_of(
    engine: Mapping[str, Any], device: str | None, *, trust_remote_code: bool = False
) -> TorchOptions:
    """The torch engine's options that come closest to what a record's `engine` section says.

    `device`: the user's, None for the record's kind where this machine has it.
    """
    import torch

    is_cuda = engine["device"]["type"] == "cuda" and torch.cuda.is_available()
    arithmetic = engine["arithmetic"] if engine["engine"] == "torch" else None
    if arithmetic is None:
        ran = (engine.get("activations") or {}).get("ran")
        arithmetic = "weights+activations" if ran in ("quantized", "mixed") else "weights"
    attention = engine["attention"] if engine["attention"] in TorchOptions.attentions else None
    return TorchOptions(
        dtype=engine["dtype"],
        arithmetic=arithmetic,
        kv_cache=cache_of(engine),
        device=device or ("cuda" if is_cuda else "cpu"),
        attention=attention,
        batch_windows=engine.get("batch_windows"),
        trust_remote_code=trust_remote_code,
    )


def score_again(
    record: Done,
    drawn: Sequence[Sample],
    model: ModelFiles,
    sources: Sources,
    options: TorchOptions,
    *,
    full: bool,
    draft: float | None,
    progress: Callable[[float, int], None],
) -> SecondRun:
    """Scores the windows of `drawn` by the model, and compares with the base where it can be reached.

    Raises Unreachable for options that this model can't have, ScoremodeError.
    """
    longest = max(int(part.plan.lengths.max()) for part in drawn)
    without, section = None, record.reference
    checkpoint = reopened(
        record.checkpoint.mixture, model, sources.other, code=options.trust_remote_code
    )
    with ExitStack() as at_end:
        base: _Base | None = None
        if section:
            try:
                base = _open_base(section, sources, options, longest)
            except Unreachable as error:
                without = str(error)
            else:
                at_end.callback(base.close)
                options = base.beside(options, drawn)
        engine = _built(checkpoint, options, record.engine.vocabulary, longest)
        at_end.callback(engine.close)
        largest = max(int(part.plan.tokens.max()) for part in drawn)
        if largest >= engine.vocabulary:
            raise UsageError(
                f"--against {model.name}: is another model: the run has token id {largest}, and its "
                f"softmax runs over {engine.vocabulary} entries"
            )
        total = sum(int(part.plan.lengths.sum()) for part in drawn) * (1 + (base is not None))
        parts = []

        def report(tokens: float) -> None:
            progress(tokens, total)

        for part in drawn:
            schedule = part.schedule(engine.schedule(part.plan).pass_windows)
            extras = Extras()
            if base is not None:
                extras = Extras(base.reference(part, schedule.pass_windows, report), full, draft)
            found = rescore(engine, part.plan, schedule, extras=extras, progress=report)
            parts.append(part.renamed(found.scores))
        checkpoint.check_unchanged()
        identity, described = engine.identity(), engine.describe()
        of_base = {} if base is None else base.describe()
    joined = concatenate(parts)
    order = np.lexsort((joined.position, joined.window))
    columns = {name: column[order] for name, column in joined.columns().items()}
    return SecondRun(Scores.from_columns(columns), identity, without, described, of_base)


def differing_conditions(record: Done, engine: Mapping[str, Any]) -> list[str]:
    """Conditions that can move a score and have changed since the record was made, in words."""
    then = _then(record)
    here, there = engine["device"], then.get("device") or {}
    words = [f"device {name} {there.get(name)} then, {here[name]} now"
             for name in ("type", "name", "threads") if there.get(name) != here[name]]  # fmt: skip
    words += _differing_options(then, engine)
    own, theirs = versions(), record.versions or {}
    return words + [
        f"{name} {theirs.get(name)} then, {own[name]} now"
        for name in _COMPUTING
        if theirs.get(name) != own[name]
    ]


def _then(record: Done) -> dict[str, Any]:
    """The sections of a record that describe its engine, as one."""
    document = record.document
    return {**document["engine"], **document.get("identity", {}).get("engine", {})}


def _differing_options(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Settings of an engine that have changed, whatever machine it runs on, in words."""
    return [
        f"{name} {then.get(name)} then, {here} now"
        for name, here in now.items()
        if name not in ("device", "torch") and then.get(name) != here
    ]


class _Base:
    """A base to compare with: a model beside, or what is stored of it.

    Exactly one of `engine` and `stored` is there.
    """

    def __init__(self, engine: "BaseEngine | None", stored: "Reference | None"):
        self._engine, self._stored = engine, stored

    def beside(self, options: TorchOptions, drawn: Sequence[Sample]) -> TorchOptions:
        if (engine := self._engine) is None:
            return options
        return options.sharing(lambda _: max(engine.held_bytes(part.plan) for part in drawn))

    def reference(
        self, part: Sample, pass_windows: int, progress: Callable[[float], None]
    ) -> "Reference":
        if self._engine is None:
            assert self._stored is not None
            return _Rows(_in_order(self._stored, part), part)
        from scoremode.engines.torch.engine import ModelReference

        schedule = part.schedule(pass_windows)
        return ModelReference(self._engine, part.plan, schedule, progress)

    def describe(self) -> dict[str, Any]:
        """Describes the engine, where there is one."""
        return {} if self._engine is None else self._engine.describe()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


def _in_order(stored: "Reference", part: Sample) -> "Reference":
    """A stored base by the rows of the run's plan, whose windows may have been drawn."""
    from scoremode.reference.stored import OrderedReference, StoredReference

    if part.plan.planned is None or not isinstance(stored, StoredReference):
        return stored
    return OrderedReference(stored, part.plan.planned)


class _Rows:
    """A stored reference, asked for rows of a part of its plan."""

    def __init__(self, stored: "Reference", part: Sample):
        self._stored, self._part = stored, part
        self.vocabulary, self.extra_sums = stored.vocabulary, stored.extra_sums

    def expect(self, spans: "Sequence[Span]", device: "torch.device") -> None:
        self._stored.expect(self._in_whole(spans), device)

    def logits(
        self, spans: "Sequence[Span]", device: "torch.device", tile: tuple[int, int]
    ) -> "Logits":
        return self._stored.logits(self._in_whole(spans), device, tile)

    def _in_whole(self, spans: "Sequence[Span]") -> "list[Span]":
        """Maps rows to the whole plan's: a micro-batch's windows are neighbours there, too."""
        begins = [self._part.in_whole(begin) for begin, _ in spans]
        return [(at, at + end - begin) for at, (begin, end) in zip(begins, spans, strict=True)]


def _open_base(
    section: ReferenceSection, sources: Sources, options: TorchOptions, longest: int
) -> _Base:
    """The base of a record's section, with the cache that it had: before runs had caches in formats of
    their own, a base had the one that it declares, as its model. Raises Unreachable, ScoremodeError."""
    kind = section.kind
    place = sources.base(section)
    if kind == "llama.cpp":
        if not place.is_file():
            raise Unreachable(f"there is no {place} here: --reference PATH says where it lies")
        from scoremode.llama_cpp.reference import LlamaCppReference

        return _Base(None, LlamaCppReference(place))
    from scoremode.reference.address import complete
    from scoremode.reference.stored import StoredReference, is_run

    if kind == "stored" and is_run(place):
        stored = StoredReference(place)
        complete(stored, stored.record.plan.scored)
        return _Base(None, stored)
    checkpoint, engine = section.checkpoint, section.engine
    if checkpoint is None or not engine or kind == "stored":
        raise Unreachable(f"there is no reference in {place}: --reference PATH says where it lies")
    opened = open_checkpoint(sources.checkpoint(checkpoint, sources.reference, "--reference"))
    own = options_of(engine, options.device, trust_remote_code=options.trust_remote_code)
    return _Base(_built(opened, own, engine["vocabulary"], longest), None)


def _built(
    checkpoint: "Checkpoint", options: TorchOptions, vocabulary: int, longest: int
) -> "TorchEngine":
    """An engine with a record's options. Raises Unreachable where the model can't have them."""
    from scoremode.engines.torch.engine import build_engine

    try:
        return build_engine(checkpoint, options, vocabulary, longest)
    except UsageError as error:
        raise Unreachable(str(error)) from None


def compare_again(
    record: Done,
    scores: Scores,
    weights: np.ndarray | None,
    again: SecondRun,
    findings: Findings,
) -> dict[str, Any]:
    """Holds the second run against the windows of the first, and returns how they differ.

    - `scores`: of the whole run; `weights`: float64 [N], what each of its targets counts.
    """
    ours = again.scores
    rows = np.flatnonzero(np.isin(scores.window, ours.window))
    theirs = Scores.from_columns({name: c[rows] for name, c in scores.columns().items()})
    for name in ("window", "position", "target"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), f"another {name}"
    counted = None if weights is None else weights[rows]
    conditions = differing_conditions(record, again.engine)
    _compare_engines(record, again, conditions, findings)
    if again.without_base is not None:
        findings.unchecked(_PART, "comparison with the base", again.without_base)
    differing = _differing_columns(ours, theirs)
    length = record.protocol.context_length
    found, verdict = judged(ours, again.engine, theirs, record.document["engine"], length, counted)
    n = f"{len(ours):,} targets"
    if not differing:
        columns = ", ".join(name for name in ours.columns() if name in _MEASURED)
        findings.held(_PART, "scores", f"{n}, the same bits in {columns}")
    elif not conditions:
        findings.wrong(_PART, "scores", _unlike(found, differing, n))
    else:
        changed = f" (not expected to be the same bits: {'; '.join(conditions)})"
        words = (
            f"{n}: {verdict.words}; PPL over these windows ×{found.ppl_ratio.value:.7f}{changed}"
        )
        findings.judge(_PART, "scores", [] if verdict.agrees else [words], words)
        _judge_base(record, ours, theirs, counted, n, changed, findings)
        _judge_kld(ours, theirs, counted, found, findings)
        if rest := [name for name in differing if name in _UNJUDGED]:
            words = f"{', '.join(rest)}: how far rounding may move them isn't known"
            findings.unchecked(_PART, "further columns", words)
    moved = found.ppl_ratio.value - 1
    return {
        "targets": len(ours),
        "same_bits": not differing,
        "differing_columns": differing,
        "conditions": conditions,
        "ppl_moved": moved,
        "difference": found.to_json(),
    }


def _differing_columns(scores: Scores, others: Scores) -> dict[str, int]:
    """Column that both have → how many of its values differ, of those where any does."""
    one, two = scores.columns(), others.columns()
    counts = {k: int((one[k] != two[k]).sum()) for k in _MEASURED if k in one and k in two}
    return {name: count for name, count in counts.items() if count}


def _compare_engines(
    record: Done, again: SecondRun, conditions: Sequence[str], findings: Findings
) -> None:
    """Holds what a record says of its engine, and of a base's that ran beside, against the second run,
    where that ran on the same device with the same versions: anywhere else it may differ."""
    said = _then(record)
    if said["engine"] == "vllm" or set(conditions) != set(_differing_options(said, again.engine)):
        return
    base = (record.reference and record.reference.engine) or {}
    for part, theirs, ours in (
        ("engine", record.document["engine"], again.described),
        ("reference.engine", base, again.base),
    ):
        both = [name for name in FOLLOWING if name in theirs and name in ours]
        stored, made = ({n: _without_source(n, each[n]) for n in both} for each in (theirs, ours))
        if made:
            found = differences(part, stored, made, of="the second run's fields")
            findings.judge(_PART, part, (d.words for d in found), f"{len(made)} fields")


def _without_source(name: str, value: Any) -> Any:
    """A fact of an engine, of a cache's static scales their values alone: the second run is given those
    that the first one measured or read."""
    scales = value.get("scales") if name == "kv_cache" and isinstance(value, Mapping) else None
    if not isinstance(scales, Mapping):
        return value
    return {**value, "scales": {side: scales[side] for side in ("k", "v") if side in scales}}


def _unlike(found: Difference, differing: Mapping[str, int], n: str) -> str:
    """Tells what differs where nothing should, and what it looks like."""
    which = ", ".join(f"{name} in {count:,}" for name, count in differing.items())
    words = (
        f"differ in {which} of {n}, though device, versions and options are the record's: "
        f"log-probabilities by {found.rms:.2g} nats (rms) and at most {abs(found.worst):.2g}, at "
        f"position {found.worst_position} of window {found.worst_window}; PPL "
        f"×{1 / found.ppl_ratio.value:.6f} in the record"
    )
    if found.shift:
        words += "; they look shifted by one target"
    elif found.correlation is not None and found.correlation < 0.9:
        words += f"; they correlate by {found.correlation:.2f} alone, as another text's would"
    elif found.rms > LIMITS["bfloat16"].rms:
        words += "; no rounding explains that: another model's would differ so"
    return words


def _judge_base(
    record: Done,
    ours: Scores,
    theirs: Scores,
    weights: np.ndarray | None,
    n: str,
    changed: str,
    findings: Findings,
) -> None:
    """Judges the base's log-probabilities as the model's are judged."""
    if ours.against is None or theirs.against is None:
        return
    one, other = (
        replace(scores, logprob=against.base_logprob, top1=against.base_top1)
        for scores, against in ((ours, ours.against), (theirs, theirs.against))
    )
    # A file of logits has no engine, and is what it was.
    engine = (record.reference and record.reference.engine) or {}
    length = record.protocol.context_length
    _, verdict = judged(one, engine, other, engine, length, weights)
    words = f"{n}: {verdict.words}{changed}"
    findings.judge(_PART, "base's log-probabilities", [] if verdict.agrees else [words], words)


def _judge_kld(
    ours: Scores,
    theirs: Scores,
    weights: np.ndarray | None,
    found: Difference,
    findings: Findings,
) -> None:
    """Judges how far the mean KLD moved by what the log-probabilities' difference can do to it."""
    if ours.against is None or theirs.against is None:
        return
    own = float(np.average(ours.against.kld, weights=weights))
    said = float(np.average(theirs.against.kld, weights=weights))
    base = ours.against.base_logprob - theirs.against.base_logprob
    rms = found.rms + float(np.sqrt((base**2).mean()))
    limit = rms * np.sqrt(2 * max(own, said, 0.0)) + rms**2
    both = f"{own:.6f} nats over these windows, {said:.6f} in the record"
    words = f"{both}; rounding explains {limit:.2g}"
    if abs(own - said) <= limit:
        findings.held(_PART, "mean KLD", words)
    else:
        findings.wrong(_PART, "mean KLD", words)
